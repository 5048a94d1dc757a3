from playground.exercises.check import check


def memory(parameters, ranks, stage, weights, optimizer, master):
    """Bytes that stay on each rank from step to step, without activations and buffers.

    `stage` is 0 (DDP), 1, 2 or 3 of ZeRO. `weights` is "fp32" or "bf16", and gradients are like
    them. `optimizer` is "sgd" (keeps nothing), "momentum" (one number for each parameter) or "adam"
    (two), in fp32. With `master` there is a copy of the weights in fp32, kept with the states.
    """
    raise NotImplementedError


check("memory_on_paper", memory)
