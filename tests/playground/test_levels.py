"""The figure of two levels: which messages leave a host, and that every rank ends with the sum."""

import pytest

from playground.show.levels import record_two_levels


@pytest.mark.parametrize(("ranks", "per_host"), [(4, 2), (6, 3), (8, 4)])
def test_every_rank_ends_with_the_sum_and_only_the_steps_between_leave_a_host(ranks, per_host):
    run = record_two_levels(ranks, per_host).first
    assert run.arrays[-1] == [[(1 << ranks) - 1] * ranks] * ranks
    leaves = [
        {not run.is_inside(message) for message in run.messages if message.step == step}
        for step in range(1, run.last + 1)
    ]
    within = [{False}] * (per_host - 1)
    assert leaves == [*within, {True}, {True}, *within]
    assert [run.leaves(host) for host in (0, 1)] == [1, 1], "2(H − 1)/H arrays for two hosts"


def test_the_figure_says_in_words_where_messages_travel():
    said = repr(record_two_levels()).splitlines()
    assert said[0].endswith("Ranks 0 and 1 are on host 0, and the others on host 1.")
    assert said[1].startswith("Step 1 of 4, inside the hosts: 0 → 1, 1 → 0")
    assert said[2].startswith("Step 2 of 4, between hosts: 0 → 2, 1 → 3")
