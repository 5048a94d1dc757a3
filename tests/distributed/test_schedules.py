"""Schedules of streams: closed forms, what hides beside what, and the threshold of C/W."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributed.cost import Cluster, Link, all_reduce, reduce_scatter_time
from distributed.planner.schedules import (
    STACKS,
    fsdp,
    threshold,
    threshold_with_latency,
    zero2,
    zero3,
)
from distributed.planner.streams import Streams, Work, simulate

ALL = [(stack, name) for stack, schedules in STACKS.items() for name in schedules]
NONE = Link(0.0, math.inf)


def work(tokens, psi=7e9, layers=100, speed=400e12, bandwidth=50e9, gradient=2.0, micro=1, **more):
    """Ψ parameters in equal layers, on hosts of one GPU, without latency."""
    link = Link(0.0, bandwidth)
    cluster = Cluster(1 << 20, 1, link, link, speed)._replace(**more)
    seconds = 6 * psi * tokens / speed
    return Work(
        cluster, [2 * psi / layers] * layers, [gradient * psi / layers] * layers,
        [1 / layers] * layers, seconds / 3, seconds * 2 / 3, micro,
    )  # fmt: skip


def test_a_stream_does_one_thing_after_the_other_and_a_wire_is_held():
    streams = Streams()
    assert streams.run("a", "1", 2.0) == 2
    assert streams.run("a", "2", 2.0) == 4
    assert streams.run("b", "3", 2.0, wire="w") == 2
    assert streams.run("c", "4", 2.0, wire="w") == 4
    assert streams.run("c", "5", 1.0, 9.0) == 10
    assert streams.end == 10


@pytest.mark.parametrize(("stack", "name"), ALL)
def test_without_messages_a_step_is_its_computation(stack, name):
    step = simulate(STACKS[stack][name], work(1024, inside=NONE, between=NONE, per_host=4))
    assert step.total == pytest.approx(step.compute)
    assert step.exposed == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("stack", "name"), ALL)
def test_no_stream_and_no_wire_does_two_things_at_once(stack, name):
    step = simulate(STACKS[stack][name], work(4096, per_host=8, micro=2, layers=8))
    for stream in {span.stream for span in step.spans}:
        spans = sorted(s for s in step.spans if s.stream == stream)
        spans.sort(key=lambda span: span.start)
        for one, two in pairwise(spans):
            assert one.end <= two.start + 1e-9


def test_bytes_of_a_long_step_are_those_of_the_books_formulas():
    """Where nothing is computed: 2Ψ elements for DDP, ZeRO-1 and 2, nearly 3Ψ for ZeRO-3."""
    seconds = 2 * 7e9 / 50e9  # of Ψ elements
    expected = {"DDP": 2, "ZeRO-1": 2, "ZeRO-2": 2, "ZeRO-3": 3 - 1 / 100}
    # These all-reduce and keep a part, and then gather or broadcast parameters as well.
    three = {("pytorch", "ZeRO-1"), ("deepspeed", "ZeRO-1"), ("deepspeed", "ZeRO-2")}
    for stack, name in ALL:
        if name in expected:
            times = expected[name] + ((stack, name) in three)
            step = simulate(STACKS[stack][name], work(1e-6))
            assert step.total == pytest.approx(times * seconds, rel=1e-3), (stack, name)


@given(
    st.floats(5e7, 5e9), st.floats(1e13, 1e15), st.sampled_from([2.0, 4.0]),
    st.sampled_from(["DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"]),
)  # fmt: skip
def test_from_c_over_w_tokens_on_messages_hide(bandwidth, speed, gradient, name):
    """Over three decades of C/W; Ψ cancels. Only the first and the last unit are waited for."""
    border = threshold(speed, bandwidth, gradient, name)
    given = 1e9, 200, speed, bandwidth, gradient
    schedule = STACKS["megatron" if name == "ZeRO-1" else "pytorch"][name]
    enough = simulate(schedule, work(1.05 * border, *given))
    few = simulate(schedule, work(0.5 * border, *given))
    assert enough.exposed / enough.total < 0.02
    assert few.exposed / few.total > 0.2


H100S = Cluster(512, 8, Link(3.4e-6, 360e9), Link(10e-6, 320e9), 400e12)
SIZE = 7e9, 32  # parameters and units


@pytest.mark.parametrize("gradient", [2.0, 4.0])
@pytest.mark.parametrize("name", ["DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3", "HSDP"])
@pytest.mark.parametrize("ranks", [8, 64, 512])
@pytest.mark.parametrize("units", [50, 200])
def test_from_the_threshold_with_latency_on_messages_hide(name, gradient, ranks, units):
    """Only the first and the last unit are waited for, and with 200 units, latency dominates."""
    cluster = H100S._replace(ranks=ranks)
    border = threshold_with_latency(cluster, 7e9, units, gradient, name)
    schedule = STACKS["megatron" if name == "ZeRO-1" else "pytorch"][name]

    def waits(tokens):
        given = work(tokens, layers=units, gradient=gradient)._replace(cluster=cluster)
        step = simulate(schedule, given)
        return step.exposed / step.total

    # Bytes of a ring of N ranks are (N − 1)/N of those that the threshold counts.
    assert waits(1.05 * border) < 3 / units
    assert waits(0.7 * border) > 0.05 + 1 / units


def test_with_latency_and_in_bytes_alone_the_thresholds_agree():
    for name in ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"):
        for gradient in (2, 4):
            prompt = H100S._replace(inside=Link(0, 360e9), between=Link(0, 320e9))
            of_bytes = threshold(400e12, 320e9, gradient, name)
            found = threshold_with_latency(prompt, *SIZE, gradient, name)
            assert found == pytest.approx(of_bytes)
            in_host = threshold_with_latency(prompt._replace(ranks=8), *SIZE, gradient, name)
            assert in_host == pytest.approx(of_bytes * 320 / 360)
            assert threshold_with_latency(H100S._replace(ranks=1), *SIZE, gradient, name) == 0


def test_latency_adds_a_message_per_unit_for_2_or_4_flop_per_parameter():
    """Forward, a gather for 2 FLOP; backward, two messages of ZeRO-3 or one of DDP for 4."""
    ring, both = reduce_scatter_time(H100S, 0), all_reduce(H100S, 0)
    of_ring, of_both = (32 * late * 400e12 / 7e9 for late in (ring, both))
    assert ring == pytest.approx(64 * 7 * 3.4e-6 + 63 * 10e-6)
    for name, gradient, late in (
        ("DDP", 2, of_both / 4), ("DDP", 4, of_both / 4), ("ZeRO-1", 4, of_ring / 2),
        ("ZeRO-2", 2, of_ring / 2), ("ZeRO-2", 4, of_ring / 2), ("ZeRO-3", 4, of_ring / 2),
    ):  # fmt: skip
        found = threshold_with_latency(H100S, *SIZE, gradient, name)
        assert found == pytest.approx(threshold(400e12, 320e9, gradient, name) + late)


def test_the_longer_pass_decides():
    """With fp64 gradients, ZeRO-2 sends 8 bytes and one message for 4 FLOP of the backward pass.

    On more ranks, latency dominates, and the forward pass is the longer one again.
    """
    for ranks, of_bytes, flop in ((64, 2500, 4), (512, 2500, 4), (2048, 1250, 2)):
        cluster = H100S._replace(ranks=ranks)
        late = 32 * reduce_scatter_time(cluster, 0) * 400e12 / 7e9 / flop
        found = threshold_with_latency(cluster, *SIZE, 8, "ZeRO-2")
        assert found == pytest.approx(of_bytes + late)


def test_hsdp_hides_its_gathers_in_a_host_beside_its_all_reduces_between_hosts():
    hosts = H100S._replace(ranks=64, per_host=1)
    between = threshold_with_latency(hosts, *SIZE, 4, "DDP")
    assert between == threshold_with_latency(H100S, *SIZE, 4, "HSDP")
    assert round(between, -2) == 2600
    inside = threshold_with_latency(H100S._replace(ranks=8), *SIZE, 4, "ZeRO-3")
    fast = H100S._replace(between=Link(10e-6, 3.2e12))
    assert inside == threshold_with_latency(fast, *SIZE, 4, "HSDP")
    assert inside == threshold_with_latency(H100S._replace(ranks=8), *SIZE, 4, "HSDP")


def test_the_thresholds_with_latency_of_the_pages():
    """As the pages on ZeRO-2 and 3 have them, with eight ports per host and with one."""
    kinds = [
        H100S._replace(ranks=ranks, between=Link(10e-6, bandwidth))
        for bandwidth in (320e9, 40e9)
        for ranks in (64, 512)
    ]
    found = {
        (name, gradient): [
            round(threshold_with_latency(kind, *SIZE, gradient, name), -2) for kind in kinds
        ]
        for name, gradient in (("ZeRO-2", 4), ("ZeRO-3", 2), ("ZeRO-3", 4))
    }
    assert found == {
        ("ZeRO-2", 4): [1500, 3200, 10_200, 12_000],
        ("ZeRO-3", 2): [1500, 3200, 10_200, 12_000],
        ("ZeRO-3", 4): [2100, 3800, 15_200, 17_000],
    }


def test_fp32_gradients_double_the_threshold_of_ddp_and_not_that_of_zero_1():
    found = {
        n: [threshold(400e12, 50e9, g, n) for g in (2, 4)] for n in ("DDP", "ZeRO-1", "ZeRO-3")
    }
    assert found == {"DDP": [8e3, 16e3], "ZeRO-1": [8e3, 8e3], "ZeRO-3": [8e3, 12e3]}


def test_zero_3_moves_half_more_and_has_the_same_threshold():
    border = threshold(400e12, 50e9)
    assert border == 8000
    assert simulate(zero3, work(1.05 * border)).exposed < 0.05 * simulate(zero3, work(border)).total
    assert (
        simulate(zero3, work(0.9 * border)).exposed
        > 3 * simulate(zero3, work(1.05 * border)).exposed
    )


def test_a_hosts_ports_together_divide_the_threshold():
    """Eight GPUs with a port of 50 GB/s each: 400 GB/s, and 1,000 tokens are enough."""
    host = work(1100, bandwidth=400e9, per_host=8, inside=Link(0.0, 1e13))
    for name in ("DDP", "ZeRO-1", "ZeRO-3"):
        step = simulate(STACKS["megatron"][name], host)
        assert step.exposed / step.total < 0.03


def test_production_gathers_beside_the_forward_pass_and_this_book_after_the_step():
    steps = {s: simulate(STACKS[s]["ZeRO-1"], work(10_000)).total for s in STACKS}
    gathered = 2 * 7e9 / 50e9
    assert steps["deepspeed"] == pytest.approx(steps["megatron"] + gathered, rel=0.03)
    assert steps["book"] == pytest.approx(steps["megatron"] + 2 * gathered, rel=0.03)


def test_hsdp_reduces_between_hosts_beside_the_backward_pass():
    apart = work(10_000, ranks=64, per_host=8, inside=Link(0.0, 1e13))
    ours, theirs = (simulate(STACKS[s]["HSDP"], apart) for s in ("book", "pytorch"))
    between = 2 * 7 / 8 * 2 * 7e9 / 50e9
    assert ours.total - theirs.total == pytest.approx(between, rel=0.03)


@pytest.mark.parametrize("stack", [s for s, name in ALL if name == "HSDP"])
def test_hsdp_reduces_between_hosts_once_a_step(stack):
    accumulated = work(10_000, ranks=64, per_host=8, micro=3, layers=12)
    streams = Streams()
    STACKS[stack]["HSDP"](accumulated, streams)
    between = [span for span in streams.spans if span.stream == "reduce between hosts"]
    assert len(between) == 12


def test_parameters_that_are_kept_are_gathered_once():
    """But the link is then the reductions' alone in the backward pass."""
    kept, resharded = (simulate(s, work(1.0)) for s in (zero2, zero3))
    gathers = [sum(s.stream == "gather" for s in step.spans) for step in (kept, resharded)]
    assert gathers == [100, 199]


