"""What came of a run: summary, page, card, files."""
