"""The documentation site: `python -m website`, or `make docs`. Words lie in docs/; this folder turns them into pages."""