def test_accumulation_sends_once_with_ddp_and_every_time_with_zero_3():
    one, four = (work(2000, micro=m) for m in (1, 4))
    for name, times in (("DDP", 1), ("ZeRO-1", 1), ("ZeRO-3", 4)):
        waits = [simulate(STACKS["pytorch"][name], each).exposed for each in (one, four)]
        assert waits[1] / waits[0] == pytest.approx(times, rel=0.25), name


def test_zero_2_gathers_in_the_first_micro_batch_and_reduces_in_each():
    step = simulate(zero2, work(2000, micro=3, layers=10))
    assert sum(span.stream == "gather" for span in step.spans) == 10
    assert sum(span.stream == "reduce" for span in step.spans) == 30


@pytest.mark.parametrize("schedule", [zero2, zero3])
def test_fsdp_ends_a_backward_pass_when_its_gradients_are_reduced(schedule):
    spans = simulate(schedule, work(2000, micro=2, layers=10)).spans
    reduces = sorted(span.end for span in spans if span.stream == "reduce")
    forwards = sorted(span.start for span in spans if span.name.startswith("forward "))
    assert len(reduces) == len(forwards) == 20
    assert forwards[10] >= reduces[9]


def test_a_broadcast_sends_everything_over_each_link_where_a_gather_leaves_out_a_share():
    few = work(1e-6, ranks=4, per_host=4, inside=Link(0.0, 50e9))
    once = 2 * 7e9 / 50e9
    step = simulate(STACKS["pytorch"]["ZeRO-1"], few)
    assert step.total == pytest.approx((2 * 3 / 4 + 1) * once, rel=1e-3)


