"""The board notices what differs, and never what does not."""

import os
import subprocess
import sys
import threading

import pytest
import torch
import torch.distributed as dist

from distributed.runtime.board import AnsweringStore, Board
from distributed.runtime.report import RankError


def test_ranks_that_run_far_ahead_are_not_taken_for_a_mismatch(pools):
    def announce_many(group):
        for i in range(20_000):  # nobody waits: fast ranks write over notes that slow ones read
            group.board.announce(f"call {i}" + "é" * 70 * (i % 100 == 0))  # cut within a letter

    pools[2](announce_many)
    pools[4](announce_many)


def test_the_last_to_come_sees_another_call(pools):
    def differ(group):
        group.board.announce(f"all_reduce of {group.rank // 3}")
        group.barrier()

    with pytest.raises(RankError, match=r"different collectives: rank \d calls all_reduce of"):
        pools[4](differ)


def test_a_part_of_the_group_has_a_board_of_its_own_on_the_same_memory(pools):
    def agree_in_turns(group):
        row, column = group.split(group.rank // 2), group.split(group.rank % 2)
        for i in range(600):
            row.board.announce(f"{i} of row {group.rank // 2}")
            column.board.announce(f"{i} of column {group.rank % 2}")
            group.board.announce(f"{i} of all")
        return row.local_size, row.board.store

    assert pools[4](agree_in_turns) == [(2, None)] * 4

    def differ(group):
        column = group.split(group.rank % 2)
        column.all_reduce(torch.ones(3 + (group.rank == 3)), async_op=True)
        group.split(0)  # nobody has waited for the numbers

    with pytest.raises(RankError, match=r"rank [13] calls all_reduce sum of float32\[[34]\], rank"):
        pools[4](differ)


def boards_of_two_hosts(folder):
    """Ranks 0 and 1 share a file, 2 and 3 another, and all of them a store."""
    store = dist.HashStore()
    for first in (0, 2):
        Board.create(folder / str(first), 2)
    return [Board(folder / str(r // 2 * 2), r, 2, r // 2 * 2, store) for r in range(4)]


def test_between_hosts_the_store_is_asked_once_a_call_and_keeps_no_more_than_the_memory(tmp_path):
    boards = boards_of_two_hosts(tmp_path)
    for i in range(1000):
        for board in boards[i % 4 :] + boards[: i % 4]:  # each comes first, now and then
            board.announce(f"call {i}")
    assert [len(board.found) for board in boards] == [Board.KEPT, 0, Board.KEPT, 0]
    for i in range(1000):  # who runs ahead is not compared, and nobody is accused
        boards[0].announce(f"ahead {i}")
    for i in range(1000):
        boards[2].announce(f"ahead {i}")
    boards[0].announce("all_reduce")
    with pytest.raises(ValueError, match="rank 2 calls barrier, rank 0 calls all_reduce"):
        boards[2].announce("barrier")


def test_ranks_of_another_host_than_the_first_are_called_by_their_own_numbers(tmp_path):
    boards = boards_of_two_hosts(tmp_path)
    boards[3].announce("all_reduce")
    with pytest.raises(ValueError, match="rank 2 calls barrier, rank 3 calls all_reduce"):
        boards[2].announce("barrier")


class SilentStore(dist.HashStore):
    """As on a host whose cable is out."""

    def compare_set(self, *_):
        threading.Event().wait()


def test_a_store_that_does_not_answer_holds_nobody_up(tmp_path, monkeypatch):
    monkeypatch.setattr(AnsweringStore, "PATIENCE", 0.01)
    board = boards_of_two_hosts(tmp_path)[0]
    board.store = AnsweringStore(SilentStore())
    for i in range(3):
        board.announce(f"call {i}")
    assert board.store is None


@pytest.mark.slow
def test_torchruns_ranks_are_told_which_of_them_differ_and_leave_no_file(tmp_path):
    script = tmp_path / "differ.py"
    script.write_text(
        "import torch\n"
        "from distributed.launching import launch\n"
        "launch(lambda group: group.barrier())\n"
        "launch(lambda group: group.all_reduce(torch.ones(3 + group.rank)))\n"
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    environ = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", script],
        env=environ, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode != 0
    assert "raised ValueError: the ranks call different collectives" in done.stderr
    for shape in ("[3]", "[4]"):
        assert f"calls all_reduce sum of float32{shape}" in done.stderr
    assert not [*tmp_path.glob("board-*")]
