"""What makes pages: reading the table of contents, executing, building, printing."""
