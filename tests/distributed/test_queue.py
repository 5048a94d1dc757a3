"""Collectives of a group start in program order, synchronous or not, whatever carries them."""

import contextlib
import random
import threading
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from distributed.hierarchical import HierarchicalGroup
from distributed.ring_group import RingGroup
from distributed.runtime.queue import Queue
from distributed.shared_memory import SharedGroup

CALLS = 40


def a_random_program(group, seed):
    """One rank: calls of many kinds on many groups; which calls gave something else than wanted."""
    dice = random.Random(seed)  # the same throws on every rank: they all call the same
    part = group.split(group.rank % 2)
    groups = {
        "backend": group,
        "ring": RingGroup(group),
        "another ring": RingGroup(group),
        "shared": SharedGroup(group, 1024),
        "hierarchical": HierarchicalGroup(group, 2),
        "part": part,
        "ring of a part": RingGroup(part),
    }
    members = {name: [*range(group.size)] for name in groups}
    for name in ("part", "ring of a part"):
        members[name] = [*range(group.rank % 2, group.size, 2)]
    open_handles, wrong = [], []

    def check(number, name, found, wanted):
        if not torch.equal(found, wanted):
            wrong.append((number, name))

    for number in range(CALLS):
        name = dice.choice([*groups])
        op = dice.choice(["sum", "max", "broadcast", "all_gather", "reduce_scatter"])
        s, is_async = dice.choice([1, 7, 500]), dice.random() < 0.6
        of, ranks = groups[name], members[name]
        if name == "hierarchical":
            op = dice.choice(["sum", "max"])
        x = torch.full((s,), float(number + group.rank))
        if op in ("sum", "max"):
            call = of.all_reduce(x, op, async_op=is_async)
            each = [float(number + rank) for rank in ranks]
            out, wanted = x, torch.full((s,), sum(each) if op == "sum" else max(each))
        elif op == "broadcast":
            source = dice.randrange(2)
            call = of.broadcast(x, source, async_op=is_async)
            out, wanted = x, torch.full((s,), float(number + ranks[source]))
        elif op == "all_gather":
            out = torch.empty(s * of.size)
            call = of.all_gather(x, out, async_op=is_async)
            wanted = torch.tensor([float(number + rank) for rank in ranks]).repeat_interleave(s)
        else:
            out = torch.empty(s)
            whole = x.repeat(of.size)
            call = of.reduce_scatter(whole, out, async_op=is_async)
            wanted = torch.full((s,), float(sum(number + rank for rank in ranks)))
        if is_async:
            open_handles.append((call, number, name, out, wanted))
        else:
            check(number, name, out, wanted)
        while open_handles and dice.random() < 0.3:  # in any order, and some not for a long time
            call, *rest, out, wanted = open_handles.pop(dice.randrange(len(open_handles)))
            call.wait()
            check(*rest, out, wanted)
    for call, *rest, out, wanted in open_handles:
        call.wait()
        check(*rest, out, wanted)
    part.close()  # the ranks stay, and each has ten threads
    return wrong


@given(seed=st.integers(0, 1 << 30))
def test_any_program_of_collectives_gives_what_it_should_on_every_rank(pools, seed):
    assert pools[4](a_random_program, seed) == [[]] * 4


def test_what_is_begun_first_is_done_first():
    queue, done = Queue(), []

    def slow(name):
        time.sleep(0.02)
        done.append(name)

    waits = [queue.submit(lambda i=i: slow(i)) for i in range(3)]
    assert not queue.is_free()
    queue.wait_turn()
    assert queue.is_free()
    done.append("the caller's")
    waits += [queue.submit(lambda: slow("later"))]
    for wait in reversed(waits):
        wait()
    assert done == [0, 1, 2, "the caller's", "later"]


def test_what_is_part_of_a_collective_does_not_wait_for_it():
    queue, here = Queue(), []

    def whole():
        queue.wait_turn()
        queue.submit(lambda: here.append(threading.current_thread().name))()
        return queue.is_free(), queue.in_thread()

    assert queue.submit(whole)() == (True, True)
    assert here == ["collectives_0"]
    assert not queue.in_thread()


def test_on_a_gpu_the_thread_waits_for_the_callers_stream_and_the_caller_for_its(monkeypatch):
    """Played by names: on the GPU itself tests/gpu tries it."""
    said = []

    class Stream:
        def __init__(self, name="beside"):
            self.name = name

        def wait_event(self, event):
            said.append(f"{self.name} waits for {event.after}")

    now = threading.local()

    def current():
        return getattr(now, "stream", default)

    default = Stream("default")

    class Event:
        def record(self):
            self.after = current().name

    @contextlib.contextmanager
    def on(stream):
        before, now.stream = current(), stream
        yield
        now.stream = before

    fakes = {"is_initialized": lambda: True, "Stream": Stream, "Event": Event}
    fakes |= {"stream": on, "current_stream": current}
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    queue = Queue()
    for _ in range(2):  # the second time on the same stream
        with on(Stream("forward")):
            wait = queue.submit(lambda: said.append(f"works on {current().name}"))
            wait()
    failing = queue.submit(lambda: 1 // 0)
    queue.wait_turn()
    said.append(f"runs on {current().name}")
    with pytest.raises(ZeroDivisionError):
        failing()
    step = ["beside waits for forward", "works on beside", "forward waits for beside"]
    then = ["beside waits for default", "default waits for beside", "runs on default"]
    assert said == step + step + then


def test_an_error_is_raised_by_its_own_handle_alone():
    queue = Queue()
    wait = queue.submit(lambda: 1 // 0)
    queue.wait_turn()
    with pytest.raises(ZeroDivisionError):
        wait()
