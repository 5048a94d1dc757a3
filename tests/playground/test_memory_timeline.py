"""The figure of a step's memory: few points, and among them the peak."""

import matplotlib.pyplot as plt

from playground.show.memory_timeline import POINTS, memory_timeline, thinned


def test_thinning_keeps_the_peak_and_the_order_of_the_parts():
    history = [("forward", {"logits": float(i)}) for i in range(1000)]
    history += [("loss", {"logits": 5000.0}), ("step", {})]
    found = thinned(history)
    assert [part for part, _ in found] == ["forward"] * POINTS + ["loss", "step"]
    assert ("loss", {"logits": 5000.0}) in found
    assert found[POINTS - 1] == history[999]


def test_each_panel_says_how_high_its_peak_is():
    moments = ("after the layers", "in the loss", "after the backward pass", "optimizer")
    history = [(moment, {"parameters": 1e6, "logits": 2e6}) for moment in moments]
    figure = memory_timeline({"one": history, "two": history})
    said = [[text.get_text() for text in axis.texts] for axis in figure.axes]
    plt.close(figure)
    assert said == [["3.0 MB"], ["3.0 MB"]]
