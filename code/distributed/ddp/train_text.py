"""A real training run: a small transformer learns to spell numbers, on any number of ranks.

    python -m distributed.ddp.train_text --ranks 2 --steps 1500 --checkpoint run.pt

trains, shows what it learned, and continues from its checkpoint if it is started again. The same
batch on 1, 2 or 4 ranks gives the same losses, but for rounding.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from distributed import Group, launch
from distributed.ddp import DistributedDataParallel
from distributed.runtime.script import run_script
from distributed.workbench.number_names import lines, name_of, split
from distributed.workbench.transformer import CharTransformer, Config, Text, make_model, text_loss

BETAS = 0.9, 0.99  # of AdamW


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint so that a crash at any moment leaves the one before, or this, whole."""
    beside = path.with_name(f"{path.name}.new")
    with beside.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)  # one step, for whoever opens it


def rows_of_steps(text: Text, config: Config, batch: int, generator: torch.Generator) -> Iterator:
    """Batches x[b, t + 1] without end; what comes next is the generator's state alone."""
    while True:
        starts = torch.randint(len(text.data) - config.t, (batch,), generator=generator)
        yield torch.stack([text.data[start : start + config.t + 1] for start in starts.tolist()])


def train(
    group: Group,
    written: str,
    steps: int,
    batch: int,
    checkpoint: str = "",
    save_every: int = 50,
    learning_rate: float = 3e-3,
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Train up to `steps` steps, from the checkpoint if there is one; all losses, final weights."""
    text = Text(written)
    config = Config(v=len(text.characters))
    module = make_model(config).to(group.device)
    model = DistributedDataParallel(module, group)
    optimizer = torch.optim.AdamW(module.parameters(), lr=learning_rate, betas=BETAS)
    generator = torch.Generator().manual_seed(0)
    losses: list[float] = []
    path = Path(checkpoint)
    if checkpoint and path.exists():
        state = torch.load(path, map_location=group.device)
        module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        generator.set_state(state["generator"].cpu())
        model.use_order(state["order"])  # else sums are made in another order, and bits differ
        losses = state["losses"]

    batches = rows_of_steps(text, config, batch, generator)
    for step in tqdm(range(len(losses), steps), disable=group.rank > 0, mininterval=0.5):
        rows = next(batches).chunk(group.size)[group.rank].to(group.device)
        optimizer.zero_grad()
        loss = text_loss(model, rows)
        loss.backward()
        optimizer.step()
        losses.append(group.all_reduce(loss.detach().clone(), "avg").item())
        if checkpoint and group.rank == 0 and (step + 1) % save_every == 0:
            state = {"model": module.state_dict(), "optimizer": optimizer.state_dict()}
            state |= {"generator": generator.get_state(), "order": model.order()}
            save(path, state | {"losses": losses})
    return losses, {name: tensor.cpu() for name, tensor in module.state_dict().items()}


@torch.no_grad()
def spell(model: CharTransformer, text: Text, n: int) -> str:
    """What the model takes for the name of n: at each place its most likely character."""
    line = text.encode(f"\n{n} ")
    start = len(line)
    while len(line) < start + model.config.t:
        best = model(line[None, -model.config.t :])[0, -1].argmax()
        if text.characters[best] == "\n":
            break
        line = torch.cat([line, best[None]])
    return text.decode(line[start:])


def share_right(model: CharTransformer, text: Text, numbers: list[int]) -> float:
    """Of these numbers, the share that the model spells without a mistake."""
    return sum(spell(model, text, n) == name_of(n) for n in numbers) / len(numbers)


def main(
    ranks: int = 2,
    steps: int = 60,
    batch: int = 64,
    checkpoint: str = "",
    save_every: int = 50,
    device: str = "auto",
) -> None:
    """Train on numbers and their names; show the loss, and how it spells numbers it never saw."""
    if batch % ranks:
        raise ValueError(f"batch={batch}: {ranks} ranks need a multiple, so that shards are equal")
    if steps < 1 or save_every < 1:
        raise ValueError(f"steps={steps}, save_every={save_every}: 1 or more of each")
    if checkpoint and not Path(checkpoint).absolute().parent.is_dir():
        raise ValueError(f"checkpoint={checkpoint!r}: there is no such folder")
    written = lines()
    losses, weights = launch(
        train, written, steps, batch, checkpoint, save_every,
        ranks=ranks, device=device, timeout=None,
    )[0]  # fmt: skip
    text = Text(written)
    model = CharTransformer(Config(v=len(text.characters)))
    model.load_state_dict(weights)
    print(f"loss {losses[0]:.3f} → {losses[-1]:.3f} after {len(losses)} steps")
    _, unseen = split()
    for n in unseen[:3]:
        print(f"{n}: {spell(model, text, n)}")
    print(f"of 20 numbers that it never saw it spells {share_right(model, text, unseen[:20]):.0%}")
    assert losses[-1] < losses[0]


if __name__ == "__main__":
    run_script(main)
