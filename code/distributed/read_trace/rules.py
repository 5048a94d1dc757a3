"""Rules of a fast step as data: what is said when one is broken, what to do, and the page.

The advice of some rules depends on what the trace shows, such as whether the model's kernels are
compiled already: that is in ADVICE.
"""

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


PROFILED = "(The profiler slows Python down, too: compare with a step without it.)"


class Rule(NamedTuple):
    """What is said when a rule is broken: what was seen, what to do, and the page that explains."""

    seen: str
    advice: str
    page: str


RULES = {
    "slow rank": Rule(
        "Rank {rank} comes last: it spends {own} of each step in collectives, while the others "
        "spend {others} there, mostly waiting for it.{why}",
        "Check that rank and its host, not the network.",
        FAST,
    ),
    "a message for each tensor": Rule(
        "There are {number:.0f} collectives in a step, and {gradients:.0f} gradients: each tensor "
        "is its own message and pays its own latency.",
        "Put the gradients into buckets, as DDP does (bucket_cap_mb).",
        "book/ddp/buckets",
    ),
    "exchange in the way": Rule(
        "Most of the exposed communication is {kind}: parts of the model exchange data within the "
        "forward and backward pass, which data parallelism doesn't do.",
        "Hide it behind the computation of a different batch.",
        "book/at_scale/where_it_ends",
    ),
    "activations in the way": Rule(
        "In a step, {early:.0f} of {number:.0f} reductions come from the forward pass. They reduce "
        "activations, as tensor parallelism does, and the next layer waits for them.",
        "Keep tensor parallelism within a host and on as few GPUs as the model needs, and use data "
        "parallelism for the rest.",
        "book/at_scale/where_it_ends",
    ),
    "more messages than computation": Rule(
        "{sent} of communication can't be hidden behind a backward pass of about {backward}."
        "{threshold}",
        "Give each rank more tokens in a step (a larger batch, accumulation), send fewer bytes, or "
        "use more of the network.",
        "book/ddp/overlap",
    ),
    "messages that leave late": Rule(
        "{sent} of communication could be hidden behind the backward pass, but {exposed} of it is "
        "exposed: the first gradients leave when {done:.0%} of the computation is done.",
        "Look for one large bucket (bucket_cap_mb), or for gradients that are reduced only after "
        "the backward pass.",
        "book/ddp/overlap",
    ),
    "loader": Rule(
        "Python waits for the data loader for {data} of each step.",
        "Train on the same batch again and again: if that is faster, give the loader more workers "
        "(num_workers, pin_memory), or do less work in it.",
        FAST,
    ),
    "gaps": Rule(
        "Nothing is computed or sent for {gaps} of each step.",
        "Python is busy with something that the profiler doesn't see.",
        FAST,
    ),
    "synchronization": Rule(
        "{gaps} of each step are gaps that follow when Python waits for the GPU{calls}.",
        "Take .item(), print(loss) and torch.cuda.synchronize() out of the loop.",
        FAST,
    ),
    "pauses": Rule(
        "The GPU is idle for {gaps} of each step, in pauses of more than 5 ms each. Launching a "
        "kernel doesn't take that long, so Python is busy with something else.",
        "Look at Python's rows in the trace (with_stack=True adds its functions): it may load, "
        "log, compile, or collect garbage.",
        FAST,
    ),
    "Python is too slow": Rule(
        "The GPU is idle for {gaps} of each step, because Python launches its {kernels:,.0f} "
        "kernels too slowly.",
        "Compile the model (torch.compile, with mode='reduce-overhead' for CUDA graphs), or give "
        f"each kernel more work with a larger batch. {PROFILED}",
        FAST,
    ),
    "copies": Rule(
        "{copies} of each step are copies during which the GPU does nothing else.",
        "Copy from pinned memory with non_blocking=True, while the previous step computes.",
        FAST,
    ),
}
ADVICE = {  # (rule, what the trace shows) → what to do instead of the rule's advice
    ("Python is too slow", "compiled"): (
        "Its kernels are compiled already: capture them in CUDA graphs (torch.compile with "
        "mode='reduce-overhead'), look for graph breaks (TORCH_LOGS=graph_breaks), or use a "
        f"larger batch. {PROFILED}"
    ),
    ("Python is too slow", "transformer"): (
        "Compile the blocks (torch.compile, with mode='reduce-overhead' for CUDA graphs), or give "
        f"each kernel more work with a larger batch. {PROFILED}"
    ),
    ("Python is too slow", "recommender"): (
        "Use a larger batch, prepare the lookups of the next batch while this one computes, and "
        f"compile the dense layers, but not the embedding tables. {PROFILED}"
    ),
    ("a message for each tensor", "sharded"): "Wrap blocks, and not layers (fully_shard).",
    ("more messages than computation", "sharded"): (
        "Give each rank more tokens in a step (a larger batch), keep the gathered parameters until "
        "the backward pass if they fit (reshard_after_forward=False), or shard within a host only."
    ),
    ("messages that leave late", "sharded"): (
        "Look for a wrapper around the whole model only, or for prefetching that is off "
        "(set_modules_to_forward_prefetch)."
    ),
    ("copies", "DtoH"): (
        "They go to the host: log less often, and copy with non_blocking=True to pinned memory."
    ),
    ("copies", "DtoD"): (
        "They stay on the GPU: look for .contiguous(), torch.cat and .clone() that you can remove."
    ),
}
COMPUTE = {  # hints about the kernels that compute, by what they are
    "fp32": "{share:.0%} are matrix products without tensor cores: use bf16, or TF32",
    "fp32 on V100": "{share:.0%} are matrix products without tensor cores: use fp16 (autocast)",
    "fusible": "{share:.0%} are elementwise operations, norms and reductions: torch.compile "
    "fuses them",
}
