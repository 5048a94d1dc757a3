"""The cheat sheet says what the pages say, and each thing of the core path."""

import re
import sys
from pathlib import Path

import pytest

from distributed.planner.hardware import GPUS
from distributed.planner.schedules import threshold

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "book/_ext"))

import cheat_sheet  # type: ignore[import-not-found]  # noqa: E402


def test_every_chapter_of_the_path_has_three_lines_each_in_one_piece():
    for name in cheat_sheet.core_path(ROOT):
        title, lines = cheat_sheet.title_and_remember(ROOT / f"{name}.md")
        assert title
        assert len(lines) == 3
        assert not any("\n" in line or "  " in line for line in lines)


def test_a_page_without_remember_is_named(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n## Test yourself\n")
    with pytest.raises(ValueError, match=r"page\.md"):
        cheat_sheet.title_and_remember(page)


def test_terms_are_plain_words():
    text = "a {term}`rank` of {term}`ZeRO-3 <ZeRO>`"
    assert cheat_sheet.without_terms(text) == "a rank of ZeRO-3"


def test_the_tokens_that_hide_messages_are_the_planners():
    """Over all ports of a host: one GPU's alone would ask for eight times as many."""
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", cheat_sheet.hardware_table())
    said = {row[0]: row[-1] for row in zip(*[iter(cells)] * 6, strict=True)}
    for name in cheat_sheet.SHOWN:
        gpu = GPUS[name]
        tokens = threshold(0.4 * gpu.peak, gpu.host_network)
        assert said[gpu.name] == f"{tokens:,.0f}"
    assert said["H100 SXM5 80 GB"] == "989"


def test_every_gpu_and_every_command_is_there():
    table = cheat_sheet.hardware_table()
    assert table.count("<tr>") == 1 + len(cheat_sheet.SHOWN)
    assert "H100 SXM5 80 GB" in table
    assert "989" in table
    lines = cheat_sheet.launch_lines(ROOT)
    assert len(lines) == len(cheat_sheet.STARTED)
    assert lines[0].startswith("torchrun ")
    assert "sbatch " in lines[3]
