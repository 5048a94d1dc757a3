"""The algorithms of all-reduce run where there is no array library, and send the same there."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import distributed
from distributed.instruments.algorithms import ALGORITHMS, SENT
from distributed.workbench.threads import add, numbers, run_in_threads


@given(
    ranks=st.integers(1, 9),
    n=st.integers(0, 40),
    name=st.sampled_from([*ALGORITHMS]),
)
def test_every_algorithm_runs_on_lists_and_threads(ranks, n, name):
    def sum_up(group):
        x = numbers([(group.rank + 1) * (i + 1) for i in range(n)])
        ALGORITHMS[name](group, x, add)
        return x.tolist(), (group.trace.sent // x.itemsize, group.trace.messages)

    of_all = ranks * (ranks + 1) // 2
    for rank, (total, sent) in enumerate(run_in_threads(sum_up, ranks)):
        assert total == [of_all * (i + 1) for i in range(n)]
        assert sent == SENT[name](n, rank, ranks)


def test_an_error_of_one_rank_is_raised_and_the_others_are_not_waited_for():
    def fail(group):
        if group.rank == 1:
            raise ValueError("rank 1")
        group.receive(numbers([0]), 1)

    with pytest.raises(ValueError, match="rank 1"):
        run_in_threads(fail, 3)


def test_the_algorithms_need_no_array_library():
    """They run in a Python in which nothing is installed, as in a browser's."""
    program = """
import sys
sys.path[:] = [path for path in sys.path if "site-packages" not in path] + [sys.argv[1]]
from distributed.instruments.algorithms import ALGORITHMS
from distributed.workbench.threads import add, numbers, run_in_threads

def sum_up(group):
    x = numbers([group.rank, 10])
    algorithm(group, x, add)
    return x.tolist()

for algorithm in ALGORITHMS.values():
    assert run_in_threads(sum_up, 3) == [[3, 30]] * 3
assert not {"torch", "numpy"} & sys.modules.keys()
"""
    code = str(Path(distributed.__file__).parents[1])
    command = [sys.executable, "-I", "-S", "-c", program, code]
    subprocess.run(command, check=True, timeout=60)
