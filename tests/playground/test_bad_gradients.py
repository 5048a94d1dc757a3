"""The figure of bad gradients: a cell per rank and parameter, and a word on those that are bad."""

from playground.show.bad_gradients import bad_gradients


def test_only_a_bad_gradient_is_marked_and_on_its_rank():
    before, after = [[False, False], [True, False]], [[True, False], [True, False]]
    figure = bad_gradients({"own": before, "averaged": after}, ["a", "b"])
    own, averaged = figure.axes
    assert [len(axis.patches) for axis in figure.axes] == [4, 4]
    assert [text.get_position() for text in own.texts] == [(0.5, 1.5)]
    assert [text.get_position() for text in averaged.texts] == [(0.5, 0.5), (0.5, 1.5)]
    assert own.get_title(loc="left") == "own"
