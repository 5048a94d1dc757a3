"""Server of the book: its pages, its kernels, and the limits of these."""
