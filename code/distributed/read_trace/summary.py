"""What was found, as text for a shell and as data for programs."""

from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from distributed.read_trace.breakdown import odd_steps
from distributed.read_trace.kernels import by_name, clipped
from distributed.read_trace.messages import Collective, matched
from distributed.read_trace.rules import PAGES
from distributed.read_trace.verdict import (
    RankSteps,
    Verdict,
    inside,
    kernels_inside,
    ms,
    recorded_together,
)

SHOWN = 16  # ranks in a table, and collectives in a list


def head(verdict: Verdict) -> str:
    """How many ranks, steps and events, and on what: one line."""
    first = verdict.ranks[0].trace
    on = first.device or ("a GPU" if first.is_gpu else "CPU")
    events = sum(each.trace.events for each in verdict.ranks)
    names = [number(len(verdict.ranks), "rank"), number(verdict.ranks[0].number, "step")]
    names += [first.backend.split(",")[0]] if first.backend else []
    return " · ".join([*names, on, f"{events:,} events"])


def number(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


def headline(verdict: Verdict) -> str:
    """The one change with the largest effect."""
    if not verdict.findings:
        share = verdict.step.compute / verdict.step.total
        return (
            f"No rule is broken: {share:.0%} of a step is computation, and nothing else costs 5%. "
            "Only faster kernels can make it shorter."
        )
    first = verdict.findings[0]
    return f"{first.said} This costs up to {first.time / verdict.step.total:.0%} of a step."


def table(verdict: Verdict) -> list[list[str]]:
    """A row for each rank: its mean step and the four bars."""
    rows = [["rank", "step", "compute", "exposed", "hidden", "data", "gaps"]]
    for each in verdict.ranks[:SHOWN]:
        step = each.mean
        bars = (step.compute, step.exposed, step.hidden, step.data, step.gaps)
        name = str(each.trace.rank) if each.trace.rank >= 0 else each.trace.name[-20:]
        rows.append([name, ms(step.total), *(f"{bar / step.total:.0%}" for bar in bars)])
    return rows


class Group(NamedTuple):
    """Collectives of one kind and size in a mean step: how many, µs, bytes/s, who came last."""

    kind: str
    bytes: int
    number: float
    time: float
    bandwidth: float  # the middle one's, on the rank that waited least
    last: dict[int, int]  # rank → how often it came last; empty without the traces of all


def groups(ranks: Sequence[RankSteps]) -> list[Group]:
    """The collectives of a mean step, those that take most first."""
    first = inside(ranks[0])
    together = matched([inside(each) for each in ranks]) if recorded_together(ranks) else []
    together = together or [(call,) for call in first]
    found: dict[tuple[str, int], list[tuple[Collective, ...]]] = {}
    for calls in together:
        found.setdefault((calls[0].kind, calls[0].bytes), []).append(calls)
    rows = []
    for (kind, size), each in found.items():
        shortest = [min(calls, key=lambda c: c.end - c.start) for calls in each]
        last: dict[int, int] = {}
        for calls, one in zip(each, shortest, strict=True):
            if len(calls) > 1:
                rank = ranks[calls.index(one)].trace.rank
                last[rank] = last.get(rank, 0) + 1
        time = sum(calls[0].end - calls[0].start for calls in each)
        count, rate = ranks[0].number, median(c.bandwidth for c in shortest)
        rows.append(Group(kind, size, len(each) / count, time / count, rate, last))
    return sorted(rows, key=lambda row: -row.time)


def describe(row: Group) -> str:
    """How fast, and who came last."""
    parts = [f"{row.bandwidth / 1e9:.1f} GB/s"] if row.bandwidth else []
    if row.last:
        rank = max(row.last, key=lambda each: row.last[each])
        parts.append(f"rank {rank} last in {row.last[rank]} of {sum(row.last.values())}")
    return ", ".join(parts)


def format_bytes(size: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} B" if size else ""


def as_text(verdict: Verdict) -> str:
    """For a shell."""
    lines = [head(verdict), *verdict.notes, ""]
    lines += ["".join(f"{cell:>9}" for cell in row) for row in table(verdict)]
    if len(verdict.ranks) > SHOWN:
        lines.append(f"  and {len(verdict.ranks) - SHOWN} more")
    if verdict.mfu:
        lines.append(f"\nMFU {verdict.mfu:.1%}")
    rank = verdict.ranks[0]
    for step in odd_steps(rank.steps):
        lines.append(f"step {step.number} of rank {rank.trace.rank} takes {ms(step.total)}")
    calls = groups(verdict.ranks)[:5]
    if calls:
        lines.append(f"\ncollectives of a step, on rank {rank.trace.rank}")
    for row in calls:
        size = f" of {format_bytes(row.bytes)}" if row.bytes else ""
        lines.append(f"  {row.number:6.1f} × {row.kind}{size}: {ms(row.time)}  {describe(row)}")
    kernels = by_name(kernels_inside(rank), 5)
    if kernels:
        lines.append(f"\nkernels of a step, on rank {rank.trace.rank}")
    for kernel in kernels:
        time, count = ms(kernel.time / rank.number), kernel.number / rank.number
        lines.append(f"  {time:>8}  {count:7.1f} × {clipped(kernel.name)}")
    lines += ["", headline(verdict)]
    if verdict.findings:
        lines.append(f"→ read: {PAGES[verdict.findings[0].page]}")
    for finding in verdict.findings[1:3]:
        share = finding.time / verdict.step.total
        lines += ["", f"Then ({share:.0%}): {finding.said}", f"→ read: {PAGES[finding.page]}"]
    return "\n".join(lines)


def as_data(verdict: Verdict) -> dict[str, Any]:
    """For programs: µs, each bar of each step."""
    return {
        "ranks": [
            {
                "rank": each.trace.rank,
                "file": each.trace.name,
                "mean": each.mean._asdict(),
                "steps": [step._asdict() for step in each.steps],
            }
            for each in verdict.ranks
        ],
        "collectives": [row._asdict() for row in groups(verdict.ranks)],
        "slow_rank": verdict.late.rank if verdict.late else None,
        "mfu": verdict.mfu or None,
        "findings": [finding._asdict() for finding in verdict.findings],
        "notes": verdict.notes,
    }
