"""The board notices what differs, and never what does not."""

import pytest

from distributed.world import RankError


def test_ranks_that_run_far_ahead_are_not_taken_for_a_mismatch(pools):
    def announce_many(group):
        for i in range(20_000):  # nobody waits: fast ranks write over notes that slow ones read
            group.board.announce(f"call {i}")

    pools[2](announce_many)
    pools[4](announce_many)


def test_the_last_to_come_sees_another_call(pools):
    def differ(group):
        group.board.announce(f"all_reduce of {group.rank // 3}")
        group.barrier()

    with pytest.raises(RankError, match=r"different collectives: rank \d calls all_reduce of"):
        pools[4](differ)
