"""The images that the server holds: uploads, similar ones."""
