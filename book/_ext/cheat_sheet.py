"""Cheat sheet: rules of thumb of the core path, hardware, bytes per parameter, and commands.

    ```{cheat-sheet}
    ```

Everything is copied from its source, but for the first decision, the lines of FSDP2, and the causes
of exit codes. The chapters are those of the core path in `book/index.md`, and the lines are their
rules of thumb, or all lines under "Remember" if a chapter has no rule. The chapters whose rules
compare tokens with a threshold share a table of thresholds.
Bytes, latencies and GPUs come from the models. The commands come from the tops of the files that
start a job, and from the pages about jobs that fail, hang or are slow. In print it is one page of
A4 or Letter.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from textwrap import wrap

from docutils import nodes
from docutils.statemachine import StringList
from downloads import without_terms
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from distributed.cost import Cluster, Link
from distributed.model_states import RECIPES, STAGES, total
from distributed.planner.hardware import GPUS, between_hosts
from distributed.planner.job import WIRE
from distributed.planner.schedules import threshold, threshold_with_latency
from playground.build.toc import core_path

SPEED = 400e12 / GPUS["h100"].peak  # the share of a GPU's peak that the book calculates with
JOINED = {"book/collectives/two_levels": "book/collectives/all_reduce"}  # whose rule it repeats
IN_TABLE = ("book/ddp/overlap", "book/zero/zero3")  # whose rules are the table of thresholds
KEPT = {  # sentences that are kept after a chapter's bold ones; all others have the page's
    "book/first_steps/one_device": 1,
    "book/first_steps/several_processes": 0,
    "book/first_steps/data_parallelism": 1,
    "book/collectives/two_levels": 0,
    "book/ddp/by_hand": 1,
    "book/ddp/accumulation": 1,
    "book/training_well/precision": 1,
    "book/zero/memory": 2,
    "book/zero/zero1": 0,
    "book/zero/zero2": 0,
    "book/at_scale/which_strategy": 0,
}
DECISION = (  # `test_the_decision_is_the_planners` asks the planner
    "**First decide**",
    "",
    "- **It fits with DDP**, with a tenth of each GPU's memory free? Use DDP.",
    "- **It doesn't?** Use FSDP2 with ZeRO-3.",
    "- **Fewer tokens per micro-batch than in the table?** Have the"
    " [planner](/book/at_scale/which_strategy.md) compare all strategies. In the folder code:"
    " `python -m distributed.planner --model config.json --gpus 64`",
    "- **Nothing fits?** See *Out of memory*.",
)
WIDTH = 44  # letters of code in a line, so that none is cut or broken on a screen
FSDP2 = """\
policy = MixedPrecisionPolicy(
    torch.bfloat16, reduce_dtype=torch.float32)
for part in (*model.blocks, model):
    fully_shard(part, mp_policy=policy)
