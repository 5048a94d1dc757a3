# says: the sum over the ranks, 3 times the mean.*Look at line \d+: group.all_reduce
# The gradients are added, and nobody divides.
from playground.exercises.check import check


def share(module, group):
    for tensor in [*module.parameters(), *module.buffers()]:
        group.broadcast(tensor.data)


def average(module, group):
    for parameter in module.parameters():
        if parameter.grad is not None:
            group.all_reduce(parameter.grad)


check("manual_ddp", share, average)
