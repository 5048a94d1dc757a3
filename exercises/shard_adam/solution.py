import torch

from playground.exercises.check import check


def adam_step(group, w, grad, state, lr, beta1, beta2, eps):
    """One step of Adam on w[N·s], in place, each rank with the states of its own shard."""
    shard = w.chunk(group.size)[group.rank]
    g = group.reduce_scatter(grad, torch.empty_like(shard), "avg")
    if not state:
        state.update(t=0, m=torch.zeros_like(shard), v=torch.zeros_like(shard))
    state["t"] += 1
    m, v, t = state["m"], state["v"], state["t"]
    m.lerp_(g, 1 - beta1)
    v.lerp_(g * g, 1 - beta2)
    shard -= lr * (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + eps)
    group.all_gather(shard.clone(), w)


check("shard_adam", adam_step)