# ZeRO-2: reshard_after_forward=False, too
# Now create the optimizer. Per micro-batch:
# ZeRO-2: gather once
model.set_reshard_after_backward(is_last)
# reduce once, if whole gradients fit
model.set_requires_gradient_sync(is_last)
# HSDP: all-reduce once
model.set_requires_all_reduce(is_last)
"""
SHOWN = ("a100", "h100", "h200", "b200", "mi300x", "l40s", "4090")
STARTED = (  # files whose first lines contain the command that starts them
    "code/scripts/ddp.py",
    "code/scripts/fsdp.py",
    "code/scripts/launch/torchrun.sh",
    "code/scripts/launch/slurm.sbatch",
    "code/scripts/launch/jobset.yaml",
)
BAD_DAY = (  # a page, a part of a line on it, and what the line is for
    ("book/at_scale/failures.md", "failed (exitcode", "which rank died first?"),
    ("book/at_scale/failures.md", "dmesg -T", "on its host: a GPU's Xid, or no memory left"),
    ("book/at_scale/why_it_hangs.md", "py-spy dump", "it hangs: what is this rank doing?"),
    ("book/at_scale/why_it_hangs.md", "ncclras -v", "which ranks are behind? (NCCL 2.24 or newer)"),
    (
        "book/at_scale/why_it_hangs.md",
        "TORCH_FR_DUMP_TEMP_FILE",
        "before the start: where NCCL's last collectives go"
        " (older versions: TORCH_NCCL_DEBUG_INFO_TEMP_FILE)",
    ),
    ("book/at_scale/why_it_hangs.md", "torchfrtrace", "after the timeout: where ranks diverged"),
    ("book/at_scale/is_it_fast.md", "read_trace", "it's slow: what are the ranks waiting for?"),
)
BAD_DAY_RULES = {  # what happened → the page whose rule of thumb, in bold there, helps
    "It hangs": "book/at_scale/why_it_hangs",
    "Out of memory": "book/at_scale/out_of_memory",
}
EXIT_CODES = {  # the codes in the table of `start_jobs`, in a few words
    "1": "a Python exception, such as CUDA out of memory",
    "−9": "usually the host's memory was full, or a save ran out of time",
    "−15": "terminated by torchrun (something else failed) or the scheduler",
    "−6": "often NCCL's watchdog",
    "−7": "usually /dev/shm was full",
    "−11": "a crash in compiled code",
}
STYLE = """\
<style>
.cheat-sheet { columns: 20rem 2; column-gap: 2rem; font-size: 0.85rem; line-height: 1.35; }
.bd-article .cheat-sheet .cheat-part { break-inside: avoid; margin: 0 0 0.8rem; }
.bd-article .cheat-sheet p { margin: 0 0 0.2rem; font-size: inherit; }
.bd-article .cheat-sheet ul { margin: 0; padding-left: 1.1em; }
.bd-article .cheat-sheet li { font-size: inherit; }
.bd-article .cheat-sheet table { font-size: 0.9em; margin: 0; width: 100%; }
html .bd-article .cheat-sheet table.table tr > :is(td, th) { padding: 0.15em 0.3em 0.15em 0.2em; }
.bd-article .cheat-sheet div[class*="highlight"] pre {
  margin: 0; padding: 0.2em 0.4em; white-space: pre-wrap; overflow-wrap: anywhere;
}
.bd-article .cheat-sheet :is(p, li, td, th) { line-height: inherit; }
.bd-article .cheat-sheet li > p { margin: 0; }
@page { margin: 8mm; }
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


def shortened(name: str, rule: str) -> str:
    """A chapter's rule of thumb with as many of the sentences after it as `KEPT` says."""
    if name not in KEPT:
        return rule
    kept = rf"^(\*\*Rule of thumb.*?\*\*(?: .*?[.](?= |$)){{{KEPT[name]}}}).*"
    short = re.sub(kept, r"\1", rule)
    return short if short.rstrip("*").endswith(".") else f"{short}."


def without_its_name(rule: str) -> str:
    """A rule of thumb as a sentence, and not in bold: all lines of the sheet are rules of thumb."""
    said = rule.removeprefix("**Rule of thumb: ").replace("**", "")
    return f"{said[0].upper()}{said[1:]}"


def bold_rule(page: Path) -> str:
    """The sentences of a chapter's rule of thumb that are bold there."""
    (rule,) = (r for r in title_and_remember(page)[1] if r.startswith("**Rule of thumb"))
    (bold,) = re.findall(r"^\*\*Rule of thumb: (.*?)\*\*(?: |$)", rule)
    return bold


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
        capped = "‡" * (gpu.inside < gpu.host_network)
        values = (
            f"{gpu.peak / 1e12:,.0f}",
            f"{gpu.memory / 2**30:.0f}",
            f"{gpu.inside / 1e9:.0f}",
            f"{gpu.network / 1e9:g}",
            f"{threshold(SPEED * gpu.peak, WIRE * between_hosts(gpu)):,.0f}{capped}",
            f"{threshold(SPEED * gpu.peak, WIRE * gpu.network):,.0f}",
        )
        rows.append([escape(gpu.name), *values])
    return table(head, rows)


def with_latency(size: int, name: str, gpus: int) -> float:
    """Tokens that also hide latency: 7 billion parameters in 32 blocks, eight ports per host.

    As on the page about ZeRO-3.
    """
    one = GPUS["h100"]
    C, W = SPEED * one.peak, WIRE * between_hosts(one)
    cluster = Cluster(gpus, one.per_host, Link(3.4e-6, WIRE * one.inside), Link(10e-6, W), C)
    return threshold_with_latency(cluster, 7e9, 32, size, name)


GPT_2_BUCKETS = {25: 145, 100: 49}  # limit in MiB → buckets of the largest GPT-2, by *Buckets*


def ddp_with_latency(mebibytes: int, latency: float = 0.1e-3) -> float:
    """Tokens that hide the largest GPT-2's fp32 gradients, on eight hosts with eight ports."""
    one = GPUS["h100"]
    C, W = SPEED * one.peak, WIRE * between_hosts(one)
    return threshold(C, W, 4, "DDP") + GPT_2_BUCKETS[mebibytes] * latency * C / (4 * 1.5e9)


