"""Recipes: PyTorch code for a plan, executed with fake tensors before it is handed out."""
