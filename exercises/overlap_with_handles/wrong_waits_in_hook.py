# says: waits for an all-reduce before the backward of layer 0
# The hook waits for the all-reduce that it has started.
from playground.exercises.check import check


def backward(group, module, loss):
    def hook(parameter):
        group.all_reduce(parameter.grad, op="avg", async_op=True).wait()

    hooks = [p.register_post_accumulate_grad_hook(hook) for p in module.parameters()]
    loss.backward()
    for registered in hooks:
        registered.remove()


check("overlap_with_handles", backward)
