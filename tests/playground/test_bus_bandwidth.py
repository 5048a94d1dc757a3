"""Published bus bandwidths: complete rows, and what they mean."""

from itertools import pairwise

import pytest

from playground.show.bus_bandwidth import bus_bandwidth_figure, model, published


@pytest.mark.parametrize(("collective", "rows"), [("all-reduce", 20), ("reduce-scatter", 7)])
def test_every_row_has_a_source_and_sizes_double(collective, rows):
    found = published(collective)
    assert len(found) == rows
    assert all(row.source and row.gpus == 8 for row in found)
    assert all(b.size == 2 * a.size for a, b in pairwise(found))


def test_bus_bandwidth_is_what_a_ring_would_send_over_the_time():
    """The same sources publish algorithm bandwidth, and time."""
    last = published("all-reduce")[-1]
    assert last.size / last.seconds / 1e9 == pytest.approx(275.58, rel=1e-4)
    first = published("reduce-scatter")[0]
    assert first.seconds * 1e6 == pytest.approx(377.2, rel=1e-3), "the time that was published"


def test_the_figure_draws_all_rows_and_the_model():
    (axis,) = bus_bandwidth_figure().axes
    rate, line, squares, circles = axis.lines
    assert set(rate.get_ydata()) == {450}
    assert max(line.get_ydata()) <= model().bandwidth / 1e9
    assert (len(squares.get_xdata()), len(circles.get_xdata())) == (7, 20)
