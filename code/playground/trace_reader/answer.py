"""HTML of an analysis of traces: the verdict, bars, a timeline that zooms, and tables."""

import json
from collections.abc import Iterable
from html import escape

from distributed.read_trace.__main__ import guess, work_of
from distributed.read_trace.breakdown import odd_steps
from distributed.read_trace.events import Events, TraceError, too_large
from distributed.read_trace.families import short
from distributed.read_trace.intervals import Stretches, minus
from distributed.read_trace.kernels import by_name, clipped
from distributed.read_trace.rank_trace import Collector, RankTrace
from distributed.read_trace.recordings import one_for_each_rank
from distributed.read_trace.rules import FAST, PAGES
from distributed.read_trace.summary import describe, format_bytes, groups, head, headline
from distributed.read_trace.verdict import Finding, RankSteps, Verdict, judge, kernels_inside, ms

MOST = 600_000_000  # largest JSON that a tab reads (bytes)
WIDE = 100_000  # width of a timeline, in its own units
SHOWN = 4  # number of ranks whose lanes are shown
PARTS = {
    "useful": "useful at full speed",
    "slow": "slow kernels",
    "compute": "computation",
    "exposed": "exposed communication",
    "data": "data",
    "gaps": "gaps",
}
LANES = {"compute": "compute", "communication": "messages", "copy": "copies"}


class Reading:
    """Traces to analyze together: receives bytes, file by file, and returns HTML."""

    def __init__(self, root: str) -> None:
        self.root = root  # path from the page to the book's root, such as ../../
        self.traces: list[RankTrace] = []
        self.unread: list[str] = []  # reasons why files were not read
        self.events: Events | None = None
        self.kept = Collector("")

    def begin(self, name: str, size: int = 0) -> str:
        """Begin a file with `size` bytes of JSON; returns an error if it is too large, or ""."""
        self.events, self.kept = Events(name, MOST), Collector(name)
        return self._unread(too_large(name, MOST)) if size > MOST else ""

    def feed(self, data: bytes) -> str:
        """Read the next bytes of the file; returns an error, or ""."""
        data = data if isinstance(data, bytes) else data.to_bytes()  # from JavaScript in a tab
        assert self.events is not None
        try:
            for event in self.events.feed(data):
                self.kept.take(event)
        except TraceError as error:
            return self._unread(error)
        return ""

    def end(self) -> str:
        """Finish the file; returns an error, or ""."""
        assert self.events is not None
        try:
            self.events.close()
            self.traces.append(self.kept.finish(self.events))
        except TraceError as error:
            return self._unread(error)
        return ""

    def _unread(self, error: TraceError) -> str:
        self.unread.append(str(error))
        return str(error)

    def answer(self, asked: str) -> str:
        """JSON: `said` and `html`, or `error`. `asked` is also JSON: model, tokens, context, gpu.

        These are the texts of a form; an empty one means that the value isn't known.
        """
        state = json.loads(asked)
        traces = one_for_each_rank(self.traces)
        on = state.get("gpu") or guess(traces[0].device)
        try:
            tokens, context = number(state, "tokens"), number(state, "context")
            work = work_of(state.get("model", "").strip(), tokens, int(context), on)
        except ValueError as error:
            return json.dumps({"error": str(error)})
        verdict = judge(traces, work)
        verdict.notes.extend(f"Not read: {each}." for each in self.unread)
        return json.dumps({"said": headline(verdict), "html": html(verdict, self.root)})

    def at(self, rank: int, lane: str, time: float) -> str:
        """Name and duration of what runs on a lane at a time (µs of the timeline)."""
        trace = next(each for each in one_for_each_rank(self.traces) if each.rank == rank)
        moment = begin_of([trace]) + time
        found = [k for k in trace.kernels if k.kind == lane and k.start <= moment <= k.end]
        if not found:
            return ""
        kernel = min(found, key=lambda k: k.end - k.start)
        return f"{clipped(short(kernel.name))}, {ms(kernel.end - kernel.start)}"


def number(state: dict[str, str], name: str) -> float:
    """The number in a field, 0 if it is empty. Raises ValueError, naming the field."""
    text = str(state.get(name, "")).strip().replace(",", "")
    try:
        return float(text) if text else 0.0
    except ValueError:
        raise ValueError(f"{name}: {text!r} is no number") from None


# --- pictures


