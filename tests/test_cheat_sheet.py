"""The cheat sheet says what the pages say, and each thing of the core path."""

import inspect
import re
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, fully_shard

from distributed.planner.command import planned
from distributed.planner.hardware import GPUS, between_hosts
from distributed.planner.schedules import threshold
from playground.build.toc import core_path
from playground.show import calculator, step_figures

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "book/_ext"))

import cheat_sheet  # type: ignore[import-not-found]  # noqa: E402


def test_every_chapter_of_the_path_has_three_lines_each_in_one_piece():
    for name in core_path(ROOT):
        title, lines = cheat_sheet.title_and_remember(ROOT / f"{name}.md")
        assert title
        assert len(lines) == 3
        assert not any("\n" in line or "  " in line for line in lines)


def test_a_page_without_remember_is_named(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n## Test yourself\n")
    with pytest.raises(ValueError, match=r"page\.md"):
        cheat_sheet.title_and_remember(page)


def cells_of(table: str, columns: int) -> dict[str, tuple[str, ...]]:
    """First cell of each row of an HTML table → its other cells."""
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", table)
    return {row[0]: row[1:] for row in zip(*[iter(cells)] * columns, strict=True)}


def test_ddp_makes_as_many_buckets_of_the_largest_gpt_2_as_three_files_say():
    d = 1600
    ends = [(d, 4 * d), (d,), (4 * d, d), (4 * d,), (d,), (d,)]
    block = [*ends, (d, d), (d,), (3 * d, d), (3 * d,), (d,), (d,)]
    shapes = [(d,), (d,), *48 * block, (1024, d), (50_257, d)]  # in the order of the backward pass
    tensors = [torch.empty(shape, device="meta") for shape in shapes]
    buckets = {
        limit: len(dist._compute_bucket_assignment_by_size(tensors, [first << 20, limit << 20])[0])
        for limit, first in ((25, 1), (100, 100))
    }
    assert buckets == cheat_sheet.GPT_2_BUCKETS
    assert buckets[25] == step_figures.BUCKETS
    named = {name: size for name, size in calculator.BUCKETS.items() if "limit" in name}
    assert [*named.values()] == pytest.approx([4 * 1.5e9 / n for n in buckets.values()], rel=0.001)
    for name, size in named.items():
        assert name.startswith(f"{size // 1e6:.0f} MB (limit ")


def test_the_thresholds_are_those_of_the_chapters():
    """An H100 at 400 TFLOP/s and 80% of line rate: 1,250 and 10,000 tokens."""
    said = cells_of(cheat_sheet.tokens_table(), 6)
    assert said["DDP, bf16"] == ("1 C/W", "1,250", "10,000", "", "")
    assert said["DDP, fp32"] == ("2 C/W", "2,500", "20,000", "", "")
    assert said["ZeRO-3 (FSDP2), fp32"][:3] == ("1.5 C/W", "1,875", "15,000")
    assert said["HSDP§ (FSDP2), fp32"][:3] == ("2 C/W", "2,500", "20,000")


def test_the_thresholds_with_latency_are_those_of_the_chapters():
    said = cells_of(cheat_sheet.tokens_table(), 6)
    few, many = said["ZeRO-3 (FSDP2), fp32"][3:]
    page = (ROOT / "book/zero/zero3.md").read_text()
    assert f"that's about {few} tokens on 64 H100s and {many} on 512" in page
    assert said["ZeRO-2 (FSDP2), fp32"][3:] == ("1,500", "3,200")
    assert said["HSDP§ (FSDP2), fp32"][3:] == ("2,500", "2,600"), "its gathers stay in the host"
    page = (ROOT / "book/ddp/overlap.md").read_text()
    for mebibytes in (25, 100):
        tokens = round(cheat_sheet.ddp_with_latency(mebibytes), -2)
        (row,) = (
            line for line in page.splitlines() if line.startswith(f"| fp32 | {mebibytes} MiB")
        )
        assert f"{tokens:,.0f}" in row.split("|")[4]


def test_all_gpus_have_the_convention_of_the_h100():
    """With all ports of a host, or the links inside it if they are slower, and with one port."""
    said = cells_of(cheat_sheet.hardware_table(), 7)
    for name in cheat_sheet.SHOWN:
        gpu = GPUS[name]
        speed = 400e12 * gpu.peak / 989e12
        tokens = [threshold(speed, 0.8 * w) for w in (between_hosts(gpu), gpu.network)]
        shown = tuple(cell.removesuffix("‡") for cell in said[gpu.name][-2:])
        assert shown == tuple(f"{count:,.0f}" for count in tokens)
    assert said["H100 SXM5 80 GB"][-2:] == ("1,250", "10,000")
    marked = {name: cells[-2] for name, cells in said.items() if "‡" in "".join(cells)}
    assert marked == {"L40S 48 GB": "5,719‡"}, "limited by PCIe"


def test_the_bytes_of_the_stages_are_in_two_recipes():
    """Rajbhandari et al. 2020, figure 1, with K = 12; and PyTorch's in fp32, with casts to bf16."""
    assert cells_of(cheat_sheet.memory_table(), 3) == {
        "DDP": ("16", "16 + 2"),
        "ZeRO-1": ("4 + 12/N", "8 + 8/N + 2"),
        "ZeRO-2": ("2 + 14/N", "2 + 16/N"),
        "ZeRO-3": ("16/N", "16/N"),
        "HSDP, on H hosts": ("16H/N", "16H/N"),
    }


def test_a_bad_day_has_lines_that_stand_on_their_pages(tmp_path):
    lines = cheat_sheet.bad_day(ROOT)
    assert len(lines) == len(cheat_sheet.BAD_DAY)
    assert not any("#" in line for line in lines)
    assert "ncclras -v" in lines
    for page, *_ in cheat_sheet.BAD_DAY:
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).write_text("```bash\nnothing\n```\n")
    with pytest.raises(ValueError, match=r"has no line with failed \(exitcode"):
        cheat_sheet.bad_day(tmp_path)


