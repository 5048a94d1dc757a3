"""What is taught: one chapter of the book, one module."""
