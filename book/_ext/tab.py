"""Files for running Python in a browser tab, written next to the pages.

`python.zip` contains the modules of ours that need no library, `python-memory.bin` is a memory
image of a Python that has already started, and `tab.json` gives the digest of both. Each cell is
marked with the libraries that it needs and that the tab doesn't have. The service worker, which a
host of plain files needs, is written to the root of the book, because a service worker can only
answer for paths below its own.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from docutils import nodes
from live import LiveCell, part_of
from sphinx.application import Sphinx

from playground.build import tab
from playground.build.needs import Lack, lack_in, needs

HERE = Path(__file__).parent
WORKER = HERE.parent / "_static" / "service-worker.js"


class Tab:
    """Files for Python in a tab, in one run of Sphinx; `lack` finds modules that it lacks."""

    lack: Lack

    def write_files(self, app: Sphinx) -> None:
        pyodide = Path(app.srcdir, "book/web/node_modules", "pyodide").resolve()
        standard = tab.standard(pyodide)
        self.lack = lack_in(standard)
        static = Path(app.outdir, "_static")
        static.mkdir(parents=True, exist_ok=True)
        packed = tab.archive(standard)
        named = tab.digest(packed, pyodide)
        memory = tab.memory(packed, pyodide, named)
        (static / "python.zip").write_bytes(packed)
        (static / "tab.json").write_text(tab.facts(named, memory), encoding="utf-8")
        (static / "python-memory.bin").write_bytes(memory)  # some hosts unpack files named .gz

    def say_what_cells_need(self, app: Sphinx, doctree: nodes.document, docname: str) -> None:
        cells = [*doctree.findall(LiveCell)]
        read = [(code_of(cell), "tag_exercise" in cell["classes"]) for cell in cells]
        for cell, needed in zip(cells, needs(read, self.lack), strict=True):
            cell["needs"] = " ".join(needed)


def code_of(cell: LiveCell) -> str:
    source = part_of(cell, "cell_code_source")
    assert source is not None  # otherwise it wouldn't be a live cell
    return source.astext()


def write_worker(app: Sphinx, failed: Exception | None) -> None:
    """Write the service worker last: its name for the cache is a digest of all other files."""
    if failed:
        return
    out = Path(app.outdir)
    text = WORKER.read_text(encoding="utf-8")
    known = json.loads((out / "_static/tab.json").read_text(encoding="utf-8"))
    text = text.replace("@PYTHON@", known["digest"]).replace("@BUILT@", digest(out))
    (out / WORKER.name).write_text(text, encoding="utf-8")


def digest(out: Path) -> str:
    """Digest of the pages and of every file that belongs to them."""
    found = hashlib.sha256()
    for file in sorted(path for path in out.rglob("*") if path.is_file()):
        if file.name not in (WORKER.name, ".built", ".buildinfo"):
            found.update(f"{file.relative_to(out)} {file.stat().st_size} ".encode())
            found.update(file.read_bytes())
    return found.hexdigest()[:16]


def setup(app: Sphinx) -> dict[str, Any]:
    of_this_build = Tab()
    app.connect("builder-inited", of_this_build.write_files)
    app.connect(
        "doctree-resolved", of_this_build.say_what_cells_need, priority=600
    )  # after the cells have become live
    app.connect("build-finished", write_worker, priority=1000)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
