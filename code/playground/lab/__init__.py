"""Several hosts played by one machine, and the accidents that befall them."""
