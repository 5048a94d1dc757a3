"""The book's server: its pages, its kernels, and what these may take."""
