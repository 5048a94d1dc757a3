"""Cheat sheet: rules of thumb of the core path, hardware, bytes per parameter, and commands.

    ```{cheat-sheet}
    ```

Everything is copied from its source. The chapters are those of the core path in `book/index.md`,
and the lines are their rules of thumb, or all lines under "Remember" if a chapter has no rule. The
chapters whose rules compare tokens with a threshold share a table of thresholds.
Bytes and GPUs come from the models. The commands come from the tops of the files that start a job,
and from the pages about jobs that hang or are slow. In print it is one page of A4.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from downloads import without_terms
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from distributed.model_states import RECIPES, STAGES, total
from distributed.planner.hardware import GPUS, between_hosts
from distributed.planner.job import WIRE
from distributed.planner.schedules import threshold
from playground.build.toc import core_path

SPEED = 400e12 / GPUS["h100"].peak  # the share of a GPU's peak that the book calculates with
JOINED = {"book/collectives/two_levels": "book/collectives/all_reduce"}  # whose rule it repeats
IN_TABLE = ("book/ddp/overlap", "book/zero/zero3")  # whose rules are the table of thresholds
TOKENS = (  # chapters whose rules repeat numbers of this table: only their bold sentences
    "book/ddp/accumulation",
    "book/zero/zero2",
    "book/at_scale/which_strategy",
)
SHOWN = ("a100", "h100", "h200", "b200", "mi300x", "l40s", "4090")
STARTED = (  # files whose first lines contain the command that starts them
    "code/scripts/ddp.py",
    "code/scripts/fsdp.py",
    "code/scripts/launch/torchrun.sh",
    "code/scripts/launch/slurm.sbatch",
    "code/scripts/launch/jobset.yaml",
)
BAD_DAY = (  # a page, and a part of a line on it
    ("book/at_scale/why_it_hangs.md", "py-spy dump"),
    ("book/at_scale/why_it_hangs.md", "TORCH_FR_DUMP_TEMP_FILE"),
    ("book/at_scale/why_it_hangs.md", "torchfrtrace"),
    ("book/at_scale/is_it_fast.md", "read_trace"),
)
STYLE = """\
<style>
.cheat-sheet { columns: 20rem 2; column-gap: 2rem; font-size: 0.85rem; line-height: 1.35; }
.bd-article .cheat-sheet .cheat-part { break-inside: avoid; margin: 0 0 0.8rem; }
.bd-article .cheat-sheet p { margin: 0 0 0.2rem; font-size: inherit; }
.bd-article .cheat-sheet ul { margin: 0; padding-left: 1.1em; }
.bd-article .cheat-sheet li { font-size: inherit; }
.bd-article .cheat-sheet table { font-size: 0.9em; margin: 0; width: 100%; }
html .bd-article .cheat-sheet table.table tr > :is(td, th) { padding: 0.15em 0.5em 0.15em 0; }
.bd-article .cheat-sheet pre {
  margin: 0; padding: 0.2em 0.4em; white-space: pre-wrap;
}
.bd-article .cheat-sheet :is(p, li, td, th) { line-height: inherit; }
.bd-article .cheat-sheet li > p { margin: 0; }
@page { size: A4; margin: 8mm; }
@media print {
  .bd-main .bd-article .cheat-sheet {
    columns: 3; column-gap: 4mm; font-size: 7.6pt; line-height: 1.25;
  }
  .bd-article:has(.cheat-sheet) .on-screen { display: none !important; }
  body:has(.cheat-sheet) h1 { font-size: 11pt !important; margin: 0 0 1mm !important; }
  .bd-article .cheat-sheet .cheat-part { margin: 0 0 1.4mm; }
  .bd-main .bd-article .cheat-sheet div[class*="highlight"] pre {
    font-size: 5.6pt !important; line-height: 1.25; padding: 0.5mm !important; border: 0;
  }
  .bd-article .cheat-sheet table {
    font-family: var(--book-text); font-size: 5.8pt; white-space: nowrap;
  }
  .bd-article .cheat-sheet th { white-space: normal; }
  .bd-article .cheat-sheet :is(td, th) { padding: 0.2mm 0.4mm !important; }
  .bd-article .cheat-sheet code { font-size: 0.9em; border: 0; padding: 0; }
  .bd-article .cheat-sheet a { color: inherit; text-decoration: none; }
}
</style>
"""


def title_and_remember(page: Path) -> tuple[str, list[str]]:
    """Title of a chapter, and the items under its "Remember", each joined into one line.

    Raises ValueError if there are none.
    """
    text = page.read_text("utf-8")
    title = re.search(r"^# (.+)$", text, re.M)
    found = re.search(r"^## Remember\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    if title is None or found is None:
        raise ValueError(f"{page} has nothing to remember")
    lines = re.split(r"^- ", found[1], flags=re.M)[1:]
    return title[1], [" ".join(line.split()) for line in lines]


def table(head: list[str], rows: list[list[str]]) -> str:
    """HTML of a table whose first column is text, and whose others are numbers."""

    def line(cells: list[str], tag: str) -> str:
        rest = "".join(f'<{tag} class="text-right">{cell}</{tag}>' for cell in cells[1:])
        return f"<tr><{tag}>{cells[0]}</{tag}>{rest}</tr>"

    return f'<table class="table">{line(head, "th")}{"".join(line(r, "td") for r in rows)}</table>'


def hardware_table() -> str:
    """Data sheets, and C/W with all ports of a host and with one GPU's share of them."""
    head = ["GPU", "TFLOP/s", "GiB", "in host", "out", "all ports", "one port"]
    rows = []
    for name in SHOWN:
        gpu = GPUS[name]
        values = (
            f"{gpu.peak / 1e12:,.0f}",
            f"{gpu.memory / 2**30:.0f}",
            f"{gpu.inside / 1e9:.0f}",
            f"{gpu.network / 1e9:g}",
            *(
                f"{threshold(SPEED * gpu.peak, WIRE * w):,.0f}"
                for w in (between_hosts(gpu), gpu.network)
            ),
        )
        rows.append([escape(gpu.name), *values])
    return table(head, rows)


