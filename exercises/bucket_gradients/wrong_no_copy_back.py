# says: parameter 6 on rank 0 is still rank 0's alone
# The flat copy is averaged, and nothing is written back.
import torch

from playground.exercises.check import check


def bucket_gradients(group, parameters, most):
    buckets = [[]]
    for parameter in reversed(parameters):
        if buckets[-1] and sum(p.grad.nbytes for p in buckets[-1]) + parameter.grad.nbytes > most:
            buckets.append([])
        buckets[-1].append(parameter)
    for bucket in buckets:
        flat = torch.cat([p.grad.flatten() for p in bucket])
        group.all_reduce(flat, op="avg")


check("bucket_gradients", bucket_gradients)
