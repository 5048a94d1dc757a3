"""Bytes that the kernel counts on one machine, how often to save, and what makes no sense."""

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributed import elastic
from distributed.checkpoint_folder import steps
from distributed.checkpoint_interval import best_interval, better_interval, share_lost
from distributed.instruments import wire
from distributed.runtime.group import Group
from distributed.runtime.report import RankError


@pytest.mark.slow
def test_the_interface_lo_sees_every_message_of_every_rank(pools):
    """Others use `lo` as well, in the work or in what is taken off for the timing: look again."""
    cases = ["ring", "ZeRO-1", "ZeRO-3"]
    quiet: set[str] = set()
    for _ in range(60):
        for seen in pools[3](wire.watch, cases, "lo", 100_000, 2, 0.0):
            ring, zero_1, zero_3 = seen
            assert ring.payload == pytest.approx(3 * 4 * 2 * 2 / 3 * 100_000, rel=1e-4)
            assert zero_3.payload > 1.3 * zero_1.payload
            quiet |= {row.name for row in seen if row.payload <= row.wire < 1.5 * row.payload}
        if quiet == {*cases}:
            return
    raise AssertionError(f"only {quiet} sent what the formula says, and headers")


def test_what_the_timing_itself_sends_is_not_taken_for_the_works(pools):
    def watch_a_nic_that_we_know(group):
        nic = {"sent": 0}

        def sent_by(_):
            return nic["sent"]

        def sends(size, call=lambda *args, **given: None):
            def send(*args, **given):
                nic["sent"] += size
                return call(*args, **given)

            return send

        work = wire.Workload(sends(10), 8.0)
        barrier, reduce = sends(100, group.barrier), sends(1000, Group.all_reduce)
        with (
            mock.patch.object(wire, "sent_by", sent_by),
            mock.patch.object(group, "barrier", barrier),
            mock.patch.object(Group, "all_reduce", reduce),
            mock.patch.dict(wire.CASES, {"known": lambda site, n: work}),
        ):
            return wire.watch(group, ["known"], "lo", 1, 3, 0.0)[0][:3]

    assert pools[1](watch_a_nic_that_we_know) == [("known", 10.0, 8.0)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nic": "eth99"}, "nic='eth99': choose from .*lo"),
        ({"cases": "ring,star"}, "cases=star: choose from ring, hierarchical"),
        ({"n": 0}, "n=0, times=3: 1 or more of each"),
    ],
)
def test_nonsense_is_named_before_any_rank_starts(arguments, message):
    with pytest.raises(ValueError, match=message):
        wire.main(**arguments)


@given(st.floats(0.1, 100), st.floats(1e4, 1e7), st.floats(0.3, 3))
def test_no_interval_loses_less_than_youngs(saving, between, factor):
    best = best_interval(saving, between)
    least = share_lost(best, saving, between, 10.0)
    assert share_lost(best * factor, saving, between, 10.0) >= least * (1 - 1e-12)


@pytest.mark.parametrize(("between", "best"), [(24 * 60, 117), (6 * 60, 57), (15, 9.1)])
def test_dalys_interval_is_that_of_his_figures(between, best):
    """A save of 5 minutes, in minutes: figures 3, 4 and 5 of Daly 2006."""
    assert better_interval(5, between) == pytest.approx(best, rel=0.01)
    assert better_interval(5, 1) == 1, "there is no use in saving more rarely than failing"


@given(st.floats(0.1, 10), st.floats(1e5, 1e7))
def test_both_intervals_agree_where_saves_are_short(saving, between):
    both = better_interval(saving, between), best_interval(saving, between)
    assert both[0] == pytest.approx(both[1], rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stage": 4}, "stage=4: choose from 1, 2, 3"),
        ({"until": 0}, "until=0, every=3"),
        ({"patience": 0.0}, "patience=0.0: more than 0"),
    ],
)
def test_a_training_that_makes_no_sense_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        elastic.main(**arguments)
    with pytest.raises(ValueError, match=r"saving=0.* more than 0 each"):
        best_interval(0.0, 1.0)


def test_the_last_step_is_saved_whatever_the_interval(pools, tmp_path):
    pools[2](elastic.train_rank, str(tmp_path), 3, 128, 5, 2)
    assert max(steps(tmp_path)) == 5


def test_a_run_goes_on_from_any_number_of_ranks(pools, tmp_path):
    once = pools[2](elastic.train_rank, str(tmp_path / "once"), 2, 128, 6, 2)[0]
    given = str(tmp_path / "run"), 3, 128
    first = pools[3](elastic.train_rank, *given, 3, 2)[0]
    assert len(first) == 3
    assert pools[2](elastic.train_rank, *given, 6, 2)[0] == pytest.approx(once, rel=1e-4)
    assert [path.name for path in sorted((tmp_path / "run").glob("step-*"))] == [
        "step-00000004",
        "step-00000006",
    ], "the last two are kept"


def train_with_a_folder_each(group, folder):
    return elastic.train_rank(group, f"{folder}/{group.rank}", 3, 128, 3, 3)


def test_a_folder_that_is_not_shared_is_named_and_nothing_is_saved(pools, tmp_path):
    (tmp_path / "1/step-00000003").mkdir(parents=True)
    with pytest.raises(RankError, match=r"folder='.*/1': rank 1 does not see .*all hosts share"):
        pools[2](train_with_a_folder_each, str(tmp_path))
    assert not [*tmp_path.glob("0/step-*")]
