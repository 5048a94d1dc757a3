"""What a trace counts, against what the ranks were made to send."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from distributed.runtime.trace import Span, Trace, chrome_trace, overlap, save_chrome_trace


def pass_around(group, numbers):
    """Rank 0 sends an array around the ring of ranks, once."""
    group.trace = Trace(group.rank)
    x = np.zeros(numbers)
    if group.rank == 0:
        group.send(np.ones(numbers), to=1)
        group.receive(x, source=group.size - 1)
    else:
        group.receive(x, source=group.rank - 1)
        group.send(x + 1, to=(group.rank + 1) % group.size)
    group.all_reduce(x)
    trace, group.trace = group.trace, None
    return trace, x


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("numbers", [0, 1, 1000])
def test_every_message_is_counted_by_its_sender_and_its_receiver(pools, ranks, numbers):
    results = pools[ranks](pass_around, numbers)
    for trace, x in results:
        assert (x == sum(range(1, ranks + 1))).all(), "the messages really arrived"
        assert (trace.sent, trace.received, trace.messages) == (8 * numbers, 8 * numbers, 1)
        assert trace.handed_over == 8 * numbers
        assert {s.name for s in trace.spans} == {"send", "receive", "all_reduce sum"}
        assert sum(s.sent for s in trace.spans) == trace.sent
        assert sum(s.received for s in trace.spans) == trace.received


def test_spans_of_all_ranks_are_on_one_clock(pools):
    (first, _), (second, _) = pools[2](pass_around, 10)
    sent = next(s for s in first.spans if s.name == "send")
    received = next(s for s in second.spans if s.name == "receive")
    assert received.end > sent.start
    back = next(s for s in first.spans if s.name == "receive")
    assert back.end > received.end


class FakeWork:
    """A collective as NCCL's: its future is done at once, and only its `wait` orders the stream."""

    def __init__(self, error):
        self.error, self.waited = error, False

    def wait(self):
        self.waited = True
        if self.error:
            raise self.error

    def get_future(self):
        done = torch.futures.Future()
        done.set_result(None)
        return done


def test_a_trace_takes_no_waiting_and_no_error_away(pools):
    def wait_for_each(group):
        group.trace = Trace(group.rank)
        good, bad = FakeWork(None), FakeWork(RuntimeError("the link is down"))
        handles = [
            group._by_backend("all_reduce", torch.ones(1), lambda _, w=work: w, async_op=True)
            for work in (good, bad)
        ]
        assert not good.waited
        handles[0].wait()
        try:
            handles[1].wait()
        except RuntimeError as error:
            return good.waited, str(error), len(group.trace.spans)
        finally:
            group.trace = None

    assert pools[1](wait_for_each) == [(True, "the link is down", 2)]


def test_nothing_is_recorded_without_a_trace(pools):
    def quiet(group):
        group.all_reduce(np.ones(1))
        return group.trace

    assert pools[2](quiet) == [None, None]


def test_a_span_is_recorded_also_when_its_block_fails():
    trace = Trace(0)
    with pytest.raises(KeyError), trace.span("step"):
        raise KeyError
    assert [s.name for s in trace.spans] == ["step"]


intervals = st.lists(
    st.tuples(
        st.sampled_from(["compute", "communication"]), st.integers(0, 50), st.integers(1, 20)
    ),
    max_size=8,
)


@given(intervals)
def test_seconds_and_overlap_equal_those_of_counting_tick_by_tick(intervals):
    trace = Trace(0, [Span(kind, kind, start, start + n) for kind, start, n in intervals])
    ticks = {
        kind: {t for k, start, n in intervals if k == kind for t in range(start, start + n)}
        for kind in ("compute", "communication")
    }
    for kind, expected in ticks.items():
        assert trace.seconds(kind) == len(expected)
    assert overlap(trace) == len(ticks["compute"] & ticks["communication"])


def test_a_chrome_trace_has_every_span_of_every_rank_in_microseconds(tmp_path):
    traces = [
        Trace(0, [Span("backward", "compute", 5.0, 5.5)]),
        Trace(1, [Span("all_reduce sum", "communication", 5.25, 5.75, sent=8)]),
    ]
    save_chrome_trace(traces, tmp_path / "trace.json")
    written = json.loads((tmp_path / "trace.json").read_text())
    assert written == chrome_trace(traces)
    spans = [event for event in written["traceEvents"] if event["ph"] == "X"]
    assert [(e["pid"], e["name"], e["ts"], e["dur"]) for e in spans] == [
        (0, "backward", 0, 500_000),
        (1, "all_reduce sum", 250_000, 500_000),
    ]
    assert spans[1]["args"]["sent"] == 8


def test_a_chrome_trace_of_nothing_is_empty():
    assert chrome_trace([])["traceEvents"] == []


def test_waiting_beside_communication_is_no_overlap():
    spans = [Span("reduce", "communication", 1.0, 3.0), Span("wait", "waiting", 0.0, 4.0)]
    assert overlap(Trace(0, spans)) == 0
    assert overlap(Trace(0, [*spans, Span("backward", "compute", 2.5, 5.0)])) == 0.5
