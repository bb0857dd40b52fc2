"""A model as one static folder: a page that answers in the visitor's own browser."""
