"""A recorded run: every message that was sent, in the steps that they really needed."""

import pytest

from distributed.all_reduce import central, ring, tree
from distributed.double_tree import double_tree
from distributed.halving_doubling import halving_doubling
from distributed.workbench.measure import count
from distributed.world import launch
from playground.show.steps import record


@pytest.mark.parametrize("algorithm", [central, tree, ring, halving_doubling, double_tree])
@pytest.mark.parametrize("ranks", [1, 2, 4, 5])
def test_a_record_has_every_message_and_ends_with_all_numbers_everywhere(algorithm, ranks):
    steps = record(algorithm, ranks)
    sent = launch(count, ranks, algorithm, ranks=ranks, device="cpu")  # by the rank's own counter
    for rank in range(ranks):
        mine = [message for message in steps.messages if message.sender == rank]
        numbers = sum(message.end - message.start for message in mine)
        assert (numbers, len(mine)) == sent[rank]
    assert steps.arrays[0] == [[1 << rank] * ranks for rank in range(ranks)]
    assert steps.arrays[-1] == [[(1 << ranks) - 1] * ranks] * ranks


def test_the_ring_needs_two_times_n_minus_1_steps_first_adding_then_copying():
    steps = record(ring, 4)
    by_step = [[m for m in steps.messages if m.step == step] for step in range(1, 7)]
    assert steps.last == 6
    assert all(len(messages) == 4 for messages in by_step), "all ranks send in every step"
    assert [{m.adds for m in messages} for messages in by_step] == [{True}] * 3 + [{False}] * 3


def test_a_tree_needs_two_times_log2_n_steps_and_nobody_acts_twice_in_one():
    steps = record(tree, 8)
    assert steps.last == 6
    for step in range(1, 7):
        busy = [rank for m in steps.messages if m.step == step for rank in (m.sender, m.to)]
        assert len(busy) == len(set(busy))


def test_the_figure_says_in_words_what_it_draws():
    steps = record(ring, 2)
    html = steps._repr_html_()
    assert html.count("<figure") == html.count("<svg") == 3
    assert "Step 1 of 2. Receivers add. Rank 0 sends part 1 to rank 1, rank 1 sends" in html
    assert "4 of 4 parts have all ranks&#x27; numbers" in html
    assert repr(steps).count("\n") == 2