def test_a_bad_day_has_the_exit_codes_and_rules_of_the_pages(tmp_path):
    assert cheat_sheet.exit_codes(ROOT).startswith("1: a Python exception")
    page = tmp_path / "book/at_scale/start_jobs.md"
    page.parent.mkdir(parents=True)
    page.write_text("(exit-codes)=\n| exit code |\n|---|\n| −9 (`SIGKILL`) |\n\n")
    with pytest.raises(ValueError, match="has the exit codes −9"):
        cheat_sheet.exit_codes(tmp_path)
    assert cheat_sheet.passing_xids(ROOT) == ["13", "31", "43", "45", "63", "94"]
    (tmp_path / "code/scripts").mkdir(parents=True)
    (tmp_path / "code/scripts/check_cluster.py").write_text("OF_PROGRAMS = {13}\n")
    with pytest.raises(ValueError, match="has no Xids that GO_ON"):
        cheat_sheet.passing_xids(tmp_path)
    rules = [
        cheat_sheet.bold_rule(ROOT / f"{name}.md") for name in cheat_sheet.BAD_DAY_RULES.values()
    ]
    assert rules[0].startswith("suspect the rank")
    assert rules[1].startswith("logits take")


def test_a_rule_says_what_it_is_for():
    """Accumulation's k is for waiting at most a tenth of the computing time."""
    _, lines = cheat_sheet.title_and_remember(ROOT / "book/ddp/accumulation.md")
    (rule,) = (line for line in lines if line.startswith("**Rule of thumb"))
    short = cheat_sheet.shortened("book/ddp/accumulation", rule)
    assert "k$ = 7" in short
    assert "a tenth of the computing time" in short
    assert len(short) < len(rule)


def test_shortened_rules_keep_their_bold_part_and_end_like_sentences():
    for name in cheat_sheet.KEPT:
        _, lines = cheat_sheet.title_and_remember(ROOT / f"{name}.md")
        (rule,) = (line for line in lines if line.startswith("**Rule of thumb"))
        short = cheat_sheet.shortened(name, rule)
        bold = rule[: rule.index("**", 2) + 2]
        assert short.startswith(bold)
        assert short.rstrip("*").endswith(".")


def test_a_rule_is_a_sentence_on_the_sheet():
    assert cheat_sheet.without_its_name("**Rule of thumb: save often.** Yes.") == "Save often. Yes."


def test_the_decision_is_the_planners():
    """With more tokens than the threshold: DDP if it fits, or else ZeRO-3."""
    for words, strategy in (
        ("--params 1.5e9 --gpus 8 --gpu-memory 80GB", "DDP"),
        ("--model llama-3-8b --context 8192 --nodes 2 --gpu-memory 80GB", "ZeRO-3"),
        ("--model llama-3-70b --context 8192 --nodes 8 --gpu-memory 80GB", "ZeRO-3"),
    ):
        assert planned(words).recommended.name == strategy
    (words,) = re.findall(r"distributed\.planner (.*?)`", " ".join(cheat_sheet.DECISION))
    words = words.replace("config.json", "llama-3-70b")
    assert planned(words).recommended.fits


def test_fsdp2_has_the_switches_of_the_sheet():
    compile(cheat_sheet.FSDP2, "the sheet", "exec")
    switches = re.findall(r"model\.(set_\w+)", cheat_sheet.FSDP2)
    assert len(switches) == 3
    assert all(hasattr(FSDPModule, name) for name in switches)
    arguments_of = re.findall(r"(reshard_\w+|mp_policy)=", cheat_sheet.FSDP2)
    assert {*arguments_of} <= {*inspect.signature(fully_shard).parameters}


def test_every_command_is_there():
    lines = cheat_sheet.launch_lines(ROOT)
    assert len(lines) == len(cheat_sheet.STARTED)
    assert lines[0].startswith("torchrun ")
    assert "sbatch " in lines[3]
    for line in lines:
        folded = cheat_sheet.folded(line)
        assert folded.replace(" \\\n  ", " ") == line
        assert max(map(len, folded.splitlines())) <= cheat_sheet.WIDTH + 2
