"""What a build does again: only what has changed, and what has failed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAD = (ROOT / "book/_templates/chapter.md").read_text().split("---")[1]
CELLS = f"---{HEAD}---\n\n# Cells\n\nA paragraph.\n\n```{{code-cell}} python\nprint(6 * 7)\n```\n"

TOC = "format: jb-book\nroot: index\nparts: [{caption: All, chapters: [{file: cells}]}]\n"


class Book:
    """Two pages with the settings, the extensions and the styles of the real book."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.log = ""
        shutil.copy(ROOT / "_config.yml", folder)
        (folder / "_toc.yml").write_text(TOC)
        (folder / "book").mkdir()
        for name in ("book/_ext", "book/_static", "book/references.bib", "book/web"):
            (folder / name).symlink_to(ROOT / name)
        (folder / "index.md").write_text("# Book\n\nWords.\n")
        (folder / "cells.md").write_text(CELLS)

    def build(self) -> bool:
        """What `make book` does: execute what is stale, then build."""
        return self.run("playground.build.execute", "--root", ".") and self.run("playground.build")

    def run(self, *module: str) -> bool:
        done = subprocess.run(
            [sys.executable, "-m", *module], cwd=self.folder, capture_output=True, text=True,
            check=False, timeout=300, env={k: v for k, v in os.environ.items() if k != "BOOK_URL"},
        )  # fmt: skip
        self.log = done.stdout + done.stderr
        return done.returncode == 0

    def executed(self) -> set[tuple[Path, int]]:
        """The files of outputs of pages that were executed, each with its time."""
        return {(f, f.stat().st_mtime_ns) for f in (self.folder / "_build/outputs").rglob("*.json")}


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Book:
    book = Book(tmp_path_factory.mktemp("book"))
    assert book.build(), book.log
    return book


@pytest.mark.slow
def test_a_changed_paragraph_reads_its_page_alone_and_executes_nothing(book: Book) -> None:
    assert "Built: 2 pages read" in book.log
    before = book.executed()
    assert len(before) == 1
    (book.folder / "cells.md").write_text(CELLS.replace("A paragraph.", "Another one."))
    assert book.build(), book.log
    assert "Built: 1 pages read" in book.log
    assert book.executed() == before
    page = (book.folder / "_build/html/cells.html").read_text()
    assert "Another one." in page
    assert "42" in page


@pytest.mark.slow
def test_a_page_shows_the_outputs_that_it_has_now(book: Book) -> None:
    page = book.folder / "_build/html/cells.html"
    (book.folder / "cells.md").write_text(CELLS.replace("6 * 7", "6 * 8"))
    assert not book.run("playground.build"), "without outputs there is no page"
    assert "cells: its outputs are of other code than it has now" in book.log
    before = book.executed()
    assert book.build(), book.log
    assert len(book.executed() - before) == 1
    assert "48" in page.read_text()
    (book.folder / "cells.md").write_text(CELLS)
    recorded = book.folder / "book/outputs/cells.json"
    assert book.run("playground.build.execute", "--root", ".", "--record"), book.log
    assert recorded.exists()
    before = book.executed()
    assert book.build(), book.log
    assert book.executed() == before
    text = page.read_text()
    assert "42" in text
    assert re.search(
        r"recorded on 20\d\d-\d\d-\d\d: .+, torch .+\. Press Run to make your own\.", text
    )


@pytest.mark.slow
def test_a_page_that_warned_is_judged_again(book: Book) -> None:
    (book.folder / "index.md").write_text("# Book\n\n{doc}`nowhere`\n")
    for _ in range(2):
        assert not book.build()
        assert "unknown document: 'nowhere'" in book.log
    (book.folder / "index.md").write_text("# Book\n\nWords again.\n")
    assert book.build(), book.log


@pytest.mark.slow
def test_the_template_of_a_chapter_builds_when_its_names_are_filled_in(book: Book) -> None:
    template = (ROOT / "book/_templates/chapter.md").read_text()
    (book.folder / "code/distributed").mkdir(parents=True)
    module = 'def function():\n    """What it does."""\n\n\nprint("from the module")\n'
    (book.folder / "code/distributed/mine.py").write_text(module)
    (book.folder / "book/part").mkdir()
    page = template.replace("NAME", "mine").replace("key2020", "li2020")
    (book.folder / "book/part/mine.md").write_text(f"{page}\n```{{bibliography}}\n```\n")
    toc = TOC.replace("{file: cells}", "{file: cells}, {file: book/part/mine}")
    (book.folder / "_toc.yml").write_text(toc)
    assert book.build(), book.log
    built = (book.folder / "_build/html/book/part/mine.html").read_text()
    assert "from the module" in built
    assert "Li et al." in built
    (book.folder / "book/part/mine.md").unlink()
    (book.folder / "_toc.yml").write_text(TOC)
    assert book.build(), book.log
    assert not [*(book.folder / "_build/html/book/part").glob("mine.*")], "a page that is gone"


@pytest.mark.slow
def test_neither_torch_nor_a_grammar_is_waited_for(book: Book) -> None:
    slow = {"torch", "lark"}  # lark reads the grammars
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "playground.build"],
        cwd=book.folder, capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "sphinx.application" in imported
    assert slow.isdisjoint(imported)
