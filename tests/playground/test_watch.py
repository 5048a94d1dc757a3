"""Watching a rank: every message and collective, in order, and the rounds that messages take."""

import pytest
import torch

from distributed.runtime.group import Group
from playground.exercises.watch import Event, rounds, watched


def use(group: Group) -> tuple[list[Event], list[str]]:
    x = torch.zeros(3)
    with watched(group) as events:
        if group.rank == 0:
            group.send(x, 1)
        else:
            group.receive(x, 0)
        group.exchange(x[:2], 1 - group.rank, torch.zeros(2), 1 - group.rank)
        group.all_reduce(x)
    group.all_reduce(x)
    return events, [name for name in vars(group) if name in ("_start", "announce")]


def test_messages_and_collectives_are_events_in_their_order(pools):
    (first, left), (second, _) = pools[2](use)
    both = [Event("receive", 1, 2, 8), Event("send", 1, 2, 8), Event("all_reduce sum", None, 3, 12)]
    assert first == [Event("send", 1, 3, 12), *both]
    assert [e.name for e in second] == ["receive", "receive", "send", "all_reduce sum"]
    assert left == [], "the group is as it was before"


def messages(text: str) -> list[list[Event]]:
    """`">1 >2 | <0 | <0"`: what each rank sends to and receives from, in order."""
    names = {">": "send", "<": "receive"}
    return [
        [Event(names[word[0]], int(word[1:]), 1, 8) for word in rank.split()]
        for rank in text.split("|")
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("|", 0),
        (">1 >2 >3 | <0 | <0 | <0", 3),  # a star
        (">1 | <0 >2 | <1 >3 | <2", 3),  # a chain
        (">2 >1 | <0 | <0 >3 | <2", 2),  # a tree
        (">1 >2 | <0 | <0 >3 | <2", 3),  # the same tree, its smaller half first
    ],
)
def test_rounds(text, expected):
    assert rounds(messages(text)) == expected
