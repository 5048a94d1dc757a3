from playground.exercises.check import check


def choose(case):
    """The name of a strategy: "DDP", "ZeRO-1", "ZeRO-2", "HSDP", or "ZeRO-3".

    `case.options` lists the strategies that the cluster allows, from the simplest on. Each has a
    `name`, the bytes that it `needs` on each GPU, and its `step.total`, in seconds. `case.memory`
    is a GPU's memory, in bytes. Follow the planner's rule:

        1. A strategy fits if it leaves a tenth of the memory free.
        2. Of those that fit, find the fastest. All that take at most 2% longer are tied with it.
        3. Of those tied, take DDP, or else ZeRO-1, or else the one that needs the least memory.

    The first five cases: H100s with 80 GB, 2,048 tokens per GPU, recomputed activations, and
    PyTorch's recipe.

        a small model on one host         1 billion parameters,  8 GPUs
        seventy billion, fast network    70 billion parameters, 64 GPUs, 400 GB/s per host
        three billion, slow network       3 billion parameters, 64 GPUs,  25 GB/s per host
        seven billion on one host         7 billion parameters,  8 GPUs
        thirty billion, faster network   30 billion parameters, 64 GPUs, 100 GB/s per host
    """
    raise NotImplementedError


check("choose_a_strategy", choose)