def bar(each: RankSteps, verdict: Verdict) -> str:
    """The parts of one rank's mean step as one bar."""
    step = each.mean
    parts = {"compute": step.compute}
    if verdict.mfu:
        slow = min(step.compute, verdict.slow_kernels)
        parts = {"useful": step.compute - slow, "slow": slow}
    parts |= {"exposed": step.exposed, "data": step.data, "gaps": step.gaps}
    said = ", ".join(f"{PARTS[part]} {time / step.total:.0%}" for part, time in parts.items())
    drawn = "".join(
        f'<i class="traces-{part}" style="width:{time / step.total:.2%}"></i>'
        for part, time in parts.items()
        if time > 0
    )
    late = verdict.late is not None and verdict.late.rank == each.trace.rank
    name = f"rank {each.trace.rank}"
    return (
        f'<li class="traces-row{" traces-late" * late}"><span>{name}</span>'
        f'<span class="traces-bar" role="img" aria-label="{said}">{drawn}</span>'
        f"<span>{ms(step.total)}</span></li>"
    )


def legend(verdict: Verdict) -> str:
    """Legend of the colors, with each part's share of the mean step."""
    step = verdict.step
    times = {"exposed": step.exposed, "data": step.data, "gaps": step.gaps}
    slow = min(step.compute, verdict.slow_kernels)
    first = {"useful": step.compute - slow, "slow": slow} if verdict.mfu else {}
    first = first or {"compute": step.compute}
    items = "".join(
        f'<li><i class="traces-{part}"></i>{PARTS[part]} {time / step.total:.0%}</li>'
        for part, time in (first | times).items()
    )
    return f'<ul class="traces-legend">{items}</ul>'


def begin_of(traces: Iterable[RankTrace]) -> float:
    """Start of a rank's timeline (µs). Clocks of hosts differ, so each rank has its own."""
    (trace,) = traces
    starts = [step.start for step in trace.steps[:1]]
    starts += [trace.kernels[0].start] if trace.kernels else [min(trace.operators[::2])]
    return min(starts)


def path(stretches: Stretches, begin: float, scale: float) -> str:
    """Intervals as one path of strokes; intervals that nearly touch are joined."""
    pieces: list[str] = []
    at, right = 0, -2
    for a, b in stretches:
        left, end = round((a - begin) * scale), round((b - begin) * scale)
        if left <= right and pieces:
            long = max(right, end) - at
            right = max(right, end)
            pieces[-1] = f"{pieces[-1].partition('h')[0]}h{long}"
            continue
        at, right = left, max(end, left + 1)
        pieces.append(f"M{left} 5h{right - left}")
    return "".join(pieces)


def lanes(each: RankSteps, end: float) -> str:
    """Lanes of one rank, from the start of its trace to `end` (µs later)."""
    trace, begin, scale = each.trace, begin_of([each.trace]), WIDE / end
    compute = trace.busy("compute")
    compute = compute if trace.is_gpu else minus(compute, trace.loading)
    rows = {"compute": [("compute", compute)]}
    sent = trace.busy("communication")
    exposed = minus(sent, compute)
    if sent:
        rows["communication"] = [("hidden", sent), ("exposed", exposed)]
    if copies := trace.busy("copy"):
        rows["copy"] = [("copies", copies)]
    if trace.loading:
        rows["loader"] = [("data", trace.loading)]
    marks = "".join(f"M{round((s.start - begin) * scale)} 0v10" for s in each.steps)
    drawn = []
    for lane, layers in rows.items():
        paths = "".join(
            f'<path class="traces-{kind}" d="{path(found, begin, scale)}"/>'
            for kind, found in layers
        )
        drawn.append(
            f"<span>{LANES.get(lane, lane)}</span>"
            f'<svg viewBox="0 0 {WIDE} 10" preserveAspectRatio="none" aria-hidden="true" '
            f'data-rank="{trace.rank}" data-lane="{lane}">{paths}'
            f'<path class="traces-step" d="{marks}"/></svg>'
        )
    return f'<p class="traces-rank">rank {trace.rank}</p>{"".join(drawn)}'


