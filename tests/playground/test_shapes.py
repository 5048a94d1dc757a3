"""The shapes of collectives, as the book's own code makes them."""

from playground.show.shapes import SHAPES, Shapes


def test_each_collective_ends_with_what_its_name_says():
    shapes = Shapes(4)
    after = {shape.name: shapes.states[shape.name][1] for shape in SHAPES}
    whole, columns = 0b1111, [1, 2, 4, 8]
    assert after["broadcast"] == [[1] * 4] * 4
    assert after["reduce"] == [[whole] * 4, [0] * 4, [0] * 4, [0] * 4]
    assert after["scatter"] == [[int(r == part) for part in range(4)] for r in range(4)]
    assert after["gather"] == [columns, [0] * 4, [0] * 4, [0] * 4]
    assert after["all-gather"] == after["all-to-all"] == [columns] * 4
    assert after["reduce-scatter"] == [[whole * (r == part) for part in range(4)] for r in range(4)]
    assert after["all-reduce"] == [[whole] * 4] * 4


def test_the_figure_says_in_words_what_it_draws():
    shapes = Shapes(4)
    assert "scatter: parts on ranks 0, 1, …: 4, 0, 0, 0; after: 1, 1, 1, 1" in repr(shapes)
    assert shapes._repr_html_().count("<svg") == len(SHAPES)
