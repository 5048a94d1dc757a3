"""The cheat sheet says what the pages say, and each thing of the core path."""

import re
import sys
from pathlib import Path

import pytest

from distributed.planner.hardware import GPUS, between_hosts
from distributed.planner.schedules import threshold
from playground.build.toc import core_path

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


def test_the_thresholds_are_those_of_the_chapters():
    """An H100 at 400 TFLOP/s and 80% of line rate: 1,250 and 10,000 tokens."""
    said = cells_of(cheat_sheet.tokens_table(), 4)
    assert said["DDP, gradients in bf16"] == ("1 C/W", "1,250", "10,000")
    assert said["DDP, in fp32"] == ("2 C/W", "2,500", "20,000")
    assert said["ZeRO-3 (FSDP2), in fp32"] == ("1.5 C/W", "1,875", "15,000")


def test_all_gpus_have_the_convention_of_the_h100():
    """With all ports of a host, or the links inside it if they are slower, and with one port."""
    said = cells_of(cheat_sheet.hardware_table(), 7)
    for name in cheat_sheet.SHOWN:
        gpu = GPUS[name]
        speed = 400e12 * gpu.peak / 989e12
        tokens = [threshold(speed, 0.8 * w) for w in (between_hosts(gpu), gpu.network)]
        assert said[gpu.name][-2:] == tuple(f"{count:,.0f}" for count in tokens)
    assert said["H100 SXM5 80 GB"][-2:] == ("1,250", "10,000")
    assert said["L40S 48 GB"][-2] == "5,719", "limited by PCIe"


def test_the_bytes_of_the_stages_are_in_two_recipes():
    """Rajbhandari et al. 2020, figure 1, with K = 12; and PyTorch's in fp32, with casts to bf16."""
    assert cells_of(cheat_sheet.memory_table(), 3) == {
        "DDP": ("16", "16 + 2"),
        "ZeRO-1": ("4 + 12/N", "8 + 8/N + 2"),
        "ZeRO-2": ("2 + 14/N", "2 + 16/N"),
        "ZeRO-3": ("16/N", "16/N"),
    }


def test_a_bad_day_has_lines_that_stand_on_their_pages(tmp_path):
    lines = cheat_sheet.bad_day(ROOT)
    assert len(lines) == len(cheat_sheet.BAD_DAY)
    assert not any("#" in line for line in lines)
    for page, _ in cheat_sheet.BAD_DAY:
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).write_text("```bash\nnothing\n```\n")
    with pytest.raises(ValueError, match=r"has no line with py-spy dump"):
        cheat_sheet.bad_day(tmp_path)


def test_every_command_is_there():
    lines = cheat_sheet.launch_lines(ROOT)
    assert len(lines) == len(cheat_sheet.STARTED)
    assert lines[0].startswith("torchrun ")
    assert "sbatch " in lines[3]
