"""Cheat sheet: rules of thumb of the core path, hardware, bytes per parameter, and commands.

    ```{cheat-sheet}
    ```

Everything is copied from its source. The chapters are those of the core path in `book/index.md`,
and the lines are their rules of thumb, or all lines under "Remember" if a chapter has no rule.
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
from playground.build.toc import core_path

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


def hardware_table() -> str:
    units = ("TFLOP/s", "GiB", "in host", "out", "one port", "a host")
    head = "".join(f'<th class="text-right">{unit}</th>' for unit in units)
    rows = []
    for name in SHOWN:
        gpu = GPUS[name]
        values = (
            f"{gpu.peak / 1e12:,.0f}",
            f"{gpu.memory / 2**30:.0f}",
            f"{gpu.inside / 1e9:.0f}",
            f"{gpu.network / 1e9:g}",
            *(f"{0.4 * gpu.peak / w:,.0f}" for w in (gpu.network, between_hosts(gpu))),
        )
        cells = "".join(f'<td class="text-right">{value}</td>' for value in values)
        rows.append(f"<tr><td>{escape(gpu.name)}</td>{cells}</tr>")
    return f'<table class="table"><tr><th>GPU</th>{head}</tr>{"".join(rows)}</table>'


def memory_table() -> str:
    """Bytes per parameter of each stage, with Adam, in bf16 with an fp32 master copy."""
    recipe = RECIPES["bf16, Adam in fp32, fp32 master copy"]
    rows = []
    for stage, name in enumerate(STAGES):
        stays = total(1, 10**15, stage, recipe)  # bytes that remain with a huge number of ranks
        cut = total(1, 1, stage, recipe) - stays
        parts = [f"{part:.0f}{over}" for part, over in ((stays, ""), (cut, "/N")) if part > 0.5]
        rows.append(f"<tr><td>{name}</td><td>{' + '.join(parts)}</td></tr>")
    return f'<table class="table"><tr><th>stage</th><th>bytes</th></tr>{"".join(rows)}</table>'


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
        for number, name in enumerate(core_path(root), start=1):
            page = root / f"{name}.md"
            self.env.note_dependency(str(page))
            title, lines = title_and_remember(page)
            rules = [line for line in lines if line.startswith("**Rule of thumb")]
            sheet += self.part(
                f"**{number}. [{title}](/{name}.md)**",
                "",
                *(f"- {without_terms(line)}" for line in rules or lines),
            )
        for name in (*STARTED, *(page for page, _ in BAD_DAY)):
            self.env.note_dependency(str(root / name))
        gpus = self.part(
            "**GPUs**: peak in 16 bits, memory, GB/s in one direction, tokens that hide messages"
        )
        gpus += nodes.raw("", hardware_table(), format="html")
        gpus += self.part(
            "The last two are C/W at 40 % of the peak: tokens per rank between two messages, with a"
            " GPU's own share of the ports, and with all ports of its host (eight GPUs; L40S and"
            " RTX 4090: four, assumed)."
        ).children
        memory = self.part("**Memory**: bytes for each parameter, with Adam in mixed precision")
        memory += nodes.raw("", memory_table(), format="html")
        memory += self.part("and activations, two gathered blocks (ZeRO-3), the allocator").children
        bad = self.part(
            "**On a bad day**: where a rank (`$pid`) stands; where NCCL writes what it did last"
            " (set it before the start), and where ranks parted; a trace read"
        )
        bad += nodes.literal_block("", "\n".join(bad_day(root)), language="bash")
        start = self.part(
            "**Start it**: on one host, on each of several, by Slurm, on Kubernetes"
            " (ddp.py, fsdp.py: in code/scripts; DATA: tokens, RUN: checkpoints, FIRST: first host)"
        )
        start += nodes.literal_block("", "\n".join(launch_lines(root)), language="bash")
        letters = self.part(
            "**Letters**: Ψ parameters, N ranks, T tokens of a rank between two messages,"
            " n elements, g bytes of one, C FLOP/s of a GPU, W bytes/s of its network,"
            " α seconds of latency"
        )
        sheet += [letters, memory, gpus, start, bad]
        return [nodes.raw("", STYLE, format="html"), sheet]

    def part(self, *lines: str) -> nodes.container:
        found = nodes.container(classes=["cheat-part"])
        self.state.nested_parse(StringList(list(lines), "cheat sheet"), 0, found)
        return found


def setup(app: Sphinx) -> dict:
    app.add_directive("cheat-sheet", CheatSheet)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
