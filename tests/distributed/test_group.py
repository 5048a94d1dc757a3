"""What ranks do together, against what NumPy says of all their arrays at once."""

import itertools
import os
import subprocess
import sys
import traceback
import warnings
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from pools import launch_with_clock

from distributed.hierarchical import HierarchicalGroup
from distributed.instruments.algorithms import all_reduce
from distributed.launching import launch
from distributed.ring_group import RingGroup
from distributed.runtime.arrays import as_tensor, divisors
from distributed.runtime.group import Group, timeout_of
from distributed.runtime.rank import NEVER
from distributed.runtime.report import RankError
from distributed.runtime.trace import Trace
from distributed.shared_memory import SharedGroup

REDUCE = {
    "sum": lambda arrays: arrays.sum(0),
    "avg": lambda arrays: arrays.mean(0),
    "max": lambda arrays: arrays.max(0),
    "min": lambda arrays: arrays.min(0),
}


def reduce_mine(group, arrays, op, library):
    mine = arrays[group.rank, ...]  # also of shape []: an array, not a number
    mine = torch.from_numpy(mine) if library == "torch" else mine.copy()
    returned = group.all_reduce(mine, op=op)
    assert returned is mine, "works in place and returns its array"
    return np.asarray(mine)


@given(
    ranks=st.integers(1, 8),
    shape=st.lists(st.integers(0, 5), min_size=0, max_size=3),
    op=st.sampled_from([*REDUCE]),
    library=st.sampled_from(["numpy", "torch"]),
    dtype=st.sampled_from(["float32", "float64", "int64"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_all_reduce_is_the_reduction_over_all_ranks(pools, ranks, shape, op, library, dtype, seed):
    if op == "avg" and dtype == "int64":
        op = "sum"
    arrays = np.random.default_rng(seed).integers(-9, 9, (ranks, *shape)).astype(dtype)
    results = pools[ranks](reduce_mine, arrays, op, library)
    expected = REDUCE[op](arrays)
    for result in results:
        np.testing.assert_allclose(result, expected, rtol=1e-6)


def means_of_float16(group, value):
    """The mean over ranks of `value`, by every kind of group: all-reduced, and reduce-scattered."""
    x = torch.full((2 * group.size,), value, dtype=torch.float16)
    found = []
    for kind in (group, RingGroup(group), SharedGroup(group), HierarchicalGroup(group, 2)):
        found += kind.all_reduce(x.clone(), "avg").tolist()
        found += kind.reduce_scatter(x.clone(), x.new_empty(2), "avg").tolist()
    found += all_reduce(group, x.clone(), "avg", "tree").tolist()
    return {*found}


@pytest.mark.parametrize(("ranks", "large", "small"), [(2, 65_504, 2**-23), (4, 32_752, 2**-23)])
def test_a_mean_of_float16_neither_overflows_nor_loses_what_is_small(pools, ranks, large, small):
    """A sum first and a division after would be inf; a division first and a sum after, 0."""
    assert pools[ranks](means_of_float16, float(large)) == [{large}] * ranks
    assert pools[ranks](means_of_float16, float(small)) == [{small}] * ranks


@pytest.mark.parametrize("ranks", range(1, 70))
def test_half_of_the_factor_of_a_mean_goes_before_the_sum_where_the_range_is_short(ranks):
    before, after = divisors("avg", ranks, torch.float16)
    assert before * after == pytest.approx(ranks)
    assert ranks**0.5 <= before < 2 * ranks**0.5
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        assert divisors("avg", ranks, dtype) == (1, ranks)
        assert divisors("sum", ranks, dtype) == (1, 1)


def test_the_backend_adds_in_the_dtype_of_the_array(pools):
    arrays = torch.randn(4, 1000, dtype=torch.float64)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        given = arrays.to(dtype)
        (found, *_) = pools[4](lambda group, x: group.all_reduce(x[group.rank].clone()), given)
        bound = 3.01 * torch.finfo(dtype).eps / 2 * given.double().abs().sum(0)
        assert ((found.double() - given.double().sum(0)).abs() <= bound).all(), dtype


@pytest.mark.parametrize("kind", [lambda group: group, RingGroup, SharedGroup])
def test_a_part_of_x_can_be_reduced_and_scattered_where_it_stands(pools, kind):
    def in_place(group, kind):
        x = torch.arange(6.0) + group.rank
        part = x.view(group.size, -1)[group.rank]
        kind(group).reduce_scatter(x, part, "avg")
        return part.tolist()

    assert pools[3](in_place, kind) == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_an_array_with_gaps_is_reduced_in_place_and_its_gaps_are_left_alone(pools, library):
    def reduce_every_other_column(group):
        whole = np.full((3, 4), float(group.rank + 1))
        part = (torch.from_numpy(whole) if library == "torch" else whole)[:, ::2]
        group.all_reduce(part)
        return whole

    for rank, whole in enumerate(pools[2](reduce_every_other_column)):
        assert (whole[:, ::2] == 3).all()
        assert (whole[:, 1::2] == rank + 1).all()


@pytest.mark.parametrize("root", [0, 2])
def test_broadcast_gives_every_rank_the_array_of_the_root(pools, root):
    def give(group):
        return group.broadcast(np.full(3, float(group.rank)), root)

    for result in pools[3](give):
        assert (result == root).all()


def test_a_barrier_is_left_only_when_all_have_come(pools, tmp_path):
    def come_late(group, folder):
        (folder / str(group.rank)).touch()
        group.barrier()
        return len([*folder.iterdir()])

    assert pools[4](come_late, tmp_path) == [4, 4, 4, 4]


def read_only():
    return np.broadcast_to(1.0, 3)


def test_a_read_only_array_can_be_sent(pools):
    def send_or_receive(group):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if group.rank == 0:
                group.send(read_only(), 1)
            x = np.zeros(3) if group.rank == 0 else group.receive(np.zeros(3), 0)
            return group.exchange(read_only(), 1 - group.rank, x, 1 - group.rank).tolist()

    assert pools[2](send_or_receive) == [[1.0, 1.0, 1.0]] * 2


def test_what_is_sent_is_not_written():
    """While a column is under way its owner may change it."""
    x = torch.zeros(3, 2)
    with as_tensor(x[:, 0], writes=False):
        x[:, 0] = 7
    assert x.tolist() == [[7, 0]] * 3
    with as_tensor(x[:, 0]) as column:
        column += 1
    assert x.tolist() == [[8, 0]] * 3


def test_a_column_is_exchanged_in_place(pools):
    def exchange(group):
        x = torch.full((3, 2), float(group.rank))
        group.exchange(x[:, 0], 1 - group.rank, x[:, 0], 1 - group.rank)
        return x.tolist()

    assert pools[2](exchange) == [[[1, 0]] * 3, [[0, 1]] * 3]


def test_an_expanded_array_is_sent_and_not_received_into(pools):
    def send_or_receive(group):
        one = torch.full((1,), 5.0).expand(4)
        if group.rank == 0:
            group.send(one, 1)
        x = group.receive(torch.empty(4), 0).tolist() if group.rank else []
        for call in (group.all_reduce, group.broadcast, lambda x: group.receive(x, 1 - group.rank)):
            with pytest.raises(ValueError, match=r"x is expanded, .* give it as .contiguous"):
                call(one)
        return x

    assert pools[2](send_or_receive)[1] == [5.0] * 4


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda group: group.all_reduce(torch.ones(1), op="mean"), "op='mean': choose one of sum"),
        (lambda group: group.all_reduce(torch.ones(1).int(), op="avg"), "needs floating-point"),
        (lambda group: group.all_reduce([1.0]), "x must be a torch tensor or a NumPy array"),
        (lambda group: group.all_reduce(read_only()), "x is a read-only array, .*: copy it"),
        (lambda group: all_reduce(group, read_only()), "x is a read-only array, .*: copy it"),
        (lambda group: group.receive(read_only(), 1 - group.rank), "x is a read-only array"),
        (lambda group: group.broadcast(torch.ones(1), root=2), "root=2: the ranks are 0 to 1"),
    ],
)
def test_a_wrong_argument_is_named(wrong, message):
    with pytest.raises(RankError, match=message):
        launch(wrong, ranks=2, device="cpu")


