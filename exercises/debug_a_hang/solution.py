import torch

from playground.exercises.check import check


def train(group, batches, good):
    fewest = torch.tensor([len(batches)])
    group.all_reduce(fewest, "min")
    w, log = torch.zeros(1, dtype=torch.float64), []
    for step, x in enumerate(batches[: fewest.item()]):
        loss = (w - x).square().mean().reshape(1)
        gradient = 2 * (w - x.mean())
        group.all_reduce(gradient, "avg")
        w -= 0.1 * gradient
        group.all_reduce(loss, "avg")  # on every rank, although only one logs it
        if step % 2 == 0 and group.rank == 0:
            log.append(loss.item())
        if loss < good:
            break
    return w, log


check("debug_a_hang", train)
