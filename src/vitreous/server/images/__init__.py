"""The images that the server holds: uploads, examples, similar ones."""
