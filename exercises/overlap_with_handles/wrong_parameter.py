# says: all_reduce of a parameter: reduce its gradient
# The hook gets the parameter, and reduces that.
from playground.exercises.check import check


def backward(group, module, loss):
    handles = []

    def hook(parameter):
        handles.append(group.all_reduce(parameter, op="avg", async_op=True))

    hooks = [p.register_post_accumulate_grad_hook(hook) for p in module.parameters()]
    loss.backward()
    for handle in handles:
        handle.wait()
    for registered in hooks:
        registered.remove()


check("overlap_with_handles", backward)
