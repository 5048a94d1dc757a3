"""Losses of programs with a silent bug, each next to those of the program without it.

The programs are the starters and the solutions of the exercises silent_bug_1 to silent_bug_5.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.nn.functional import cross_entropy

from distributed import Group, launch
from playground.exercises import FOLDER
from playground.exercises.silent import LR, Rows, State, copy_of, network, rows
from playground.exercises.silent_bug_2.check import make_model
from playground.exercises.silent_bug_3.check import Data
from playground.exercises.silent_bug_4.check import Late
from playground.show.colours import RANKS

TOGETHER, ROWS, STEPS = 2, 24, 30  # ranks, rows of a batch, batches
BUGS = (1, 2, 3, 4, 5)
# Rows per rank, of the 24 whose loss is shown. Without an entry, each rank has half of them.
SHARES = {1: [6, 18], 2: [4, 4, 16]}
A_IS_WRONG = {1, 4}  # in these panels line A is the program with the bug, in the others line B
Losses = list[float]


def program(number: int, stem: str) -> Callable[..., Any]:
    """`train` of an exercise's starter or solution, without the check on its last line."""
    path = FOLDER / f"silent_bug_{number}" / f"{stem}.py"
    text = path.read_text(encoding="utf-8").rpartition("\ncheck(")[0]
    names: dict[str, Any] = {}
    exec(compile(text, str(path), "exec"), names)
    return names["train"]


class Steps(list):
    """A list that calls `look` before each of its items."""

    def __init__(self, items: list[Any], look: Callable[[], None]):
        super().__init__(items)
        self.look = look

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            self.look()
            yield item


class Looked(Data):
    """Data that call `look` before each access to rows."""

    def __init__(self, look: Callable[[], None]):
        super().__init__()
        self.look = look

    def __getitem__(self, numbers: Any) -> Rows:
        self.look()
        return super().__getitem__(numbers)


def train_one(group: Group, number: int, stem: str) -> tuple[Losses, State]:
    """This rank's loss of all rows, in evaluation, before each step; and what it ends with."""
    train, models, losses = program(number, stem), [network()], []
    x, labels = rows(ROWS, 0)

    def look() -> None:
        with torch.no_grad():
            losses.append(cross_entropy(copy.deepcopy(models[-1]).eval()(x), labels).item())

    def make(seed: int) -> nn.Module:
        models.append(make_model(seed))
        return models[-1]

    sizes = SHARES.get(number, [ROWS // TOGETHER] * TOGETHER)
    share = x.split(sizes)[group.rank], labels.split(sizes)[group.rank]
    steps = Steps([share] * STEPS, look)
    match number:
        case 1:
            train(group, models[0], steps, LR)
        case 2:
            train(group, make, steps, LR)
        case 3:
            train(group, models[0], Looked(look), 8, STEPS // 3, LR)
        case 4:
            train(Late(group), models[0], steps, LR, 0.2)
        case 5:
            halves = [*zip(*(part.split(ROWS // 4) for part in share), strict=True)]
            train(group, models[0], Steps([halves] * STEPS, look), LR)
    return losses, copy_of(models[-1])


def train_all(group: Group) -> dict[tuple[int, str], tuple[Losses, State]]:
    return {
        (number, stem): train_one(group, number, stem)
        for number in BUGS
        for stem in ("starter", "solution")
    }


def train_both_ways() -> list[dict[tuple[int, str], tuple[Losses, State]]]:
    """Each rank's losses and last state of every program, with its bug and without."""
    return launch(train_all, ranks=TOGETHER, device="cpu")


def draw_losses(found: list[dict[tuple[int, str], tuple[Losses, State]]]) -> Figure:
    """Five panels with two lines each: one is the program with the bug, and nothing says which.

    A line is the loss of rank 0's model, and the dots are that of rank 1's.
    """
    figure, axes = plt.subplots(1, len(BUGS), figsize=(7.2, 2.7), sharey=True)
    for axis, number in zip(axes, BUGS, strict=True):
        stems = ["starter", "solution"] if number in A_IS_WRONG else ["solution", "starter"]
        for name, stem, colour, dash in zip("AB", stems, RANKS, ["-", "--"], strict=False):
            mine, others = (of_rank[number, stem][0] for of_rank in found)
            done = torch.linspace(0, 100, len(mine))
            axis.plot(done, mine, dash, color=colour, label=f"line {name}")
            some = slice(len(mine) // 10, None, len(mine) // 5)
            axis.plot(done[some], others[some], "o", color=colour, ms=4)
        axis.set_title(f"program {number}")
        axis.set(xticks=[0, 100], ylim=(0, None))
    axes[0].set_ylabel("loss")
    axes[2].set_xlabel("% of the training")
    axes[0].legend(loc="lower left")
    return figure
