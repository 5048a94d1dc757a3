"""Laboratory: several hosts simulated on one machine, and accidents that happen to them."""
