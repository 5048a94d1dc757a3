# says: 1.bias is frozen and has no gradient
# A frozen parameter has no gradient to average.
from playground.exercises.check import check


def share(module, group):
    for tensor in [*module.parameters(), *module.buffers()]:
        group.broadcast(tensor.data)


def average(module, group):
    for parameter in module.parameters():
        group.all_reduce(parameter.grad, op="avg")


check("manual_ddp", share, average)
