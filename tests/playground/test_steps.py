"""A recorded run: every message that was sent, in the steps that they really needed."""

import json
import re
import sys
from html import unescape

import pytest

from distributed.all_reduce import ring
from distributed.halving_doubling import halving_doubling
from distributed.simple_all_reduces import central, tree
from distributed.trees import double_tree
from distributed.workbench.measure import count
from playground.show.steps import record


@pytest.mark.parametrize("algorithm", [central, tree, ring, halving_doubling, double_tree])
@pytest.mark.parametrize(
    "ranks", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 4)), 5]
)
def test_a_record_has_every_message_and_ends_with_all_numbers_everywhere(pools, algorithm, ranks):
    (steps,) = record(algorithm, ranks).runs
    sent = pools[ranks](count, ranks, algorithm)  # by the rank's own counter
    for rank in range(ranks):
        mine = [message for message in steps.messages if message.sender == rank]
        numbers = sum(message.end - message.start for message in mine)
        assert (numbers, len(mine)) == sent[rank]
    assert steps.arrays[0] == [[1 << rank] * ranks for rank in range(ranks)]
    assert steps.arrays[-1] == [[(1 << ranks) - 1] * ranks] * ranks


def test_the_ring_needs_two_times_n_minus_1_steps_first_adding_then_copying():
    (steps,) = record(ring, 4).runs
    by_step = [[m for m in steps.messages if m.step == step] for step in range(1, 7)]
    assert steps.last == 6
    assert all(len(messages) == 4 for messages in by_step), "all ranks send in every step"
    assert [{m.adds for m in messages} for messages in by_step] == [{True}] * 3 + [{False}] * 3


def test_a_tree_needs_two_times_log2_n_steps_and_nobody_acts_twice_in_one(capsys):
    (steps,) = record(tree, 8).runs
    assert capsys.readouterr().out == "", "starting ranks is no part of the figure"
    assert steps.last == 6
    for step in range(1, 7):
        busy = [rank for m in steps.messages if m.step == step for rank in (m.sender, m.to)]
        assert len(busy) == len(set(busy))


def test_the_figure_says_in_words_what_it_draws():
    steps = record(ring, 2)
    assert repr(steps).splitlines() == [
        "Before step 1 of 2: every rank has its own numbers, in its color.",
        "Step 1 of 2: 0 → 1, 1 → 0. Receivers add what arrives.",
        "Step 2 of 2: 0 → 1, 1 → 0. Receivers keep what arrives. Now 4 of 4 parts are complete. "
        "The busiest rank has sent 1.00 arrays.",
    ]
    assert steps._repr_html_().count("<li>") == 3, "there without scripts, too"


def test_ranks_with_a_single_number_each_are_told_so():
    steps = record(tree, 2, parts=1)
    first, *_, last = repr(steps).splitlines()
    assert first == "Before step 1 of 2: every rank has a number of its own, in its color."
    assert last.endswith("Now 2 of 2 ranks have the sum.")
    assert steps.first.arrays == [[[1], [2]], [[3], [2]], [[3], [3]]]


def has_matplotlib(group):
    return "matplotlib" in sys.modules  # with all that this module imports


def test_ranks_of_a_figure_start_without_matplotlib(pools):
    assert pools[2](has_matplotlib) == [False, False]


@pytest.fixture(scope="module")
def rings():
    return record(ring, range(2, 5), start=3)


def test_the_busiest_rank_of_a_ring_sends_what_the_formula_says(rings):
    for run in rings.runs:
        assert run.sent(0) == pytest.approx(2 * (run.ranks - 1) / run.ranks)
        assert all(run.sent(rank) == run.sent(0) for rank in range(run.ranks))


def test_a_figure_of_several_runs_has_them_all_and_opens_with_one(rings):
    html = rings._repr_html_()
    (data,) = re.findall(r'data-steps="([^"]*)"', html)
    figure = json.loads(unescape(data))
    assert figure["start"] == 3
    assert [*figure["runs"]] == ["2", "3", "4"]
    for ranks, run in figure["runs"].items():
        assert len(run["arrays"]) == len(run["words"]) == 2 * int(ranks) - 1
        assert len(run["messages"]) == int(ranks) * (2 * int(ranks) - 2)
    assert "Before step 1 of 4" in html, "the words are those of the run that it opens with"
