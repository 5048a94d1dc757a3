from playground.exercises.check import check


def memory(parameters, ranks, stage, weights, optimizer, master):
    """Bytes that each rank keeps from step to step, without activations and buffers.

    `stage` is 0 (DDP), 1, 2, or 3 (ZeRO). `weights` is "fp32" or "bf16", and the gradients have the
    same dtype. `optimizer` is "sgd" (keeps nothing), "momentum" (one fp32 number per parameter), or
    "adam" (two). If `master` is true, the optimizer also keeps an fp32 copy of the weights.
    """
    raise NotImplementedError


check("memory_on_paper", memory)
