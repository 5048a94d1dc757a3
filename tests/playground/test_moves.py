"""Figures of the collectives in which parts move: what the steps show is what the code did."""

import pytest

from playground.show.moves import MOVES, run_of, step_through
from playground.show.shapes import states


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
@pytest.mark.parametrize("name", MOVES)
def test_the_last_step_shows_what_the_collective_leaves(name: str, ranks: int) -> None:
    run, shape = run_of(name, ranks), MOVES[name]
    before, after = states(shape, ranks)
    assert run.arrays[0] == before
    last = run.arrays[-1]
    kept = [
        [bits * shape.keeps(rank, i) for i, bits in enumerate(row)] for rank, row in enumerate(last)
    ]
    assert kept == after
    assert any(bits.bit_count() > 1 for row in last for bits in row) == shape.sums


@pytest.mark.parametrize(("name", "sent", "steps"), [("scatter", 0.75, 3), ("all-gather", 0.75, 3)])
def test_words_count_what_is_sent_and_add_nothing(name: str, sent: float, steps: int) -> None:
    run = run_of(name, 4)
    assert max(run.sent(rank) for rank in range(4)) == sent
    assert run.last == steps
    words = [run.caption(step) for step in range(1, steps + 1)]
    assert all("Receivers keep what arrives." in line for line in words)
    assert words[-1].endswith(f"The busiest rank has sent {sent:.2f} arrays.")


def test_a_figure_has_a_run_for_each_number_of_ranks() -> None:
    assert [run.ranks for run in step_through("gather").runs] == [*range(2, 9)]
