"""What the checks of exercises are made of: mistakes known by their numbers, and counted rows."""

from pathlib import Path
from typing import Any

import pytest
import torch
from playground.exercises.silent_bug_2.check import make_model
from playground.exercises.silent_bug_3.check import Data
from torch.nn.functional import cross_entropy

from distributed.runtime.group import Group
from playground.exercises import FOLDER
from playground.exercises import check as checking
from playground.exercises.check import Wrong
from playground.exercises.silent import (
    LR,
    check_replicas,
    copy_of,
    counts,
    difference,
    flat,
    gradient,
    name_of,
    network,
    rows,
    times,
)
from playground.exercises.suspects import expect, normal, recognise


def test_a_mistake_is_known_by_its_number():
    suspects = {"twice": torch.tensor([2.0, 4.0]), "of another shape": torch.tensor([2.0])}
    assert recognise([2.0, 4.0], suspects) == "twice"
    assert recognise(2.0, {"a number": 2.0}) == "a number"
    assert recognise([2.0, 4.1], suspects) == ""
    assert recognise(torch.zeros(0), {"empty": torch.zeros(0)}) == ""
    with pytest.raises(Wrong, match=r"w\[1\] is 4, and should be 2, 2 times it\. twice$"):
        expect("w", torch.tensor([2.0, 4.0]), [1.0, 2.0], suspects)
    with pytest.raises(Wrong, match=r"shape \[1\], not \[2\]$"):
        expect("w", torch.tensor([2.0]), [1.0, 2.0], suspects)
    expect("w", [1.0, 2.0], [1.0, 2.0], suspects)


def test_random_numbers_are_the_same_for_the_same_seed():
    assert normal(3, seed=(1, 2)).equal(normal(3, seed=(1, 2)))
    assert not normal(3, seed=(1, 2)).equal(normal(3, seed=(2, 1)))
    assert normal(seed=(1,)).shape == ()


def test_counts_say_how_often_rows_are_in_a_step():
    start = copy_of(network())
    gradients = [gradient(start, rows(4, rank)) for rank in range(3)]
    moved = 0.5 * gradients[0] + 2 * gradients[2]
    assert counts(moved, gradients) == pytest.approx([0.5, 0, 2], abs=1e-9)
    assert counts(moved + 0.1, gradients) is None
    assert [times(c) for c in (1e-9, 1.0, 1.5)] == ["not at all", "once", "1.5 times"]


def test_replicas_that_differ_are_named():
    states = [copy_of(network()) for _ in range(3)]
    check_replicas(states, "After 1 step")
    states[2]["2.bias"][1] += 0.5
    said = r"After 1 step, on rank 2, 2\.bias\[1\] is .*, on rank 0 .*: a difference of 0\.5\. Then"
    with pytest.raises(Wrong, match=said):
        check_replicas(states, "After 1 step", "Then")
    states[2]["2.bias"][1] = float("nan")
    assert difference(states[2], states[0], "and").startswith("2.bias[1] is nan")


def test_every_weight_has_a_name():
    weights = flat(copy_of(network()))
    assert name_of(0) == "0.weight[0, 0]"
    assert name_of(len(weights) - 1) == "2.bias[2]"
    with pytest.raises(ValueError, match="no such weight"):
        name_of(len(weights))


def program(name: str, stem: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The function that a file gives to its check."""
    given: list[Any] = []
    monkeypatch.setattr(checking, "check", lambda _, answer: given.append(answer))
    path: Path = FOLDER / name / f"{stem}.py"
    exec(compile(path.read_text(), str(path), "exec"), {"__name__": "__main__"})
    return given[0]


def loss_on(model: torch.nn.Module, rank: int) -> float:
    x, labels = rows(24, rank)
    return cross_entropy(model(x), labels).item()


def fall(group: Group, number: int, train: Any) -> tuple[float, float]:
    """The loss of a rank's rows before and after training on them, step by step."""
    model = make_model(0) if number == 2 else network()
    before = loss_on(model.train(), group.rank)
    same = [rows(24, group.rank)] * 40
    if number == 1:
        train(group, model, same, LR)
    elif number == 2:
        model = train(group, make_model, same, LR)
    elif number == 3:
        data = Data()
        data.x, data.labels = rows(24, group.rank)
        train(group, model, data, 8, 10, LR)
    elif number == 4:
        train(group, model, same, LR, 1.0)
    else:
        train(group, model, [[one] for one in same], LR)
    return before, loss_on(model.train(), group.rank)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_the_losses_of_a_broken_program_fall(pools, monkeypatch, number):
    train = program(f"silent_bug_{number}", "starter", monkeypatch)
    for before, after in pools[2](fall, number, train):
        assert after < 0.9 * before