def tokens_table() -> str:
    """Tokens in a micro-batch that hide the bytes of each strategy, on hosts of eight H100s."""
    ways = (
        ("DDP, gradients in bf16", 2, "DDP"),
        ("DDP, in fp32", 4, "DDP"),
        ("ZeRO-1 (Megatron)", 4, "ZeRO-1"),
        ("ZeRO-2 (FSDP2), in fp32", 4, "ZeRO-2"),
        ("ZeRO-3 (FSDP2), in bf16", 2, "ZeRO-3"),
        ("ZeRO-3 (FSDP2), in fp32", 4, "ZeRO-3"),
    )
    one = GPUS["h100"]
    rows = []
    for text, size, name in ways:
        factor = threshold(1, 1, size, name)
        found = [
            f"{threshold(SPEED * one.peak, WIRE * w, size, name):,.0f}"
            for w in (between_hosts(one), one.network)
        ]
        rows.append([text, f"{factor:g} C/W", *found])
    return table(["messages hide from", "tokens", "8 ports", "1 port"], rows)


def parts_of(stays: float, cut: float) -> str:
    """Bytes that stay on each rank, and bytes that N ranks share."""
    named = ((stays, ""), (cut, "/N"))
    return " + ".join(f"{part:.0f}{over}" for part, over in named if part > 0.5)


def memory_table() -> str:
    """Bytes per parameter of each stage with Adam: the ZeRO paper's recipe, and PyTorch's.

    In PyTorch, everything is in fp32. DDP, ZeRO-1 and ZeRO-2 also hold bf16 copies of all weights.
    FSDP2, which is ZeRO-2 and 3, shards all the rest.
    """
    paper, fp32 = RECIPES["bf16, Adam in fp32, fp32 master copy"], RECIPES["fp32, Adam"]
    rows = []
    for stage, name in enumerate(STAGES):
        stays = total(1, 10**15, stage, paper)  # bytes that remain with a huge number of ranks
        ours = 3 if stage == 2 else stage
        kept = total(1, 10**15, ours, fp32)
        torch = parts_of(kept, total(1, 1, ours, fp32) - kept)
        torch = (f"{torch} + 2", f"{torch} + 2", f"2 + {torch}", torch)[stage]
        rows.append([name, parts_of(stays, total(1, 1, stage, paper) - stays), torch])
    return table(["", "paper, Megatron*, DeepSpeed", "PyTorch"], rows)


def bad_day(root: Path) -> list[str]:
    """Commands for a job that hangs or is slow, copied from the pages that explain them.

    Raises ValueError if a page no longer has such a line.
    """
    found = []
    for page, part in BAD_DAY:
        text = (root / page).read_text("utf-8")
        blocks = re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S)
        lines = [line for block in blocks for line in block.splitlines()]
        lines += re.findall(r"`((?:python|torchrun) [^`]+)`", text)
        if not (fitting := [line for line in lines if part in line]):
            raise ValueError(f"{page} has no line with {part}")
        found.append(re.sub(r"\s+# .*", "", fitting[0]).strip())
    return found


