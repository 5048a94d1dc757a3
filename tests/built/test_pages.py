"""Every page has the outputs of its cells, as they are written now."""

import re
import subprocess
import sys
from html import unescape
from itertools import pairwise
from pathlib import Path

import pytest

from playground.build import outputs
from playground.build.pieces import read_page
from playground.build.toc import MAINTAINERS, chapters, core_path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "book/_ext"))

import opening  # type: ignore[import-not-found]  # noqa: E402

BOOK = ROOT / "book"
PAGES = sorted(
    page.relative_to(ROOT).with_suffix("").as_posix()
    for page in [*BOOK.glob("*.md"), *BOOK.glob("[!_]*/*.md")]
    if page.name != "LICENSE.md" and page.parent.name != "web"
)


@pytest.mark.parametrize("name", [n for n in PAGES if outputs.has_cells(ROOT / f"{n}.md")])
def test_every_cell_of_the_page_ran(name: str, built: Path) -> None:
    notebook = read_page(ROOT / f"{name}.md")
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    file = outputs.fresh(ROOT, name)
    assert file, "the build has executed it, if it was stale"
    for cell, record in zip(cells, outputs.load(file)["cells"], strict=True):
        failed = [out for out in record["outputs"] if out["output_type"] == "error"]
        meant = "raises-exception" in cell.metadata.get("tags", [])
        assert bool(failed) == meant, cell.source
    text = (built / f"{name}.html").read_text()
    assert "Press Run to make your own." in text, "it says when its outputs were made"


def test_the_landing_page_adds_up_the_minutes_of_its_core_path(built: Path) -> None:
    """It is held against the lines under the titles of the chapters."""
    line = re.compile(r"(\d+) min to read, or (\d+) if you also run it")
    said = [line.search((built / f"{page}.html").read_text()) for page in core_path(ROOT)]
    to_read, to_do = (sum(int(found[i]) for found in said if found) for i in (1, 2))
    text = " ".join((built / "book/index.html").read_text().split())
    assert all(said)
    assert re.findall(r"(\d+) min\.", text) == [found[1] for found in said if found]
    assert 14 <= len(said) <= 17
    assert to_read <= 180
    assert f"{opening.hours(to_read)} to read, or {opening.hours(to_do)} if you also run" in text


def test_code_in_a_hint_can_be_copied(built: Path) -> None:
    text = "".join(file.read_text() for file in (built / "book").rglob("exercises*.html"))
    hints = re.findall(r'<details class="exercise-hint">(.*?)</details>', text, re.S)
    code = [unescape(part) for hint in hints for part in re.findall(r"<code[^>]*>.*?</code>", hint)]
    assert any('op="avg"' in re.sub("<[^>]*>", "", part) for part in code)
    assert not any("`" in hint for hint in hints)


def test_what_is_recorded_is_of_a_page_and_small() -> None:
    folder = BOOK / "outputs"
    names = {f"book/{f.relative_to(folder).with_suffix('')}" for f in folder.rglob("*.json")}
    assert names <= set(PAGES)
    assert sum(file.stat().st_size for file in folder.rglob("*.json")) <= 4_000_000


def test_no_page_left_a_file():
    command = ["git", "ls-files", "--others", "--exclude-standard", "book"]
    left = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    written = {".md", ".bib", ".py", ".js", ".css", ".json"}  # by people, or recorded
    assert not [file for file in left.splitlines() if Path(file).suffix not in written]


def test_every_page_stands_in_the_table_of_contents():
    toc = (BOOK.parent / "_toc.yml").read_text()
    for page in PAGES:
        assert f"file: {page}" in toc or page == "book/index"


def test_the_side_bar_opens_only_the_part_in_hand(built: Path) -> None:
    text = (built / "book/ddp/overlap.html").read_text()
    side_bar = text[text.index("bd-docs-nav") : text.index("</nav>", text.index("bd-docs-nav"))]
    opened = re.findall(r'<details class="book-part" open>\s*<summary>(.*?)</summary>', side_bar)
    current = re.findall(r'aria-current="page">(.*?)</a>', side_bar)
    assert (opened, current) == (["DDP"], ["Overlap"])
    assert {*re.findall("<summary>(.*?)</summary>", side_bar)} == {*chapters(ROOT)} - {MAINTAINERS}
    assert "maintainers/runtime" not in side_bar
    footer = text[text.index("bd-footer") :]
    for page in chapters(ROOT)[MAINTAINERS]:
        assert f'href="../{page.removeprefix("book/")}.html"' in footer


def test_next_leads_along_the_core_path(built: Path) -> None:
    core = [*core_path(ROOT)]
    for page, following in pairwise(core):
        text = (built / f"{page}.html").read_text()
        found = re.search(r'<a class="right-next"\s+href="(.*?)"', text)
        assert found, page
        assert (built / page).parent.joinpath(found[1]).resolve() == built / f"{following}.html"


def test_a_reader_has_at_most_fifty_pages():
    parts = chapters(ROOT)
    assert sum(len(pages) for part, pages in parts.items() if part != MAINTAINERS) + 1 <= 50
