"""What the checks of exercises are made of: mistakes known by their numbers, and counted rows."""

import matplotlib.pyplot as plt
import pytest
import torch

from playground.exercises.check import Wrong
from playground.exercises.silent import (
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
from playground.show.silent_losses import A_IS_WRONG, BUGS, draw_losses, train_all


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


@pytest.mark.parametrize(("right", "near", "off"), [(1e6, 5e-4, 2e-3), (0.5, 5e-10, 2e-9)])
def test_a_difference_counts_beside_the_size_of_a_number_above_1(right, near, off):
    def said(found):
        states = ({"w": torch.tensor([1.0, x], dtype=torch.float64)} for x in (found, right))
        return difference(*states, "and should be")

    assert said(right + near) == said(right - near) == ""
    assert said(right + off).startswith("w[1] is ")
    assert said(float("nan")).startswith("w[1] is nan")


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


@pytest.fixture(scope="module")
def trained(pools):
    """What each rank finds in every program, with its bug and without."""
    return pools[2](train_all)


@pytest.mark.parametrize("number", BUGS)
def test_the_losses_of_a_broken_program_fall(trained, number):
    losses, _ = trained[0][number, "starter"]
    assert losses[-1] < 0.9 * losses[0]


def test_only_one_of_the_bugs_shows_in_the_replicas(trained):
    each = {key: [of_rank[key][1] for of_rank in trained] for key in trained[0]}
    apart = [key for key, (a, b) in each.items() if not all(a[name].equal(b[name]) for name in a)]
    assert apart == [(2, "starter")]


def test_each_bug_can_be_seen_in_its_panel(trained):
    """In the losses of both programs, or in those of two ranks that train with one of them."""
    mine, others = ({key: losses for key, (losses, _) in of_rank.items()} for of_rank in trained)
    for number in BUGS:
        off = abs(mine[number, "starter"][-1] / mine[number, "solution"][-1] - 1)
        apart = abs(others[number, "starter"][-1] / mine[number, "starter"][-1] - 1)
        assert max(off, apart) > 0.01, number
        assert (apart > 0.1) == (number == 2)
        assert others[number, "solution"] == mine[number, "solution"]


def test_panels_have_a_right_and_a_wrong_line_each(trained):
    figure = draw_losses(trained)
    for number, axis in zip(BUGS, figure.axes, strict=True):
        wrong, dots = axis.lines[0:2] if number in A_IS_WRONG else axis.lines[2:4]
        losses, of_rank_1 = (of_rank[number, "starter"][0] for of_rank in trained)
        assert list(wrong.get_ydata()) == losses
        assert set(dots.get_ydata()) <= set(of_rank_1)
    plt.close(figure)
