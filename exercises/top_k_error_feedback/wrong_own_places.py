# says: added at rank 0's places
# Values are averaged as if they stood at the same places.
import torch

from playground.exercises.check import check


def top_k_step(group, grad, memory, k):
    """Send the k largest of what is there, keep the rest: mean[n] of what all ranks sent."""
    memory += grad
    places = memory.abs().topk(k).indices
    values = memory[places]
    memory[places] = 0
    return torch.zeros_like(grad).index_copy_(0, places, group.all_reduce(values, "avg"))


check("top_k_error_feedback", top_k_step)