def tokens_table() -> str:
    """Tokens in a micro-batch that hide the bytes of each strategy, on hosts of eight H100s."""
    ways = (
        ("DDP, bf16", 2, "DDP"),
        ("DDP, fp32", 4, "DDP"),
        ("ZeRO-1 (Megatron), fp32", 4, "ZeRO-1"),
        ("ZeRO-2 (FSDP2), fp32", 4, "ZeRO-2"),
        ("ZeRO-3 (FSDP2), bf16", 2, "ZeRO-3"),
        ("ZeRO-3 (FSDP2), fp32", 4, "ZeRO-3"),
        ("HSDP§ (FSDP2), bf16", 2, "HSDP"),
        ("HSDP§ (FSDP2), fp32", 4, "HSDP"),
    )
    one = GPUS["h100"]
    rows = []
    for text, size, name in ways:
        bytes_of = "DDP" if name == "HSDP" else name  # between hosts, HSDP sends gradients
        factor = threshold(1, 1, size, bytes_of)
        found = [
            f"{threshold(SPEED * one.peak, WIRE * w, size, bytes_of):,.0f}"
            for w in (between_hosts(one), one.network)
        ]
        late = [
            f"{round(with_latency(size, name, gpus), -2):,.0f}" if "FSDP2" in text else ""
            for gpus in (64, 512)
        ]
        rows.append([text, f"{factor:g} C/W", *found, *late])
    head = ["strategy, gradients in", "formula", "8 ports", "1 port", "64 GPUs†", "512 GPUs†"]
    return table(head, rows)


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
    whole = [f"{total(1, 1, 3, recipe):.0f}H/N" for recipe in (paper, fp32)]
    rows.append(["HSDP, on H hosts", *whole])
    return table(["stage", "paper, Megatron*, DeepSpeed", "PyTorch"], rows)


def bad_day(root: Path) -> list[str]:
    """Commands for a job that fails, hangs or is slow, copied from the pages that explain them.

    Raises ValueError if a page no longer has such a line.
    """
    found = []
    for page, part, _ in BAD_DAY:
        text = (root / page).read_text("utf-8")
        blocks = re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S)
        lines = [line for block in blocks for line in block.splitlines()]
        lines += re.findall(r"`((?:python|torchrun|ncclras|dmesg|grep) [^`]+)`", text)
        if not (fitting := [line for line in lines if part in line]):
            raise ValueError(f"{page} has no line with {part}")
        found.append(re.sub(r"\s+# .*", "", fitting[0]).strip())
    return found


def exit_codes(root: Path) -> str:
    """What killed a rank, by its exit code. Raises ValueError if the page has different codes."""
    page = root / "book/at_scale/start_jobs.md"
    rows = page.read_text("utf-8").partition("(exit-codes)=\n")[2].partition("\n\n")[0]
    codes = re.findall(r"^\| (−?\d+)", rows, re.M)
    if codes != [*EXIT_CODES]:
        raise ValueError(f"{page} has the exit codes {', '.join(codes)}")
    return "; ".join(f"{code}: {cause}" for code, cause in EXIT_CODES.items())


def passing_xids(root: Path) -> list[str]:
    """The Xids that `check_cluster.py` lets pass. Raises ValueError if they aren't there."""
    file = root / "code/scripts/check_cluster.py"
    if not (found := re.search(r"^GO_ON = \{([\d, ]+)\}", file.read_text("utf-8"), re.M)):
        raise ValueError(f"{file} has no Xids that GO_ON")
    return found[1].split(", ")


def launch_lines(root: Path) -> list[str]:
    """Commands in the first lines of the files that start a job."""
    found = []
    for name in STARTED:
        head = "\n".join((root / name).read_text("utf-8").splitlines()[:5])
        found += re.findall(r"(?:^#   |: (?=torchrun))(\S[^\"\n]*)", head, re.M)[:1]
    return found


def folded(command: str) -> str:
    """A command in lines as wide as the sheet's columns, which still runs if you copy it."""
    lines = wrap(command, WIDTH, break_long_words=False, break_on_hyphens=False)
    return " \\\n  ".join(lines)