def launch_lines(root: Path) -> list[str]:
    """Commands in the first lines of the files that start a job."""
    found = []
    for name in STARTED:
        head = "\n".join((root / name).read_text("utf-8").splitlines()[:5])
        found += re.findall(r"(?:^#   |: (?=torchrun))(\S[^\"\n]*)", head, re.M)[:1]
    return found


class CheatSheet(SphinxDirective):
    """One printable page, made from what the other pages say."""

    def run(self) -> list[nodes.Node]:
        root = Path(self.env.srcdir)
        sheet = nodes.container(classes=["cheat-sheet"])
        numbers = {name: number for number, name in enumerate(core_path(root), start=1)}
        for name, number in numbers.items():
            page = root / f"{name}.md"
            self.env.note_dependency(str(page))
            title, lines = title_and_remember(page)
            rules = [line for line in lines if line.startswith("**Rule of thumb")]
            if name in JOINED.values() or name in IN_TABLE:
                continue
            joined = JOINED.get(name)
            count = f"{numbers[joined]}, {number}" if joined else str(number)
            if name in TOKENS:
                rules = [re.sub(r"^(\*\*Rule of thumb.*?\*\*).*", r"\1", rule) for rule in rules]
            sheet += self.part(
                f"**{count}. [{title}](/{name}.md)**",
                "",
                *(f"- {without_terms(line)}" for line in rules or lines),
            )
        for name in (*STARTED, *(page for page, _ in BAD_DAY)):
            self.env.note_dependency(str(root / name))
        links = (
            f"{numbers[name]}. [{title_and_remember(root / f'{name}.md')[0]}](/{name}.md)"
            for name in IN_TABLE
        )
        tokens = self.part(
            f"**{', '.join(links)}**: tokens in a micro-batch that hide messages, on hosts of eight"
            " H100s that achieve C = 400 TFLOP/s, W = 80% of line rate, bytes only"
        )
        tokens += nodes.raw("", tokens_table(), format="html")
        tokens += self.part(
            "Ports of 400 Gbit/s per host. Latency comes on top: for DDP's 25 MiB buckets in fp32,"
            " 4,000 instead of 2,500 on eight hosts."
        ).children
        gpus = self.part(
            "**GPUs**: peak in 16 bits, memory, GB/s in one direction, and C/W in tokens"
        )
        gpus += nodes.raw("", hardware_table(), format="html")
        gpus += self.part(
            "C is 40.4% of the peak, as in the table above, and W is 80% of line rate. All ports:"
            " as many as a host has GPUs (eight; L40S, RTX 4090: four, assumed). One port: one per"
            " host."
        ).children
        memory = self.part("**Memory**: bytes per parameter with Adam, on each of N ranks")
        memory += nodes.raw("", memory_table(), format="html")
        memory += self.part(
            "Paper: bf16 weights and gradients, fp32 master copy and states. *Megatron: 2 more"
            " for fp32 gradients. PyTorch: all in fp32; the + 2 are casts to bf16. Activations, two"
            " gathered blocks (ZeRO-3), and the allocator come on top."
        ).children
        bad = self.part(
            "**On a bad day**: see what a rank (`$pid`) is doing; choose where NCCL writes its last"
            " collectives (before the start); find where ranks diverged; read a trace"
        )
        bad += nodes.literal_block("", "\n".join(bad_day(root)), language="bash")
        start = self.part(
            "**Start it**: on one host, on each of several, by Slurm, on Kubernetes"
            " (ddp.py, fsdp.py: in code/scripts; DATA: tokens, RUN: checkpoints, FIRST: first host)"
        )
        start += nodes.literal_block("", "\n".join(launch_lines(root)), language="bash")
        letters = self.part(
            "**Symbols**: Ψ parameters, N ranks, T tokens of a rank between two messages,"
            " n elements, g bytes of one, C FLOP/s of a GPU, W bytes/s of a host's ports,"
            " α seconds of latency"
        )
        sheet += [letters, tokens, memory, gpus, start, bad]
        return [nodes.raw("", STYLE, format="html"), sheet]

    def part(self, *lines: str) -> nodes.container:
        found = nodes.container(classes=["cheat-part"])
        self.state.nested_parse(StringList(list(lines), "cheat sheet"), 0, found)
        return found


def setup(app: Sphinx) -> dict:
    app.add_directive("cheat-sheet", CheatSheet)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
