"""Trace reader: analyzes a step in a `torch.profiler` trace, in pure Python.

    python -m distributed.read_trace FOLDER

reads the traces of one rank or of all ranks. `events` parses a file while it arrives, `rank_trace`
keeps the events that are needed, `families` sorts kernels by name, `recordings` assigns files to
ranks, `breakdown` divides each step into four bars that add up to it, `messages` finds the rank
that comes last, `verdict` finds which of the `rules` was broken, and `summary` writes the report.
"""
