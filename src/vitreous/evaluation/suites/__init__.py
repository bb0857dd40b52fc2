"""Many models on many sets: the file, its cells, the table and the page."""
