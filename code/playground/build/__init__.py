"""Build of the book: table of contents, execution of pages, HTML, and PDF."""
