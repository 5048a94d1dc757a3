"""The chart of the threshold agrees with the planner's schedules."""

import itertools
import re

import pytest
import vl_convert

from distributed.planner.schedules import threshold
from distributed.runtime.trace import overlapped
from playground.show.threshold_chart import BILLIONS, LAYERS, LINKS, threshold_chart


@pytest.mark.parametrize("link", LINKS.values())
@pytest.mark.parametrize(("tokens", "teraflops"), [(512, 200), (8192, 400), (65536, 1000)])
def test_it_says_the_threshold_and_how_long_a_step_waits(tokens, teraflops, link):
    least = threshold(teraflops * 1e12, link * 1e9)
    svg = vl_convert.vega_to_svg(threshold_chart(tokens, teraflops, link).vega)
    (said,) = re.findall(r">hides from ([\d,]+) tokens on: with ([^<]*)</text>", svg)
    forward, send = 2 * BILLIONS * tokens / teraflops, 2 * 2 * BILLIONS / link * 1000
    ready = [forward + 2 * forward * layer / LAYERS for layer in range(1, LAYERS + 1)]
    wait = overlapped(ready, [send / LAYERS] * LAYERS, 3 * forward) - 3 * forward
    only_last = " for the last message" if wait < 1.001 * send / LAYERS else ""
    assert (tokens > least) == bool(only_last)
    shown = f"{wait:.1f}" if wait < 10 else f"{wait:,.0f}"
    assert said == (f"{least:,.0f}", f"{tokens:,} you wait {shown} ms{only_last}")


@pytest.mark.parametrize("link", [320.0, 40.0], ids=["network is faster", "network is slower"])
def test_each_layers_message_begins_when_its_gradients_are_ready_and_the_link_is_free(link):
    svg = vl_convert.vega_to_svg(threshold_chart(4096, 400, link).vega)
    drawn = re.findall(r'"time \(ms\): ([\d.]+); lane: sends; end: ([\d.]+);', svg)
    ends, message = [0.0], 2 * 2 * BILLIONS / link * 1000 / LAYERS
    forward = 2 * BILLIONS * 4096 / 400
    for layer in range(1, LAYERS + 1):
        ends.append(max(forward + 2 * forward * layer / LAYERS, ends[-1]) + message)
    assert [float(end) for _, end in drawn] == pytest.approx(ends[1:])
    assert [float(begin) for begin, _ in drawn] == pytest.approx([e - message for e in ends[1:]])
    gaps = [float(after[0]) - float(one[1]) for one, after in itertools.pairwise(drawn)]
    if link == 320.0:  # slivers, one for every layer that computes
        assert round(message, 2) == 0.39
        assert [round(gap + message, 2) for gap in gaps] == [1.28] * 47
        assert sum(float(begin) < 50.4 for begin, _ in drawn) == 15
    else:  # a solid block
        assert gaps == pytest.approx([0] * 47, abs=1e-6)


def test_the_books_two_networks_are_at_80_percent_of_line_rate():
    assert LINKS["eight ports at 80%: 320 GB/s"] == 0.8 * 8 * 50
    assert LINKS["one port at 80%: 40 GB/s"] == 0.8 * 50
