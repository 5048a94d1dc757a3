# says: the parameter 0.weight of rank 0 is the mean of all ranks
# It averages the starts instead of taking that of rank 0.
from playground.exercises.check import check


def share(module, group):
    for tensor in module.parameters():
        group.all_reduce(tensor.data, op="avg")
    for tensor in module.buffers():
        group.broadcast(tensor)


def average(module, group):
    for parameter in module.parameters():
        if parameter.grad is not None:
            group.all_reduce(parameter.grad, op="avg")


check("manual_ddp", share, average)
