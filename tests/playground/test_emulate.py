"""Ranks that are threads record what real ranks record."""

import pytest

from distributed.instruments.algorithms import ALGORITHMS
from playground.show import emulate, steps


@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param(of, id=name, marks=() if name in ("ring", "tree") else pytest.mark.slow)
        for name, of in ALGORITHMS.items()
    ],
)
def test_threads_record_what_processes_record(algorithm):
    of_threads, of_processes = (module.record(algorithm, 4) for module in (emulate, steps))
    assert of_threads.runs == of_processes.runs


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_every_number_of_ranks_ends_with_all_numbers_everywhere(algorithm):
    for run in emulate.record(algorithm, range(2, 9)).runs:
        assert run.arrays[-1] == [[(1 << run.ranks) - 1] * run.ranks] * run.ranks


def test_an_error_of_one_rank_is_raised():
    def wrong(group, x, combine):
        if group.rank == 1:
            raise ValueError("not today")

    with pytest.raises(ValueError, match="not today"):
        emulate.record(wrong, 2)
