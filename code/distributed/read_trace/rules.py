"""Rules of a fast step as data: what is said when one is broken, what to do, and the page."""

from typing import NamedTuple

FAST = "book/at_scale/is_it_fast"
PAGES = {  # the pages that explain, with their titles
    "book/ddp/overlap": "Overlap",
    "book/ddp/buckets": "Buckets",
    "book/at_scale/is_it_fast": "Is it fast?",
    "book/at_scale/where_it_ends": "Where data parallelism ends",
    "book/training_well/precision": "Mixed precision",
    "book/training_well/send_less": "Send less, wait less",
}


class Rule(NamedTuple):
    """What is said when a rule is broken: what was seen, what to do, and the page that explains."""

    seen: str
    advice: str
    page: str


RULES = {
    "slow rank": Rule(
        "Rank {rank} comes last: it spends {own} of a step in collectives and the others {others}, "
        "most of that waiting for it.{why}",
        "Look at that rank and its host, and not at the network.",
        FAST,
    ),
    "a message for each tensor": Rule(
        "There are {number:.0f} collectives in a step, and {gradients:.0f} gradients: each tensor "
        "is a message of its own, and pays a latency of its own.",
        "Put them into buckets (DDP's bucket_cap_mb), or wrap blocks and not layers (FSDP).",
        "book/ddp/buckets",
    ),
    "exchange in the way": Rule(
        "Most of the exposed communication is {kind}: an exchange between parts of the forward and "
        "backward pass, which data parallelism has not.",
        "Hide it behind the computation of another batch.",
        "book/at_scale/where_it_ends",
    ),
    "more messages than computation": Rule(
        "{sent} of communication cannot hide behind a backward pass of about {backward}."
        "{threshold}",
        "Give each rank more tokens in a step (a larger batch, accumulation), send fewer bytes, or "
        "use more of the network.",
        "book/ddp/overlap",
    ),
    "messages that leave late": Rule(
        "{sent} of communication would fit behind the backward pass, but {exposed} of it is "
        "exposed: the first gradients leave when {done:.0%} of the computation is done.",
        "Look for one large bucket, a wrapper around the whole model only, or prefetching that is "
        "off.",
        "book/ddp/overlap",
    ),
    "loader": Rule(
        "{data} of a step go by while Python waits for the loader.",
        "Try one batch again and again: if that is faster, give the loader workers (num_workers, "
        "pin_memory), or do less in it.",
        FAST,
    ),
    "gaps": Rule(
        "For {gaps} of a step nothing is computed or sent:",
        "Python does what the profiler does not see.",
        FAST,
    ),
    "synchronization": Rule(
        "{gaps} of a step are gaps after Python waited for the GPU{calls}.",
        "Take .item(), print(loss) and torch.cuda.synchronize() out of the loop.",
        FAST,
    ),
    "Python is too slow": Rule(
        "For {gaps} of a step the GPU has nothing to do, because Python asks for its "
        "{kernels:,.0f} kernels too slowly.",
        "Compile the blocks (torch.compile, with mode='reduce-overhead' for CUDA graphs), or give "
        "each kernel more to do: a larger batch. (A profiler slows Python, too: compare with the "
        "step without it.)",
        FAST,
    ),
    "copies": Rule(
        "{copies} of a step are copies with nothing else going on.",
        "Copy from pinned memory with non_blocking=True, while the step before computes.",
        FAST,
    ),
}
