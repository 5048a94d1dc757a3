"""Ours against the peers, paired in one run: `python -m bench`."""
