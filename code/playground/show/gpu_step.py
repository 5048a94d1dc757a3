"""Timeline of one step of DDP on a GPU: a drawing, not a measurement."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from playground.show.colours import INK, KINDS, PALE

# lane, begin, end, kind, label
HOST, COMPUTE, NETWORK = "Python", "compute stream", "NCCL's stream"
SPANS = [
    (HOST, 0.0, 1.0, "", "forward"),
    (HOST, 1.0, 2.3, "", "backward"),
    (HOST, 2.3, 3.0, "", "wait()"),
    (HOST, 3.0, 3.7, "", "step()"),
    (HOST, 3.7, 5.0, "", "next forward"),
    (COMPUTE, 0.3, 2.3, "compute", "forward"),
    (COMPUTE, 2.3, 3.6, "compute", "layers 4, 3"),
    (COMPUTE, 3.6, 4.9, "compute", "layer 2"),
    (COMPUTE, 4.9, 6.2, "compute", "layer 1"),
    (COMPUTE, 6.2, 7.2, "waiting", "waits"),
    (COMPUTE, 7.2, 7.9, "compute", "step"),
    (NETWORK, 3.6, 4.9, "communication", "bucket 1"),
    (NETWORK, 4.9, 6.0, "communication", "bucket 2"),
    (NETWORK, 6.2, 7.2, "communication", "bucket 3"),
]


def ddp_step_on_a_gpu() -> Figure:
    """Three lanes: Python runs ahead, the GPU computes, and NCCL sends at the same time."""
    figure, axis = plt.subplots(figsize=(7.2, 2.0))
    lanes = [HOST, COMPUTE, NETWORK]
    for lane, begin, end, kind, said in SPANS:
        y = lanes.index(lane)
        colour = KINDS.get(kind, PALE)
        axis.barh(y, end - begin, left=begin, height=0.62, color=colour, edgecolor="white")
        axis.text((begin + end) / 2, y, said, ha="center", va="center", size=9, color=_ink(kind))
    axis.set_yticks(range(3), lanes)
    axis.set(xticks=[], xlabel="time", xlim=(0, 8), ylim=(2.5, -0.5))
    return figure


def _ink(kind: str) -> str:
    """Black on data in both themes; on pale gray the text follows the theme."""
    return "black" if kind in ("compute", "communication") else INK
