"""Checkpoint interval: how often to save, if saving takes time and failures happen.

    time lost = saving / interval + (interval / 2 + restart) / between failures

If you save rarely, a failure costs a lot of repeated work; if you save often, the saves cost time.
"""

import math


def best_interval(saving: float, between_failures: float) -> float:
    """Seconds of work from one checkpoint to the next, if a save takes `saving` (s).

    √(2 · saving · between_failures) loses the least time, as long as saves are short (Young 1974).
    Raises ValueError unless both are more than 0.
    """
    if not (saving > 0 and between_failures > 0):
        raise ValueError(f"saving={saving}, between_failures={between_failures}: more than 0 each")
    return math.sqrt(2 * saving * between_failures)


def better_interval(saving: float, between_failures: float) -> float:
    """The same if saves aren't short compared with the time between failures (Daly 2006).

    Work and save together take as long as in `best_interval`, up to a small correction.
    """
    share = saving / (2 * between_failures)
    if share >= 1:
        return between_failures
    both = best_interval(saving, between_failures)
    return both * (1 + math.sqrt(share) / 3 + share / 9) - saving


def share_lost(interval: float, saving: float, between_failures: float, restart: float) -> float:
    """The share of time without progress: saves, repeated work, and restarts."""
    return saving / interval + (interval / 2 + restart) / between_failures
