"""Tables of pages, as HTML and as text."""

import pytest

from playground.show.cluster_check import judged, recorded
from playground.show.tables import Table


def test_html_escapes_values_keeps_line_breaks_and_sets_numbers_to_the_right():
    html = Table(["a", "b"], [["x < y\nz", 3]], "from <here>")._repr_html_()
    assert "<td>x &lt; y<br>z</td>" in html
    assert '<td class="text-right">3</td>' in html
    assert html.endswith('<p class="table-note">from &lt;here&gt;</p>')


@pytest.mark.parametrize(
    ("value", "right"),
    [
        ("0.15 s", True),
        ("1.2e-07", True),
        ("40%", True),
        ("12.8 GB/s", True),
        ("100 Mbit/s", True),
        ("408 TFLOP/s", True),
        ("2 ranks, not done", False),
        ("x 2", False),
    ],
)
def test_a_quantity_stands_to_the_right_and_a_sentence_to_the_left(value, right):
    assert ("text-right" in Table(["a"], [[value]])._repr_html_()) == right


def test_a_number_is_set_as_in_a_sentence():
    html = Table(["a"], [["-21%"], ["1.2e-07"], ["−3 s"], ["a-b"]])._repr_html_()
    assert [">−21%<" in html, ">1.2e−07<" in html, ">−3 s<" in html, ">a-b<" in html] == [True] * 4


def test_a_heading_stands_above_its_numbers():
    html = Table(["", "name", "n"], [["x", "y", 1], ["x", "y", ""]])._repr_html_()
    assert '<td></td><th>name</th><th class="text-right">n</th>' in html


def test_text_is_aligned():
    table = Table(["name", "n"], [["a", 10], ["longer", 2]], "a note")
    assert repr(table) == "name    n\na       10\nlonger  2\na note"


def test_a_row_of_the_wrong_length_is_named():
    with pytest.raises(ValueError, match="1 values under 2 headings"):
        Table(["a", "b"], [["alone"]])


def test_a_bad_verdict_has_a_color_and_a_good_one_has_none():
    table = judged(recorded("ill"))
    html = table._repr_html_()
    bad = [row for row in table.rows if row[0] == "BAD"]
    assert html.count('<td class="verdict-bad">BAD</td>') == len(bad) > 0
    assert "<td>ok</td>" in html


def test_what_was_rounded_to_zero_has_no_sign():
    values = ["-0.0%", "+0%", "-0", "+0.0 s", "-0.1%", "+0.3", "-", 0, "0%"]
    assert Table([""] * 9, [values]).rows == [
        ["0.0%", "0%", "0", "0.0 s", "-0.1%", "+0.3", "-", 0, "0%"]
    ]