@pytest.mark.parametrize(
    ("differ", "named"),
    [
        (
            lambda group: group.all_reduce(torch.ones(3 + (group.rank == 1))),
            ["all_reduce sum of float32[3]", "all_reduce sum of float32[4]"],
        ),
        (
            lambda group: group.all_reduce(np.ones(2, "float32" if group.rank else "float64")),
            ["all_reduce sum of float32[2]", "all_reduce sum of float64[2]"],
        ),
        (
            lambda group: group.all_reduce(torch.ones(1), op="avg" if group.rank else "sum"),
            ["all_reduce sum of float32[1]", "all_reduce avg of float32[1]"],
        ),
        (
            lambda group: group.broadcast(torch.ones(1), root=group.rank),
            ["broadcast from 0 of float32[1]", "broadcast from 1 of float32[1]"],
        ),
        (
            lambda group: group.barrier() if group.rank else group.all_reduce(torch.ones(1)),
            ["barrier", "all_reduce sum of float32[1]"],
        ),
    ],
)
def test_ranks_that_call_different_things_are_told_so_instead_of_hanging(differ, named):
    with pytest.raises(RankError, match="the ranks call different collectives") as caught:
        launch_with_clock(differ, ranks=2, timeout=20)
    for call in named:
        assert call in str(caught.value)


