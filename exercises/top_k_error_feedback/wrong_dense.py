# says: sends \d+ bytes in a step
# Zeros are sent, too.
import torch

from playground.exercises.check import check


def top_k_step(group, grad, memory, k):
    """Send the k largest of what is there, keep the rest: mean[n] of what all ranks sent."""
    memory += grad
    places = memory.abs().topk(k).indices
    values = memory[places]
    memory[places] = 0
    sent = torch.zeros_like(grad).index_copy_(0, places, values)
    return group.all_reduce(sent, "avg")


check("top_k_error_feedback", top_k_step)
