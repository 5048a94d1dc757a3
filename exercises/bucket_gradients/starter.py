import torch

from playground.exercises.check import check


def bucket_gradients(group, parameters: list[torch.nn.Parameter], most):
    """dW[...]{partial over ranks} → dW[...] = Σ over ranks / N of every parameter, in buckets.

    Go from the last parameter to the first. A bucket flat[n] takes gradients as long as it has at
    most `most` bytes; a gradient larger than that gets a separate bucket. All-reduce each bucket
    once, group.all_reduce(flat, op="avg"), and copy the results back into parameter.grad.
    """
    raise NotImplementedError


check("bucket_gradients", bucket_gradients)
