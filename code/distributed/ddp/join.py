"""Join: ranks that have run out of data take part with zeros until the last rank is done.

Before each step, every rank announces whether it still has a batch. A program only needs
`with model.join():` around its training loop; `DistributedDataParallel` asks a `Join` of this file.
"""

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map_only

from distributed import Group, launch
from distributed.runtime.script import run_script


class Join:
    """Agreement of ranks with more and fewer batches, before each step."""

    def __init__(self, group: Group, divide_by_initial_world_size: bool):
        self.group, self.divide_by_all = group, divide_by_initial_world_size
        self.root = 0  # a rank that made the last step: its weights are the final ones
        self.scale = 1.0  # what the mean over all ranks is multiplied by in this step

    def start_step(self, have_batch: bool) -> bool:
        """Every rank calls this before each step; whether any rank still has a batch."""
        have = torch.zeros(self.group.size, dtype=torch.int64, device=self.group.device)
        have[self.group.rank] = have_batch
        active = self.group.all_reduce(have).nonzero().flatten().tolist()
        if not active:
            return False
        self.root = active[-1]
        if not self.divide_by_all:
            self.scale = self.group.size / len(active)
        return True


def share_optimizer(optimizer: torch.optim.Optimizer, group: Group, root: int) -> None:
    """Rank `root`'s state of the optimizer, on every rank; it travels through host memory.

    A rank that made fewer steps has other moments, and would leave the others' weights with the
    next step.
    """
    state = tree_map_only(torch.Tensor, torch.Tensor.cpu, optimizer.state_dict())
    box = [state if group.rank == root else {}]
    group.queue.wait_turn()
    dist.broadcast_object_list(box, group=group.backend, group_src=root)
    optimizer.load_state_dict(box[0])


def count_steps(group: Group, lengths: list[int]) -> tuple[int, float]:
    """Fit a line to `lengths[rank]` batches; the number of steps, and the final weight."""
    from distributed.ddp import DistributedDataParallel

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False), group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = 0
    with model.join(divide_by_initial_world_size=False):
        for x in torch.ones(lengths[group.rank], 4, 1):
            optimizer.zero_grad()
            (model(x) - 3 * x).square().mean().backward()
            optimizer.step()
            steps += 1
    return steps, next(model.module.parameters()).item()


def main(ranks: int = 3) -> None:
    """Ranks with more and fewer batches end with the same weights."""
    lengths = [2 + 3 * rank for rank in range(ranks)]
    results = launch(count_steps, lengths, ranks=ranks)
    print("steps of each rank:", [steps for steps, _ in results])
    print("weight of each rank:", [round(weight, 4) for _, weight in results])
    assert len({weight for _, weight in results}) == 1


if __name__ == "__main__":
    run_script(main)
