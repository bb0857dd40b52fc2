"""Images the server holds: uploads, examples, similar ones."""