@pytest.mark.parametrize(("stack", "name"), ALL)
def test_how_often_a_stack_sends_with_accumulation(stack, name):
    """Ψ elements of four micro-batches: who drops gradients in each pass has to reduce them all."""
    seconds = 2 * 7e9 / 50e9  # of Ψ elements
    as_often = {  # k passes
        ("pytorch", "ZeRO-2"): 4 + 1,  # what was gathered stays until the last
        ("deepspeed", "ZeRO-2"): 4 * 2 + 1,  # all-reduces in each
        ("book", "ZeRO-2"): 4 + 1,
    }
    once = 2 if name != "ZeRO-1" or stack in ("megatron", "book") else 3
    times = as_often.get((stack, name), 4 * 3 - 4 / 100 if name == "ZeRO-3" else once)
    step = simulate(STACKS[stack][name], work(1e-6, micro=4))
    assert step.total == pytest.approx(times * seconds, rel=1e-3)


@pytest.mark.parametrize(("stack", "name"), ALL)
def test_many_micro_batches_are_as_if_all_were_simulated(stack, name):
    schedule, many = STACKS[stack][name], work(4000, micro=7, layers=12)
    streams = Streams()
    schedule(many, streams)
    assert simulate(schedule, many).total == pytest.approx(streams.end)


def test_two_units_are_there_at_a_time():
    """The third is gathered when the first has been computed and freed."""
    slow = work(10_000, bandwidth=1e13)
    streams = Streams()
    fsdp(slow, streams)
    spans = {span.name: span for span in reversed(streams.spans)}
    assert spans["gather 2"].start == pytest.approx(spans["forward 0"].end)


def test_a_gather_over_hosts_uses_all_ports_of_a_host():
    far = Cluster(64, 8, Link(0.0, 450e9), Link(0.0, 400e9), 1.0)
    assert reduce_scatter_time(far, 1e9) == pytest.approx(1e9 * 63 / 64 / 400e9)
    assert reduce_scatter_time(far._replace(ranks=8), 1e9) == pytest.approx(1e9 * 7 / 8 / 450e9)
    assert reduce_scatter_time(far._replace(ranks=1), 1e9) == 0
