"""What a trace of `torch.profiler` says of a step, read with Python alone.

    python -m distributed.read_trace FOLDER

reads the traces of one rank or of all. `events` takes a file apart while it arrives, `rank_trace`
keeps what is needed, `families` sorts kernels by name, `recordings` finds which file is of which
rank, `breakdown` divides each step into four bars that add up to it, `messages` finds the rank that
comes last, `verdict` finds which of the `rules` broke, and `summary` writes it down.
"""
