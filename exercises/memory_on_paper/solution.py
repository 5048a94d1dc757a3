from playground.exercises.check import check


def memory(parameters, ranks, stage, weights, optimizer, master):
    """Bytes that each rank keeps: p + g + master + states. Each stage divides one more of them."""
    p = g = {"fp32": 4, "bf16": 2}[weights]
    states = 4 * {"sgd": 0, "momentum": 1, "adam": 2}[optimizer] + 4 * master
    each = states / ranks if stage >= 1 else states
    each += g / ranks if stage >= 2 else g
    each += p / ranks if stage >= 3 else p
    return parameters * each


check("memory_on_paper", memory)
