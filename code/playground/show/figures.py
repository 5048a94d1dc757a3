"""Style of all figures, and the figures that more than one page draws.

The same colors mean the same things on every page. Figures are SVG with a style sheet inside, so
they follow the theme of the page: data keep their colors, while text and lines change theirs.
"""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from cycler import cycler
from IPython import get_ipython
from IPython.core.pylabtools import print_figure
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from distributed.runtime.trace import Trace
from playground.show.colours import GREY, INK, KINDS, PALE, QUIET, RANKS

# Colors in the dark theme, except those of data. Black text on data stays black.
IN_THE_DARK = {
    f"fill: {INK}": "#ced6dd",
    f"stroke: {INK}": "#ced6dd",
    "stroke: #000000": "#ced6dd",
    f"fill: {GREY}": "#a3abb6",
    f"stroke: {GREY}": "#a3abb6",
    f"fill: {QUIET}": "#4d5663",
    f"fill: {PALE}": "#29313d",
    "stroke: #ffffff": "#121212",  # between bars: the page shows through
}


def follow_theme(svg: str) -> str:
    """The drawing with a style sheet for the dark theme.

    An SVG in an <img> is asked for the colour scheme of the page around it. It paints its own
    background, so that it reads well even where a browser asks the system instead of the page.
    """
    rules = "".join(
        f'[style*="{drawn}"]{{{drawn.partition(":")[0]}:{colour} !important}}'
        for drawn, colour in IN_THE_DARK.items()
    )
    dark = f"@media (prefers-color-scheme: dark){{svg{{background:#121212}}{rules}}}"
    return svg.replace("<defs>", f"<style>svg{{background:#fff}}{dark}</style>\n <defs>", 1)


def to_svg(figure: Figure) -> str:
    """What a page shows of a figure; nothing in it tells when it was made."""
    nothing = dict.fromkeys(["Creator", "Date", "Format", "Type"])
    return follow_theme(print_figure(figure, "svg", metadata=nothing))


def use_style() -> None:
    """Make figures of the book's style, from here on, in this notebook."""
    from matplotlib_inline.backend_inline import set_matplotlib_formats

    set_matplotlib_formats("svg")
    if shell := get_ipython():  # none in a page that was taken along as a script
        shell.display_formatter.formatters["image/svg+xml"].for_type(Figure, to_svg)
    plt.rcParams.update(
        {
            "figure.figsize": (7.2, 3.2),
            "figure.facecolor": "none",  # the drawing's own paper shows through
            "axes.facecolor": "none",
            "figure.constrained_layout.use": True,
            "axes.prop_cycle": cycler(color=RANKS),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.edgecolor": GREY,
            "axes.labelcolor": INK,
            "axes.titlesize": 11,
            "axes.titlelocation": "left",
            "text.color": INK,
            "xtick.color": GREY,
            "ytick.color": GREY,
            "font.size": 10,
            "legend.frameon": False,
            "svg.fonttype": "none",
            "svg.hashsalt": "book",  # names within a drawing are the same in every run
        }
    )


def timeline(traces: Sequence[Trace], title: str = "") -> Figure:
    """Draw what every rank did when: a lane for computation, below it one for communication."""
    spans = [span for trace in traces for span in trace.spans]
    start = min(span.start for span in spans)
    lanes = {"compute": 0.0, "communication": 0.42, "waiting": 0.42}
    figure, axis = plt.subplots(figsize=(7.2, 0.7 + 0.55 * len(traces)))
    for trace in traces:
        for span in trace.spans:
            axis.barh(
                trace.rank + lanes[span.kind],
                span.seconds * 1e3,
                left=(span.start - start) * 1e3,
                height=0.4,
                color=KINDS[span.kind],
                edgecolor="white",
                linewidth=0.5,
            )
    kinds = [kind for kind in KINDS if any(span.kind == kind for span in spans)]
    axis.legend(
        [Patch(color=KINDS[kind]) for kind in kinds],
        kinds,
        ncols=len(kinds),
        loc="lower right" if title else "lower left",
        bbox_to_anchor=(1 if title else 0, 1),
        handlelength=1.2,
        columnspacing=1,
    )
    axis.set(xlabel="time (ms)", title=title)
    axis.set_yticks([t.rank + 0.2 for t in traces], [f"rank {t.rank}" for t in traces])
    axis.invert_yaxis()
    return figure


def mark_agreement(axis: Axes, ends: tuple[float, float], within: float) -> None:
    """The line on which published is predicted, in the band of those that differ so little."""
    axis.plot(ends, ends, color=GREY, lw=1)
    low, high = ([(1 + sign * within) * x for x in ends] for sign in (-1, 1))
    axis.fill_between(ends, low, high, color=GREY, alpha=0.15)
