"""All-reduce by hosts: what ranks of one host speak through."""

import platform

import pytest
import torch

from distributed.hierarchical import HierarchicalGroup, within_host
from distributed.runtime.group import Group
from distributed.runtime.report import RankError
from distributed.runtime.shared_buffers import STORES_IN_ORDER
from distributed.shared_memory import SharedGroup


def kinds(group):
    group = Group(group.device, None, group.local_size, group.backend)
    on_cpu = type(within_host(group))
    group.device = torch.device("cuda")  # as if: there may be no GPU
    return on_cpu, type(within_host(group))


@pytest.mark.skipif(platform.machine() not in STORES_IN_ORDER, reason="no shared memory here")
def test_memory_is_shared_by_processors_alone(pools):
    """What is on a GPU has NCCL inside of a host, whatever the processor is."""
    assert pools[2](kinds) == [(SharedGroup, Group)] * 2


def by_messages(group, per_host):
    hierarchy = HierarchicalGroup(group, per_host)
    hierarchy.inside = group.split(group.rank // per_host)  # as on a GPU
    x = torch.arange(7.0) * (group.rank + 1)
    return hierarchy.all_reduce(x).tolist()


@pytest.mark.parametrize(("ranks", "per_host"), [(4, 2), (3, 3), (4, 1)])
def test_it_adds_up_over_messages_too(pools, ranks, per_host):
    expected = [i * ranks * (ranks + 1) / 2 for i in range(7)]
    assert pools[ranks](by_messages, per_host) == [expected] * ranks


def on_uneven_hosts(group, per_host):
    """As if this host had three of the four ranks."""
    HierarchicalGroup(Group(group.device, group.board, 3, group.backend, group.queue), per_host)


@pytest.mark.parametrize(("given", "per_host"), [(None, 3), (2, 2)])
def test_hosts_that_do_not_come_out_even_are_refused(pools, given, per_host):
    with pytest.raises(RankError, match=f"per_host={per_host}: 4 ranks do not make such hosts"):
        pools[4](on_uneven_hosts, given)
