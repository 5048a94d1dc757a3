import math

from playground.exercises.check import check


def fewest_ranks(rows, noise, batch, steps, seconds, deadline):
    """steps(B) = least · (1 + noise / B): no batch, however large, needs fewer than the least."""
    least = steps / (1 + noise / batch)
    allowed = deadline // seconds
    if allowed <= least:
        return None
    needed = noise / (allowed / least - 1)
    return max(1, math.ceil(needed / rows))


check("fewest_ranks", fewest_ranks)
