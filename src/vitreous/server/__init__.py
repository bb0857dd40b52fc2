"""A model answers over HTTP, with a page that shows why."""
