from playground.exercises.check import check


def choose(case):
    """The name of a strategy: "DDP", "ZeRO-1", "ZeRO-2", "HSDP", or "ZeRO-3".

    `case.options` lists the strategies that the cluster allows, simplest first. Each has a `name`,
    the bytes that it `needs` on each GPU, and its `step.total`, in seconds. `case.memory` is a
    GPU's memory, in bytes. Follow the rule of the page "Which strategy", with these numbers: a
    tenth of the memory has to stay free, and a step that takes at most 2% longer is as fast.

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
