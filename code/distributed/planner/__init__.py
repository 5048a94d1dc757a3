"""Models for planning: memory, bytes and time of a step as plain numbers, without torch or NumPy.

It stands on `cost`, `scaling` and `model_states`; `strategy` and `plan` stand on it.
"""
