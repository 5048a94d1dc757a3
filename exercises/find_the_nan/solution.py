import torch

from playground.exercises.check import check


def find(group, tensors):
    """The minimum over the ranks of index · N + rank, which says both."""
    none = len(tensors)
    own = next((i for i, x in enumerate(tensors) if not x.isfinite().all()), none)
    first = torch.tensor([own * group.size + group.rank])
    group.all_reduce(first, "min")
    index, rank = divmod(first.item(), group.size)
    return None if index == none else (index, rank)


check("find_the_nan", find)