def test_ranks_that_agree_are_never_told_that_they_differ(pools):
    def many(group):
        for i in range(300):
            group.broadcast(np.ones(i % 7), root=0)  # whose root runs ahead
            if i % 50 == 0:
                group.barrier()

    pools[4](many)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda group: group.send(torch.ones(1), to=2), "to=2: the ranks are 0 to 1"),
        (lambda group: group.send(torch.ones(1), to=group.rank), "that is this rank itself"),
        (lambda group: group.receive(torch.ones(1), source=-1), "source=-1: the ranks are 0 to 1"),
    ],
)
def test_a_wrong_peer_is_named(wrong, message):
    with pytest.raises(RankError, match=message):
        launch(wrong, ranks=2, device="cpu")


def parts_of(group, arrays, op, async_op):
    x = torch.from_numpy(arrays[group.rank].copy())
    mine = torch.empty(len(x) // group.size, dtype=x.dtype)
    result = group.reduce_scatter(x, mine, op, async_op)
    part = result.wait() if async_op else result
    assert part is mine
    whole = torch.empty_like(x)
    result = group.all_gather(part, whole, async_op)
    return mine.numpy(), np.asarray(result.wait() if async_op else result)


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("op", REDUCE)
def test_reduce_scatter_gives_each_rank_its_part_and_all_gather_puts_them_together(
    pools, op, async_op
):
    arrays = np.random.default_rng(0).integers(-9, 9, (3, 15)).astype("float32")
    expected = REDUCE[op](arrays)
    for rank, (part, whole) in enumerate(pools[3](parts_of, arrays, op, async_op)):
        np.testing.assert_allclose(part, expected[5 * rank : 5 * rank + 5], rtol=1e-6)
        np.testing.assert_allclose(whole, expected, rtol=1e-6)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_handle_is_there_at_once_and_the_array_when_it_was_waited_for(pools, library):
    def overlap_two(group):
        whole = np.full((3, 4), float(group.rank + 1))
        gaps = (torch.from_numpy(whole) if library == "torch" else whole)[:, ::2]
        mean, first = group.all_reduce(gaps, "avg", async_op=True), np.full(2, group.rank)
        handle = group.broadcast(first, root=1, async_op=True)
        assert handle.wait() is first
        assert mean.wait() is gaps
        assert mean.wait() is gaps
        return whole, first

    for rank, (whole, first) in enumerate(pools[2](overlap_two)):
        assert (whole[:, ::2] == 1.5).all(), "divided once, however often it is waited for"
        assert (whole[:, 1::2] == rank + 1).all()
        assert (first == 1).all()


def test_the_parts_must_make_the_whole(pools):
    def misfit(group):
        try:
            group.reduce_scatter(torch.zeros(7), torch.zeros(3))
        except ValueError as error:
            return str(error)

    assert (
        "2 parts of torch.float32 [3] without gaps do not make torch.float32 [7]"
        in (pools[2](misfit)[0])
    )


KINDS_OF_GROUP = [lambda group: group, RingGroup, SharedGroup]


@pytest.mark.parametrize("kind", KINDS_OF_GROUP)
def test_conjugate_and_negative_views_are_written_as_they_are_read(pools, kind):
    def reduce(group, kind):
        x = torch.full((3,), 1 + 2j).conj()
        kind(group).all_reduce(x)
        y = torch.full((3,), 1 + 2j).conj().imag
        kind(group).broadcast(y.fill_(group.rank + 1))
        return x.is_conj(), x.tolist(), y.is_neg(), y.tolist()

    assert pools[2](reduce, kind) == [(True, [2 - 4j] * 3, True, [1.0] * 3)] * 2


@pytest.mark.parametrize("kind", KINDS_OF_GROUP)
def test_sparse_tensors_are_refused_in_a_line(pools, kind):
    def refuse(group, kind):
        for x in (torch.eye(2).to_sparse(), torch.eye(2).to_sparse_csc()):
            with pytest.raises(TypeError, match=r"layout torch\.sparse_.*x\.to_dense\(\)"):
                kind(group).all_reduce(x)
            with pytest.raises(TypeError, match=r"layout torch\.sparse_.*x\.to_dense\(\)"):
                group.exchange(x, 1 - group.rank, torch.empty(2, 2), 1 - group.rank)

    pools[2](refuse, kind)


MOVED = [torch.int16, torch.uint16, torch.uint64, torch.bool, torch.float8_e5m2, torch.complex32]


@pytest.mark.parametrize("kind", KINDS_OF_GROUP)
@pytest.mark.parametrize("dtype", MOVED)
def test_what_is_only_moved_may_have_any_dtype(pools, kind, dtype):
    def move(group, kind, dtype):
        kept, x = kind(group), torch.tensor([1.0, group.rank]).to(dtype)
        everything = kept.all_gather(x, torch.zeros(4, dtype=dtype))
        return [[t.real.float().item() for t in each] for each in (everything, kept.broadcast(x))]

    assert pools[2](move, kind, dtype) == [[[1.0, 0.0, 1.0, 1.0], [1.0, 0.0]]] * 2


def test_split_makes_groups_of_those_with_one_colour(pools):
    def rows_and_columns(group):
        row, column = group.split(group.rank // 3), group.split(group.rank % 3)
        x = torch.tensor([float(group.rank)])
        right, left = (row.rank + 1) % row.size, (row.rank - 1) % row.size
        neighbour = row.exchange(x, right, torch.empty(1), left).item()
        return (row.size, column.size, row.rank, neighbour, column.all_reduce(x.clone()).item())

    assert pools[6](rows_and_columns) == [
        (3, 2, 0, 2, 3), (3, 2, 1, 0, 5), (3, 2, 2, 1, 7),
        (3, 2, 0, 5, 3), (3, 2, 1, 3, 5), (3, 2, 2, 4, 7),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [RingGroup, SharedGroup])
def test_a_part_works_by_the_means_of_the_group_that_it_is_of(pools, kind):
    def halves(group, kind):
        sent = []
        with kind(group).split(group.rank // 2) as part, part.split(0) as nested:
            for each in (part, nested):
                assert type(each) is kind
                each.trace = Trace(group.rank)
                assert each.all_reduce(torch.ones(1000), async_op=True).wait().eq(2).all()
                sent.append(each.trace.sent)
        with pytest.raises(ValueError, match="this group is closed"):
            nested.all_reduce(torch.ones(2))
        return sent

    # A ring of two sends 2n(N − 1)/N elements of four bytes from each rank, shared memory none.
    assert pools[4](halves, kind) == [[4000, 4000] if kind is RingGroup else [0, 0]] * 4


def test_groups_without_a_common_rank_can_be_split_at_the_same_time(pools):
    def halves_of_halves(group):
        half = group.split(group.rank // 2)
        whole = half.split(0)
        alone = half.split(half.rank) if group.rank < 2 else half  # they need not do the same
        pair = group.split(group.rank % 2)
        parts = half, whole, alone, pair
        return [part.all_reduce(torch.tensor(1 << group.rank)).item() for part in parts]

    assert pools[4](halves_of_halves) == [
        [0b0011, 0b0011, 0b0001, 0b0101], [0b0011, 0b0011, 0b0010, 0b1010],
        [0b1100, 0b1100, 0b1100, 0b0101], [0b1100, 0b1100, 0b1100, 0b1010],
    ]  # fmt: skip


def test_a_part_waits_as_long_as_the_group_that_it_is_of(pools):
    def patience(group):
        return {timeout_of(part, group.device) for part in (group.split(0).backend, None)}

    assert pools[2](patience) == [{NEVER}] * 2

    def patience_of_a_part(group):  # torchrun's second launch has such a group of all ranks
        backend = dist.new_group(timeout=timedelta(seconds=77))
        part = Group(group.device, local_size=2, backend=backend).split(0)
        return timeout_of(part.backend, group.device).total_seconds()

    assert pools[2](patience_of_a_part) == [77] * 2


def threads_of_this_process():
    return len([*Path("/proc/self/task").iterdir()])


@pytest.mark.parametrize("kind", [lambda part: part, RingGroup, SharedGroup])
def test_a_group_that_was_split_off_has_an_end(pools, kind):
    def use(group, kind):
        with group.split(group.rank // 2) as part:
            nested = part.split(0)
            handle = kind(nested).all_reduce(torch.ones(2), async_op=True)
            assert handle.wait().tolist() == [2, 2]

    def use_often(group, kind):
        use(group, kind)
        threads = threads_of_this_process()
        for _ in range(5):
            use(group, kind)
        return threads_of_this_process() - threads, group.all_reduce(torch.ones(1)).item()

    assert pools[4](use_often, kind) == [(0, 4)] * 4


def test_a_closed_group_says_so(pools):
    def use_and_close(group):
        with group.split(group.rank // 2) as part:
            nested = part.split(0)
        for closed in (part, nested):
            for call in (closed.all_reduce, lambda x, g=closed: g.send(x, 1 - g.rank)):
                with pytest.raises(ValueError, match="this group is closed"):
                    call(torch.ones(2))
            closed.close()  # once more does nothing

    pools[4](use_and_close)


def test_a_group_closes_all_that_was_split_off_it(pools):
    def split_and_close(group):
        part = group.split(0)
        nested = [part.split(0) for _ in range(3)]
        part.close()
        return [each.is_closed for each in nested], part.parts_made

    assert pools[2](split_and_close) == [([True] * 3, [])] * 2


def test_a_world_closes_what_a_call_left_open(pools):
    def leave_open(group):
        part = group.split(group.rank % 2)
        RingGroup(part).all_reduce(torch.ones(3), async_op=True).wait()
        return threads_of_this_process()

    first = pools[2](leave_open)
    assert [pools[2](leave_open) for _ in range(5)][-1] == first


def test_work_in_the_background_does_not_meet_messages_in_the_foreground(pools):
    def both(group):
        other = 1 - group.rank
        behind = torch.full((1000,), float(group.rank))

        def swap(aside):
            return [aside.exchange(behind, other, torch.empty(1000), other).mean().item()] * 3

        handles = [group.in_background(i, swap) for i in range(20)]
        ahead = [
            group.exchange(torch.full((7,), 10.0 + group.rank), other, torch.empty(7), other)
            for _ in range(20)
        ]
        return [h.wait() for h in handles], {a.mean().item() for a in ahead}

    for rank, (numbers, came) in enumerate(pools[2](both)):
        assert numbers == [*range(20)]
        assert came == {11.0 - rank}


def test_an_error_in_the_background_is_raised_by_wait(pools):
    def fail(group):
        handle = group.in_background(None, lambda aside: 1 // 0)
        try:
            handle.wait()
        except ZeroDivisionError as error:
            return str(error)

    assert all("zero" in said for said in pools[2](fail))


HOSTS = """
import os, socket
socket.gethostname = lambda: os.environ["HOST"]
import torch.distributed as dist
from distributed import Group, launch

def where(group):
    default = Group.default()
    part = default.split(group.rank % 2)
    return group.local_size, default.local_size, part.local_size, len(group.board.notes)

print(launch(where, device="cpu"), end="")
"""


def run_as_ranks(tmp_path, hosts):
    """One process for each name of a host, as mpirun would start them: without LOCAL_WORLD_SIZE."""
    script = tmp_path / "script.py"
    script.write_text(HOSTS)
    # A port that was only looked up could be another program's when rank 0 listens on it.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    meeting = {"MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    ranks = []
    for rank, host in enumerate(hosts):
        says = {"RANK": str(rank), "WORLD_SIZE": str(len(hosts)), "HOST": host}
        environ = os.environ | says | meeting | {"MASTER_ADDR": "127.0.0.1"}
        environ["GLOO_SOCKET_IFNAME"] = "lo"
        command = [sys.executable, str(script)]
        ranks.append(subprocess.Popen(command, env=environ, stdout=-1, stderr=-1, text=True))
    return [rank.communicate(timeout=100) for rank in ranks]


@pytest.mark.slow
def test_without_torchrun_ranks_ask_for_the_names_of_their_hosts(tmp_path):
    for out, err in run_as_ranks(tmp_path, ["a", "a", "a", "b"]):
        lines = out.splitlines()
        assert lines[-1] == "[(3, 3, 2, 3), (3, 3, 1, 3), (3, 3, 2, 3), (1, 1, 1, 1)]", err


@pytest.mark.slow
def test_hosts_whose_ranks_have_gaps_are_refused(tmp_path):
    said = [err for _, err in run_as_ranks(tmp_path, ["a", "b", "a", "b"])]
    assert "ValueError: ranks [0, 2] are on this host: start them so that" in said[0]
    assert "ValueError: ranks [1, 3] are on this host: start them so that" in said[1]


@pytest.mark.parametrize("async_op", [False, True])
def test_from_a_group_to_a_message_are_three_files_each_entered_once(pools, async_op):
    """`group.all_reduce` → the algorithm, on a wire → the message."""

    def files_at_the_first_message(group, async_op):
        found = []
        isend = dist.isend

        def noting(*args):
            frames, _ = zip(*traceback.walk_stack(sys._getframe(1)), strict=True)
            files = [Path(frame.f_code.co_filename) for frame in reversed(frames)]
            ours = [file.name for file in files if "code/distributed" in file.as_posix()]
            found.append([name for name, _ in itertools.groupby(ours)])
            return isend(*args)

        dist.isend = noting
        try:
            handle = RingGroup(group).all_reduce(torch.ones(8), async_op=async_op)
            if async_op:
                handle.wait()
        finally:
            dist.isend = isend
        return found[0]

    for files in pools[2](files_at_the_first_message, async_op):
        assert files[-3:] == ["group.py", "all_reduce.py", "transport.py"]
        assert set(files[:-3]) <= {
            "fork_server.py",
            "rank.py",
        }  # how the rank, or its thread, began


def test_an_error_in_a_part_is_told_although_the_others_wait_for_that_rank():
    def fail(group):
        with group.split(0) as part:
            if part.rank == 0:
                raise KeyError("mine")
            part.all_reduce(torch.ones(1))

    with pytest.raises(RankError, match=r"rank 0 raised KeyError: .*mine"):
        launch(fail, ranks=2, device="cpu", timeout=60)