def timeline(verdict: Verdict) -> str:
    """Lanes of the first ranks and of a slow rank, with buttons to zoom."""
    late = verdict.late.rank if verdict.late else -1
    ranks = verdict.ranks[:SHOWN]
    ranks += [each for each in verdict.ranks[SHOWN:] if each.trace.rank == late]
    end = max(each.steps[-1].end - begin_of([each.trace]) for each in ranks)
    buttons = "".join(
        f'<button type="button" data-zoom="{by}" aria-label="{said}">{sign}</button>'
        for by, sign, said in (
            ("in", "+", "zoom in"),
            ("out", "−", "zoom out"),
            ("left", "←", "to the left"),
            ("right", "→", "to the right"),
            ("all", "all", "all of the trace"),
        )
    )
    return (
        f'<div class="traces-timeline" data-end="{end:.0f}"><p class="traces-zoom">{buttons}'
        '<span class="traces-what" aria-live="polite"></span></p>'
        f'<div class="traces-lanes" tabindex="0" role="group" aria-label="Timeline: plus and minus '
        f'zoom, arrows move">{"".join(lanes(each, end) for each in ranks)}'
        f'<span></span><span class="traces-axis"><span>0</span><span>{ms(end)}</span></span></div>'
        "</div>"
    )


# --- words and tables


def facts(verdict: Verdict) -> list[tuple[str, str]]:
    step = verdict.step
    found = [("a step", ms(step.total))]
    if verdict.mfu:
        found.append(("MFU", f"{verdict.mfu:.1%}"))
    if step.communication:
        found.append(("communication", ms(step.communication)))
        found.append(("of that hidden", f"{step.hidden / step.communication:.0%}"))
    return found


def link(finding: Finding, root: str) -> str:
    """ "Read …": the page that explains, or a section of *Is it fast?*, where the reader is."""
    place, title = f"{finding.page}.html", PAGES[finding.page]
    if finding.page == FAST:
        place, title = f"{place}#what-to-change-first", "What to change first"
    return f'Read <a href="{root}{place}">{title}</a>.'


def table(heads: list[str], rows: list[list[str]]) -> str:
    top = "".join(f"<th>{each}</th>" for each in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(c)}</td>' for c in row)}</tr>" for row in rows)
    return f'<div class="traces-table"><table><tr>{top}</tr>{body}</table></div>'


def details(verdict: Verdict) -> str:
    """Tables of collectives, kernels and steps, folded."""
    first, found = verdict.ranks[0], []
    calls = [
        [f"{g.number:.4g}", g.kind, format_bytes(g.bytes), ms(g.time), describe(g)]
        for g in groups(verdict.ranks)[:12]
    ]
    if calls:
        heads = ["in a step", "collective", "bytes", f"on rank {first.trace.rank}", ""]
        found.append(f"<summary>Collectives</summary>{table(heads, calls)}")
    kernels = [
        [ms(share.time / first.number), f"{share.number / first.number:.4g}", clipped(share.name)]
        for share in by_name(kernels_inside(first), 12)
    ]
    if kernels:
        heads = ["in a step", "times", "kernel"]
        found.append(f"<summary>Kernels</summary>{table(heads, kernels)}")
    odd = {(each.trace.rank, s.number) for each in verdict.ranks for s in odd_steps(each.steps)}
    steps = [
        [
            f"{s.number}{' !' if (each.trace.rank, s.number) in odd else ''}",
            str(each.trace.rank),
            *map(ms, (s.total, s.compute, s.exposed, s.data, s.gaps)),
        ]
        for each in verdict.ranks
        for s in each.steps
    ][:64]
    heads = ["step", "rank", "total", "compute", "exposed", "data", "gaps"]
    found.append(f"<summary>Steps</summary>{table(heads, steps)}")
    return "".join(f"<details>{each}</details>" for each in found)


def html(verdict: Verdict, root: str) -> str:
    """Everything below the area where files are dropped."""
    said = escape(headline(verdict), quote=False)
    more = f" {link(verdict.findings[0], root)}" if verdict.findings else ""
    first, stop, rest = said.partition(". ")
    parts = [f'<p class="traces-why"><strong>{first}{stop}</strong>{rest}{more}</p>']
    numbers = "".join(f"<div><dt>{a}</dt><dd>{b}</dd></div>" for a, b in facts(verdict))
    parts.append(f'<dl class="traces-facts">{numbers}</dl>')
    rows = "".join(bar(each, verdict) for each in verdict.ranks[:16])
    parts.append(f'<ul class="traces-rows">{rows}</ul>{legend(verdict)}')
    others = "".join(
        f"<li>{each.time / verdict.step.total:.0%}: {escape(each.said, quote=False)} "
        f"{link(each, root)}</li>"
        for each in verdict.findings[1:4]
    )
    if others:
        parts.append(f'<p class="traces-title">And then</p><ul class="traces-others">{others}</ul>')
    parts.append(timeline(verdict))
    parts.append(details(verdict))
    notes = " ".join(escape(note, quote=False) for note in [head(verdict) + ".", *verdict.notes])
    parts.append(f'<p class="traces-note">{notes}</p>')
    return "".join(parts)
