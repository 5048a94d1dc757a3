# says: step 1, rank 0 reduces \d+ numbers for \d+: did hooks
# The hooks are never removed: the second step reduces everything twice.
from playground.exercises.check import check


def backward(group, module, loss):
    handles = []

    def hook(parameter):
        handles.append(group.all_reduce(parameter.grad, op="avg", async_op=True))

    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(hook)
    loss.backward()
    for handle in handles:
        handle.wait()


check("overlap_with_handles", backward)