class CheatSheet(SphinxDirective):
    """One printable page, made from what the other pages say."""

    def run(self) -> list[nodes.Node]:
        root = Path(self.env.srcdir)
        sheet = nodes.container(classes=["cheat-sheet"])
        sheet += self.part(*DECISION)
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
            rules = [without_its_name(shortened(name, rule)) for rule in rules]
            sheet += self.part(
                f"**{count}. [{title}](/{name}.md)**",
                "",
                *(f"- {without_terms(line)}" for line in rules or lines),
            )
        copied = ("book/at_scale/start_jobs.md", "code/scripts/check_cluster.py")
        rules_of = (f"{name}.md" for name in BAD_DAY_RULES.values())
        for name in (*STARTED, *(page for page, *_ in BAD_DAY), *copied, *rules_of):
            self.env.note_dependency(str(root / name))
        links = (
            f"{numbers[name]}. [{title_and_remember(root / f'{name}.md')[0]}](/{name}.md)"
            for name in IN_TABLE
        )
        tokens = self.part(
            f"**{', '.join(links)}**: tokens per micro-batch needed to hide communication, on hosts"
            " of eight H100s, without latency or with it (†)"
        )
        tokens += nodes.raw("", tokens_table(), format="html")
        whole, larger = (f"{round(ddp_with_latency(mib), -2):,.0f}" for mib in (25, 100))
        tokens += self.part(
            "C = 400 TFLOP/s, W = 80% of ports of 400 Gbit/s per host. †With latency, for 7 billion"
            " parameters in 32 blocks and eight ports; with one port, latency adds the same number"
            f" of tokens. DDP in fp32 for the largest GPT-2 on 64 GPUs: {whole} by default,"
            f" {larger} with `bucket_cap_mb=100`. §Only a step's last micro-batch needs them, with"
            " `set_requires_all_reduce`. DDP is the same with `no_sync`, but ZeRO-3 waits in each."
        ).children
        gpus = self.part(
            "**GPUs**: peak in 16 bits, memory, GB/s in one direction, and C/W in tokens"
        )
        gpus += nodes.raw("", hardware_table(), format="html")
        gpus += self.part(
            "We assume that C is 40.4% of every GPU's peak, as in the table above, and W 80% of"
            " line rate; if you know your own C, scale the tokens by it. All ports:"
            " as many as a host has GPUs (eight; L40S, RTX 4090: four, assumed). One port: one per"
            f" host. ‡Limited by the {GPUS['l40s'].inside / 1e9:.0f} GB/s of PCIe inside the host."
        ).children
        memory = self.part("**Memory**: bytes per parameter with Adam, on each of N ranks")
        memory += nodes.raw("", memory_table(), format="html")
        memory += self.part(
            "Paper: bf16 weights and gradients, fp32 master copy and states. *Megatron: 2 more"
            " for fp32 gradients. PyTorch: all in fp32; the + 2 are casts to bf16. Add activations,"
            " the allocator's overhead, and for ZeRO-3 two gathered blocks and the root."
        ).children
        *first, last = passing_xids(root)
        bad = self.part(
            "**On a bad day**",
            "",
            *(
                f"- **{what}:** {bold_rule(root / f'{name}.md')}"
                for what, name in BAD_DAY_RULES.items()
            ),
            f"- **Exit codes:** {exit_codes(root)}.",
            f"- **Xids:** After {', '.join(first)}, or {last}, a GPU can go on (after 94, restart"
            " the job). For any other, see [On your cluster](/book/at_scale/your_cluster.md).",
        )
        lines = []
        for (*_, why), line in zip(BAD_DAY, bad_day(root), strict=True):
            lines += [*wrap(why, WIDTH + 2, initial_indent="# ", subsequent_indent="# "), line]
        bad += nodes.literal_block("", "\n".join(lines), language="bash")
        start = self.part(
            "**Start it**: on one host, on each of several, by Slurm, on Kubernetes"
            " (ddp.py, fsdp.py: in code/scripts; DATA: tokens, RUN: checkpoints, FIRST: first host)"
        )
        start += nodes.literal_block(
            "", "\n".join(map(folded, launch_lines(root))), language="bash"
        )
        sharded = self.part("**FSDP2**, and its three switches for gradient accumulation")
        sharded += nodes.literal_block("", FSDP2.rstrip(), language="python")
        letters = self.part(
            "**Symbols**: Ψ parameters, N ranks, H hosts, T tokens in a rank's micro-batch,"
            " k micro-batches per step, n elements, g bytes per element, C FLOP/s of a GPU,"
            " W bytes/s of a host's ports together, α seconds of latency"
        )
        sheet += [letters, tokens, memory, gpus, sharded, start, bad]
        return [nodes.raw("", STYLE, format="html"), sheet]

    def part(self, *lines: str) -> nodes.container:
        found = nodes.container(classes=["cheat-part"])
        self.state.nested_parse(StringList(list(lines), "cheat sheet"), 0, found)
        return found


def setup(app: Sphinx) -> dict:
    app.add_directive("cheat-sheet", CheatSheet)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
