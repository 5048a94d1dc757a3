"""Drawing of a predicted step, and predictions of recorded ones: *What a step costs*."""

from collections.abc import Callable

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from distributed.scaling import equal_messages
from playground.show.bucket_sizes import read
from playground.show.colours import KINDS

Timed = tuple[str, str, float, float]  # link, buckets; seconds predicted and measured

PARAMETERS, TOKENS, SPEED = 1.5e9, 3072, 400e12
BUCKETS = 145  # of the largest GPT-2 in PyTorch's DDP, as *Buckets* counts them
LATENCY, BANDWIDTH = 0.1e-3, 320e9  # of eight hosts with eight ports each
BLOCKS = 8  # in which the buckets are drawn


def two_lanes() -> Figure:
    """The page's step: computation above, buckets below, about 18 of the 145 in each block."""
    compute = 6 * PARAMETERS * TOKENS / SPEED
    count, message = BUCKETS, LATENCY + 2 * 4 * PARAMETERS / BUCKETS / BANDWIDTH
    figure, axis = plt.subplots(figsize=(7.2, 1.7))
    forward, end, block_begin, blocks = compute / 3, 0.0, 0.0, 0
    for left, width, name in ((0.0, forward, "forward"), (forward, 2 * forward, "backward")):
        axis.barh(0, width * 1e3, left=left * 1e3, color=KINDS["compute"], edgecolor="white")
        axis.text((left + width / 2) * 1e3, 0, name, ha="center", va="center", color="black")
    for i in range(1, count + 1):
        end = max(end, forward * (1 + 2 * i / count)) + message
        block_begin = block_begin or end - message
        if i * BLOCKS // count > blocks:
            blocks, left, width = i * BLOCKS // count, block_begin * 1e3, (end - block_begin) * 1e3
            axis.barh(1, width, left=left, color=KINDS["communication"], edgecolor="white")
            block_begin = 0.0
    assert abs(end - equal_messages(compute, count, message)) < 1e-9
    axis.set(yticks=[0, 1], yticklabels=["compute", "all-reduce"], xlabel="time (ms)")
    axis.invert_yaxis()
    return figure


def recorded_steps(step_seconds: Callable[[float, list[float]], float]) -> list[Timed]:
    """The laboratory's steps with buckets of seven sizes, and what `step_seconds` says of them."""
    swept, found = read(), []
    for link, name in (("100Mbit", "100 Mbit/s"), ("1000Mbit", "1,000 Mbit/s")):
        run = swept[link]
        for row in run["steps"]:
            count = round(swept["bytes"] / row["bucket"])
            messages = [run["alpha"] + run["beta"] * swept["bytes"] / count] * count
            found.append(
                (name, str(count), step_seconds(run["computed"], messages), row["seconds"])
            )
    return found
