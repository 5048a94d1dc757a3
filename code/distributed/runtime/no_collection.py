"""Garbage collection off: the fork server, and only it, imports this module first.

While Python imports torch, it would look for garbage again and again among hundreds of thousands of
objects, all of which stay. Ranks turn it on again, but skip these objects: see `be_a_rank`.
"""

import gc

gc.disable()
