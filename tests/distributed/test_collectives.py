"""The other collectives: what they make, what they send, and the table that times them."""

import json
import os
import subprocess
import sys
from array import array
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from bench.sweep import in_turns
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from distributed import collectives, trees
from distributed.collectives import SENT
from distributed.instruments.algorithms import ALGORITHMS
from distributed.instruments.collective_times import GROUPS, OPS
from distributed.ring_group import RingGroup
from distributed.runtime.arrays import COMBINE
from distributed.runtime.report import RankError
from distributed.runtime.script import to_bytes
from distributed.runtime.trace import Trace
from distributed.trees import tree_broadcast, tree_reduce
from distributed.workbench import measure, threads
from distributed.workbench.measure import buffers, fit, is_right

ROOT = Path(__file__).parents[2]
IN_PLACE = {
    "broadcast": {"linear": trees.linear_broadcast, "tree": tree_broadcast},
    "reduce": {"linear": trees.linear_reduce, "tree": tree_reduce},
}


def traced(group, op, algorithm, arrays, dtype, root, reduction, background):
    """One collective on this rank's array: what it made, and what was sent."""
    x = torch.from_numpy(arrays[group.rank].copy()).to(getattr(torch, dtype))
    part = x.view(group.size, -1)[group.rank].clone() if op not in IN_PLACE else x
    combine, out = COMBINE[reduction], torch.zeros_like(x)
    if op in IN_PLACE:
        out, arguments = x, [x, root] if op == "broadcast" else [x, combine, root]
        work = IN_PLACE[op][algorithm]
    elif op in ("scatter", "reduce_scatter"):
        out = torch.zeros_like(part)
        work, arguments = getattr(collectives, op), [x, out, root if op == "scatter" else combine]
    else:
        give = x if op == "all_to_all" else part
        work, arguments = getattr(collectives, op), [give, out, *[root] * (op == "gather")]
    group.trace = trace = Trace(group.rank)
    if background:
        assert group.in_background(out, lambda aside: work(aside, *arguments)).wait() is out
    else:
        work(group, *arguments)
    group.trace = None
    return out.to(torch.float64).numpy(), (trace.sent // x.itemsize, trace.messages)


@given(
    ranks=st.integers(1, 8),
    n=st.integers(0, 300),
    which=st.sampled_from([*SENT]),
    dtype=st.sampled_from(["float64", "float32", "float16", "bfloat16", "int64"]),
    reduction=st.sampled_from(["sum", "max", "min", "prod"]),
    background=st.booleans(),
    data=st.data(),
)
def test_every_collective_is_what_numpy_says_and_sends_what_its_formula_says(
    pools, ranks, n, which, dtype, reduction, background, data
):
    op, algorithm = which
    root = data.draw(st.integers(0, ranks - 1))
    n -= n % ranks if op not in IN_PLACE else 0
    # Of these, sums and products of eight are exact in every dtype.
    arrays = np.random.default_rng(n).choice([-2, -1, 1, 2], (ranks, n))
    total = getattr(np, reduction)(arrays, axis=0)
    named = "product" if reduction == "prod" else reduction
    results = pools[ranks](traced, op, algorithm, arrays, dtype, root, named, background)
    parts = [slice(n * rank // ranks, n * (rank + 1) // ranks) for rank in range(ranks)]
    gathered = np.concatenate([mine[part] for mine, part in zip(arrays, parts, strict=True)])
    for rank, (out, sent) in enumerate(results):
        expected = {
            "broadcast": arrays[root],
            "reduce": total if rank == root else None,
            "scatter": arrays[root, parts[rank]],
            "gather": gathered if rank == root else np.zeros(n),
            "reduce_scatter": total[parts[rank]],
            "all_gather": gathered,
            "all_to_all": arrays[:, parts[rank]].reshape(-1),
        }[op]
        if expected is not None:
            np.testing.assert_array_equal(out, expected)
        # The formulas take the root as rank 0.
        no_root = op in ("reduce_scatter", "all_gather", "all_to_all")
        place = rank if no_root else (rank - root) % ranks
        assert sent == SENT[which](n, place, ranks)


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_a_ring_group_is_a_group_that_counts(pools, ranks, async_op):
    def all_four(group, async_op):
        rings = RingGroup(group)
        done = (lambda handle: handle.wait()) if async_op else (lambda result: result)
        x = torch.arange(12.0) + group.rank
        rings.trace = trace = Trace(group.rank)
        part = done(rings.reduce_scatter(x.clone(), torch.empty(12 // group.size), "avg", async_op))
        whole = done(rings.all_gather(part, torch.empty(12), async_op))
        mean = done(rings.all_reduce(x.clone(), "avg", async_op))
        last = done(rings.broadcast(x.numpy().copy(), group.size - 1, async_op))
        return whole.tolist(), mean.tolist(), last.tolist(), trace.sent, trace.handed_over

    mean = [i + (ranks - 1) / 2 for i in range(12)]
    total = 0
    for whole, reduced, last, sent, handed_over in pools[ranks](all_four, async_op):
        assert whole == reduced == mean
        assert last == [i + ranks - 1 for i in range(12)]
        assert handed_over == 0, "only messages"
        total += sent
    # An all-reduce moves 2(N − 1)n numbers in all, its two halves as many, a broadcast (N − 1)n.
    assert total == 4 * 12 * (ranks - 1) * (2 + 2 + 1)


@pytest.mark.parametrize(("op", "algorithm"), [(op, a) for op in OPS for a in OPS[op]])
def test_the_tables_check_notices_a_wrong_number(pools, op, algorithm):
    def check(group, op, algorithm):
        x, out = buffers(group, op, 12, torch.float32)
        group = GROUPS[algorithm](group) if algorithm in GROUPS else group
        OPS[op][algorithm](group, x, out)
        right = is_right(group, op, 12, x, out)
        x[-1] += 1
        out[-1] += 1
        return right, is_right(group, op, 12, x, out)

    rights, wrongs = zip(*pools[3](check, op, algorithm), strict=True)
    assert all(rights)
    assert not wrongs[0]


class FakeGroup(NamedTuple):
    rank: int
    size: int
    device: str = "cpu"


class LargestArray(TorchDispatchMode):
    """The most bytes that one operation has made."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and not func.is_view:
            self.bytes = max(self.bytes, out.nbytes)
        return out


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8])
@pytest.mark.parametrize("ranks", [20, 200])
def test_the_tables_check_is_exact_in_few_bits_on_many_ranks(dtype, ranks):
    group, n = FakeGroup(ranks - 1, ranks), 3 * ranks
    total = torch.zeros(n, dtype=dtype)
    for rank in range(ranks):
        total += buffers(FakeGroup(rank, ranks), "all_reduce", n, dtype)[0]
    assert is_right(group, "all_reduce", n, total, torch.empty(0))
    parts = total[-3:].clone()
    assert is_right(group, "reduce_scatter", n, total, parts)
    assert not is_right(group, "reduce_scatter", n, total, total[:3])
    total[:3] += buffers(FakeGroup(7, ranks), "all_reduce", n, dtype)[0][:3]  # twice
    assert not is_right(group, "all_reduce", n, total, torch.empty(0))


@pytest.mark.parametrize("op", OPS)
def test_the_tables_check_needs_no_more_memory_than_the_array(op):
    group, n = FakeGroup(0, 8), 80_000
    with LargestArray() as made:
        x, out = buffers(group, op, n, torch.float32)
        is_right(group, op, n, x, out)
    assert made.bytes < 1.01 * 4 * n


def test_ranks_that_swap_nothing_are_not_taken_for_an_all_to_all():
    group = FakeGroup(1, 3)
    x, out = buffers(group, "all_to_all", 3, torch.float32)
    assert not is_right(group, "all_to_all", 3, x, out.copy_(x))


def test_the_sweep_times_every_way_that_has_a_formula_and_the_backends(pools):
    ways = [
        (row["op"], row["algorithm"]) for op in OPS for row in in_turns(pools[3], op, 4000, 3, True)
    ]
    assert {*ways} >= {*SENT} | {("all_reduce", name) for name in ALGORITHMS}
    assert ways.count(("broadcast", "backend")) == 1
    recorded_rows = json.loads((ROOT / "bench/recorded/sweep.json").read_text())["rows"]
    recorded = {(row["op"], row["algorithm"]) for row in recorded_rows}
    assert recorded == {*ways}, "record it again: python -m bench.sweep --record"


def run_table(*options):
    command = [sys.executable, "-m", "distributed.instruments.collective_times", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


@pytest.mark.slow
def test_the_table_from_the_command_line():
    done = run_table(
        "--size", "4KB,3MB", "--ranks", "3", "--algorithm", "ring,backend", "--times", "2"
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "3 ranks · gloo · CPU"
    assert lines[1].split()[:2] == ["bytes", "algorithm"]
    rows = [line.split() for line in lines[2:]]
    assert [(row[0], row[1], row[-1]) for row in rows] == [
        ("3,996", "ring", "ok"), ("3,996", "backend", "ok"),
        ("3,000,000", "ring", "ok"), ("3,000,000", "backend", "ok"),
    ]  # fmt: skip
    for _, _, microseconds, algorithm_bandwidth, bus_bandwidth, _ in rows[2:]:
        seconds = float(microseconds.replace(",", "")) / 1e6
        assert float(algorithm_bandwidth) == pytest.approx(3e6 / seconds / 1e9, rel=0.01, abs=1e-3)
        assert float(bus_bandwidth) == pytest.approx(4 / 3 * float(algorithm_bandwidth), abs=2e-3)


@pytest.mark.slow
def test_the_same_command_under_torchrun_says_it_once():
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    done = subprocess.run(
        [sys.executable, "-m", *torchrun, "distributed.instruments.collective_times",
         "--size", "4KB", "--times", "1", "--algorithm", "ring,shared,hierarchical,backend"],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("2 ranks · gloo · CPU · torchrun\n")
    rows = [line.split() for line in done.stdout.splitlines()[2:]]
    names = ["ring", "shared", "hierarchical", "backend"]
    assert [(row[1], row[-1]) for row in rows] == [(name, "ok") for name in names]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--op", "reduce_all"], "op='reduce_all': choose one of all_reduce, broadcast"),
        (["--algorithm", "star"], "algorithm='star': for all_reduce, choose from central"),
        (["--size", "many"], "size='many': write it like 64MB"),
        (["--dtype", "bool"], "dtype='bool': choose one of float32, float64"),
        (["--times", "0"], "times=0: measure once or more"),
        (["--ranks", "0"], "ranks=0: a world has 1 rank or more"),
    ],
)
def test_nonsense_on_the_command_line_is_one_clear_line(options, message):
    done = run_table(*options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


def test_sizes_are_decimal_unless_said():
    assert [to_bytes(x) for x in ("64MB", "64MiB", "1.5KB", 7, "3 GB")] == [
        64_000_000, 67_108_864, 1500, 7, 3_000_000_000
    ]  # fmt: skip


@given(alpha=st.floats(1e-6, 1e-3), beta=st.floats(1e-11, 1e-8))
def test_the_fit_finds_what_the_times_were_made_of(alpha, beta):
    steps, sizes = np.array([1, 2, 6, 6, 30]), np.array([1e3, 1e6, 4e4, 1e7, 64e6])
    found = fit(steps, sizes, alpha * steps + beta * sizes)
    np.testing.assert_allclose(found, [alpha, beta], rtol=1e-3)


def test_the_fit_gives_no_negative_cost():
    assert (fit([1, 1], [1e6, 2e6], [2e-3, 1e-3]) >= 0).all()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            lambda group: RingGroup(group).all_reduce(torch.ones(4)),
            lambda group: RingGroup(group).broadcast(torch.ones(4)),
        ),
        (
            lambda group: collectives.scatter(group, torch.ones(4), torch.ones(2)),
            lambda group: collectives.scatter(group, torch.ones(4), torch.ones(2).double()),
        ),
    ],
)
def test_ranks_that_call_different_collectives_of_ours_are_told(pools, one, other):
    with pytest.raises(RankError, match="different collectives"):
        pools[2](lambda group: (other if group.rank else one)(group), timeout=20)


def test_every_collective_tells_the_others_of_what_and_from_whom(pools):
    def tell(group):
        told, group.announce = [], lambda call, x: told.append(f"{call} of {len(x)}")
        x, part = torch.ones(6), torch.ones(3)
        trees.linear_broadcast(group, x, 1)
        trees.linear_reduce(group, x, torch.add, 1)
        collectives.scatter(group, x, part, 1)
        collectives.gather(group, part, x, 1)
        collectives.reduce_scatter(group, x, part, torch.add)
        collectives.all_gather(group, part, x)
        collectives.all_to_all(group, x, torch.ones(6))
        del group.announce
        return told

    assert pools[2](tell) == [[
        "broadcast from 1 by a line of 6", "reduce to 1 by a line of 6", "scatter from 1 of 3",
        "gather to 1 of 3", "reduce_scatter by a ring of 6", "all_gather by a ring of 3",
        "all_to_all of 6",
    ]] * 2  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda g, x: trees.linear_broadcast(g, x, 2), "root=2: the ranks are 0 to 1"),
        (lambda g, x: trees.linear_reduce(g, x, torch.add, -1), "root=-1: the ranks"),
        (lambda g, x: collectives.scatter(g, x, x[:2], 3), "root=3: the ranks are 0 to 1"),
        (lambda g, x: collectives.gather(g, x, x, 3), "root=3: the ranks are 0 to 1"),
        (lambda g, x: collectives.scatter(g, x, x[:2], g.rank), "2 parts of torch.float32 [2]"),
        (lambda g, x: collectives.gather(g, x[:2], x, g.rank), "do not make torch.float32 [7]"),
        (lambda g, x: collectives.reduce_scatter(g, x, x[:2], torch.add), "x and out: 2 parts"),
        (lambda g, x: collectives.all_gather(g, x[:3].int(), x[:6]), "2 parts of torch.int32 [3]"),
        (lambda g, x: collectives.all_to_all(g, x, x), "x and out: 2 parts"),
        (lambda g, x: collectives.all_to_all(g, x[:6], x[:4]), "do not make torch.float32 [4]"),
        (lambda g, x: collectives.all_gather(g, x[:2], x[:6].view(3, 2).T[:, :2]), "has gaps"),
    ],
)
def test_what_cannot_be_is_named_and_nothing_is_written(pools, wrong, message):
    def attempt(group, wrong):
        x = torch.arange(7.0)
        try:
            wrong(group, x)
        except ValueError as error:
            return str(error), x.tolist()

    for said, x in pools[2](attempt, wrong):
        assert message in said
        assert x == [*range(7)]


def test_an_array_of_two_dimensions_is_cut_into_parts_of_as_many_numbers(pools):
    def scatter_and_gather(group):
        x = torch.arange(12.0).view(3, 4)
        part, back = torch.empty(6), torch.zeros(3, 4)
        collectives.scatter(group, x, part)
        collectives.gather(group, part, back)
        return part.tolist(), back.equal(x)

    (low, back), (high, _) = pools[2](scatter_and_gather)
    assert back
    assert low + high == [*range(12)]


def of_each_kind(group):
    """Each collective on Python's arrays, with another number for each rank and part."""

    def x(n=1):
        return memoryview(array("q", range(10 * group.rank, 10 * group.rank + n)))

    n, results = group.size, {}
    whole, part = group.empty_like(x(n)), group.empty_like(x())
    collectives.scatter(group, x(n), part)
    results["scatter"] = part.tolist()
    collectives.gather(group, x(), whole)
    results["gather"] = whole.tolist() if group.rank == 0 else []
    collectives.all_gather(group, x(), whole)
    results["all_gather"] = whole.tolist()
    collectives.all_to_all(group, x(n), whole)
    results["all_to_all"] = whole.tolist()
    sent = x(n)
    trees.linear_broadcast(group, sent)
    results["broadcast"] = sent.tolist()
    return results


def test_algorithms_know_no_array_library(pools):
    ranks = range(3)
    expected = [
        {
            "scatter": [rank],
            "gather": [0, 10, 20] if rank == 0 else [],
            "all_gather": [0, 10, 20],
            "all_to_all": [10 * other + rank for other in ranks],
            "broadcast": [0, 1, 2],
        }
        for rank in ranks
    ]
    assert threads.run_in_threads(of_each_kind, 3) == expected
    assert pools[3](of_each_kind) == expected


def test_parts_that_do_not_fit_are_refused_without_a_library():
    with pytest.raises(ValueError, match="2 parts of 1 do not make 3"):
        threads.run_in_threads(
            lambda group: collectives.all_gather(
                group, threads.numbers([1]), threads.numbers([0, 0, 0])
            ),
            2,
        )


def test_messages_between_gpus_that_share_gloo_are_refused_in_a_line(pools):
    """gloo would read a GPU's address as if it were the host's."""

    class OnGPU(torch.Tensor):
        is_cuda = True

    def send(group):
        shared = RingGroup(group)
        shared.device = torch.device("cuda:0")  # as of ranks that share a GPU
        with pytest.raises(ValueError, match=r"cuda:0: gloo has no messages between GPUs. Start"):
            shared.send(torch.ones(1).as_subclass(OnGPU), 1 - group.rank)

    pools[2](send)


def test_a_result_that_is_wrong_on_one_rank_is_wrong_in_the_table(pools):
    def timed(group, wrong_on):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(measure, "is_right", lambda *_: group.rank != wrong_on)
            ring = OPS["all_reduce"]["ring"]
            return measure.time_one(group, ring, "all_reduce", 8, torch.float32, 1)[1]

    assert pools[3](timed, 2) == [False] * 3
    assert pools[3](timed, None) == [True] * 3
