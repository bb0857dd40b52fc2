"""The documentation site: `make docs`. The words lie in docs/; this folder turns them into pages."""
