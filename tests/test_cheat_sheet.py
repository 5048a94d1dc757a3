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


def test_the_tokens_that_hide_messages_are_the_planners():
    """Over one GPU's share of the ports, and over all ports of a host or the links inside it."""
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", cheat_sheet.hardware_table())
    said = {row[0]: row[-2:] for row in zip(*[iter(cells)] * 7, strict=True)}
    for name in cheat_sheet.SHOWN:
        gpu = GPUS[name]
        tokens = [threshold(0.4 * gpu.peak, w) for w in (gpu.network, between_hosts(gpu))]
        assert said[gpu.name] == tuple(f"{count:,.0f}" for count in tokens)
    assert said["H100 SXM5 80 GB"] == ("7,912", "989")
    assert said["L40S 48 GB"] == ("11,584", "4,525"), "limited by PCIe"


def test_the_bytes_of_the_stages_are_those_of_the_zero_paper():
    """4Ψ + 12Ψ/N and so on: Rajbhandari et al. 2020, figure 1, with K = 12."""
    cells = re.findall(r"<td>([^<]*)</td>", cheat_sheet.memory_table())
    assert cells == ["DDP", "16", "ZeRO-1", "4 + 12/N", "ZeRO-2", "2 + 14/N", "ZeRO-3", "16/N"]


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
