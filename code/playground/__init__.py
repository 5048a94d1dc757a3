"""What runs the book: the local server, the live kernels, figures."""
