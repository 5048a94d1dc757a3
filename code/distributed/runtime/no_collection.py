"""Imported first by the fork server, and only there: what it imports is there to stay.

Python would look for garbage again and again among hundreds of thousands of objects while it
imports torch, and there is none. Ranks look again, but not among these: see `be_a_rank`.
"""

import gc

gc.disable()
