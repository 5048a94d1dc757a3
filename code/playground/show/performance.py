"""Recorded benchmarks as a page shows them: every row, its aim, and the reason for missing it.

`bench/aims.json` contains aims and reasons; the first pattern that matches a row counts. A row
without an aim should be no slower than its peer, or have a reason.
"""

import json
from fnmatch import fnmatch
from typing import Any

import matplotlib.pyplot as plt
from IPython.display import display
from matplotlib.figure import Figure

from playground.show import recorded
from playground.show.colours import GREY, RANKS
from playground.show.tables import Table

AIMS = json.loads((recorded.FOLDER.parent / "aims.json").read_text())
REACHED, MISSED = "reached", "missed"
COLOURS = {REACHED: RANKS[0], MISSED: RANKS[5]}


def aim_of(row: dict[str, Any]) -> dict[str, Any]:
    """What is wanted of a row: `ratio` (at least) or `seconds` (at most), and `why` it misses."""
    return next((aim for aim in AIMS if fnmatch(row["id"], aim["rows"])), {})


def verdict(row: dict[str, Any]) -> str:
    """Reached or missed, by the median. Without an aim, no slower than the peer is reached."""
    aim = aim_of(row)
    if "seconds" in aim:
        return REACHED if row["ours_s"] <= aim["seconds"] else MISSED
    return REACHED if row["ratio"] >= aim.get("ratio", 1.0) else MISSED


def chosen(name: str, pattern: str) -> list[dict[str, Any]]:
    """Rows of one recorded run whose id fits one of the patterns, which commas divide."""
    patterns = pattern.split(",")
    return [row for row in recorded.rows(name) if any(fnmatch(row["id"], p) for p in patterns)]


def ratios(name: str, pattern: str = "*") -> Figure:
    """Every row as a point, its range as a line, its aim as a mark: above 1, ours is faster."""
    rows = chosen(name, pattern)
    figure, axis = plt.subplots(figsize=(7.2, 0.9 + 0.21 * len(rows)))
    axis.axvline(1, color=GREY, lw=1)
    for place, row in enumerate(rows):
        colour = COLOURS[verdict(row)]
        axis.plot([row["ratio_low"], row["ratio_high"]], [place] * 2, color=colour, lw=1.5)
        axis.plot(row["ratio"], place, "o", color=colour, ms=5)
        if "ratio" in aim_of(row):
            axis.plot(aim_of(row)["ratio"], place, "|", color="black", ms=10, mew=1.5)
    for label, colour in COLOURS.items():
        if any(verdict(row) == label for row in rows):
            axis.plot([], [], "o-", color=colour, label=label)
    if any("ratio" in aim_of(row) for row in rows):
        axis.plot([], [], "|", color="black", ms=10, mew=1.5, label="aim")
    axis.set_yticks(range(len(rows)), [row["id"] for row in rows], fontsize=8)
    axis.set(xscale="log", xlabel="times as fast as the peer", ylim=(len(rows) - 0.4, -0.6))
    shown = [n for n in (0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 50) if in_view(axis.get_xlim(), n)]
    axis.set_xticks(shown, [f"{n:g}×" for n in shown])
    axis.minorticks_off()
    axis.legend(ncols=4, fontsize=8, loc="lower right", bbox_to_anchor=(1, 1))
    return figure


def in_view(limits: tuple[float, float], value: float) -> bool:
    return limits[0] <= value <= limits[1]


def table(name: str, pattern: str = "*") -> Table:
    """Ours and the peer's medians, the ratio with its range, and what was wanted."""
    rows = chosen(name, pattern)
    with_copy = any("copy_s" in row for row in rows)
    with_share = any("memory_share" in row for row in rows)
    with_aim = any({"ratio", "seconds"} & aim_of(row).keys() for row in rows)
    header = ["row", "this book", "the peer", *["a plain copy"] * with_copy]
    header += [*["share of memory bandwidth"] * with_share, "ratio", "range"]
    lines = []
    for row in rows:
        aim = aim_of(row)
        wanted = f"≥ {aim['ratio']:g}×" if "ratio" in aim else "—"
        if "seconds" in aim:
            wanted = f"≤ {aim['seconds'] * 1e3:g} ms"
        times = [row["ours_s"], row["peer_s"], *[row.get("copy_s")] * with_copy]
        shown = ["—" if t is None else duration(t) for t in times]
        if with_share:
            shown.append(f"{row['memory_share']:.0%}" if "memory_share" in row else "—")
        spread = f"{row['ratio_low']:.2f} – {row['ratio_high']:.2f}"
        result = verdict(row) if wanted != "—" else ""
        line = [*shown, f"{row['ratio']:.2f}", spread, row["pairs"], *[wanted] * with_aim]
        unbroken = [str(value).replace(" ", "\N{NO-BREAK SPACE}") for value in line]
        lines.append((row["id"], *unbroken, *[result] * with_aim))
    peers = ", ".join(dict.fromkeys(row["peer"] for row in rows))
    stamps = "; ".join(dict.fromkeys(recorded.stamp(row) for row in rows))
    note = f"Peer: {peers}. Measured on {stamps}."
    return Table([*header, "pairs", *["aim", ""] * with_aim], lines, note)


def duration(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.1f} µs"


def reasons(name: str, pattern: str = "*") -> Table:
    """Why rows are below their aim, or slower than their peer where no aim is stated."""
    below: dict[str, list[str]] = {}
    for row in chosen(name, pattern):
        if verdict(row) != REACHED:
            below.setdefault(aim_of(row).get("why", "not known"), []).append(row["id"])
    lines = [("\n".join(ids), why) for why, ids in below.items()]
    return Table(["below the aim, or below 1", "because"], lines)


def details(name: str, pattern: str = "*") -> None:
    """Show the table of the rows, the reasons of those that miss their aim, and the command."""
    display(table(name, pattern))
    if (why := reasons(name, pattern)).rows:
        display(why)
    print(command(name))


QUESTIONS = (  # a question, the recorded run, the rows that answer it
    ("Is a ring on messages as fast as gloo's, at 64 MB?", "collectives", "all_reduce/ring/64MB/*"),
    (
        "And the ways with few messages, at 4 kB?",
        "collectives",
        "all_reduce/central/4KB/*,all_reduce/tree/4KB/*",
    ),
    ("What does a tensor in shared memory gain?", "collectives", "all_reduce/resident/*"),
    ("Is this book's DDP as fast as PyTorch's?", "ddp", "ddp/*"),
    ("And by hand, a message for each tensor?", "ddp", "ddp_by_hand/*"),
    ("ZeRO-1, 2 and 3 over gloo?", "zero", "zero?/gloo/*"),
    ("ZeRO-1, 2 and 3 in shared memory?", "zero", "zero?/shared/*"),
    ("Starting four ranks, beside torchrun?", "launching", "launch/*"),
)


def conclusions() -> Table:
    """The questions that most readers have, each with the range of the ratios that answer it."""
    lines = []
    for question, name, pattern in QUESTIONS:
        found = [row["ratio"] for row in chosen(name, pattern)]
        low, high = f"{min(found):.2g}", f"{max(found):.2g}"
        lines.append((question, low if low == high else f"{low} to {high}", len(found)))
    return Table(["", "times as fast as the peer", "rows"], lines)


def command(name: str) -> str:
    """What repeats a recorded run, and keeps it."""
    kinds = dict.fromkeys(row["id"].split("/")[0] for row in recorded.rows(name))
    return f"python -m bench --only '{','.join(f'{kind}/*' for kind in kinds)}' --record {name}"
