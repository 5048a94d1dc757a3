"""The recorded run that learns to spell (`bench/spelling.py`), as tables and figures."""

import json
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from playground.show.colours import RANKS
from playground.show.recorded import FOLDER, stamp
from playground.show.tables import Table


def read() -> dict[str, Any]:
    return json.loads((FOLDER / "spelling.json").read_text())


def looks_of(run: dict[str, Any], steps: tuple[int, ...] = (100, 300, 600, 1500)) -> Table:
    """What it writes for three numbers, and how many of those that it never saw are right."""
    looks = {look["step"]: look for look in run["looks"]}
    unseen = list(looks[steps[0]]["said"])[:2]
    rows = [
        (step, *(looks[step]["said"][n] for n in unseen), f"{looks[step]['right']:.0%}")
        for step in steps
    ]
    took = f"{run['ranks']} ranks, {looks[steps[-1]]['seconds']:.0f} s. {stamp(run)}"
    return Table(["step", *(f"{n}, held out" for n in unseen), "right, of 50 held out"], rows, took)


def curve_of(run: dict[str, Any]) -> Figure:
    figure, axis = plt.subplots()
    axis.plot(range(1, len(run["losses"]) + 1), run["losses"], color=RANKS[0], lw=1, label="loss")
    axis.set(xlabel="step", ylabel="loss", ylim=(0, None))
    right = axis.twinx()
    right.plot(
        [look["step"] for look in run["looks"]],
        [look["right"] * 100 for look in run["looks"]],
        "o-", color=RANKS[1], label="held-out numbers spelled right (%)",
    )  # fmt: skip
    right.set(ylim=(0, 100), ylabel="right (%)")
    figure.legend(loc="center", bbox_to_anchor=(0.6, 0.42))
    return figure


def jump_of(run: dict[str, Any], shown: int = 6) -> Table:
    """Losses after resuming with the optimizer's states and without them."""
    kept, forgot = (run["go_on"][way] for way in ("with", "without"))
    rows = [
        ("first step: a weight moves by", *(f"{way['moved']:.2f} rates" for way in (kept, forgot)))
    ]
    rows += [
        (f"loss of step {run['stop'] + 1 + i}", f"{a:.3f}", f"{b:.3f}")
        for i, (a, b) in enumerate(zip(kept["losses"], forgot["losses"], strict=True))
        if i < shown or i == len(kept["losses"]) - 1
    ]
    return Table(["resumed", "with the optimizer's states", "with weights alone"], rows, stamp(run))
