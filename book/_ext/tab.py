"""Python in a reader's own tab: the files that it takes, written beside the pages.

`python.zip` has our modules that need no library, `tab.json` says which these are, and
`python-memory.bin` is a Python that has started already. The worker that stands between the pages
and a plain host is in the book's root, for it can serve what lies below.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from playground.build import tab

HERE = Path(__file__).parent
WORKER = HERE.parent / "_static" / "service-worker.js"


def write_files(app: Sphinx) -> None:
    if app.builder.format != "html":
        return
    static = Path(app.outdir, "_static")
    static.mkdir(parents=True, exist_ok=True)
    pyodide = Path(app.srcdir, "node_modules", "pyodide").resolve()
    standard = tab.standard(pyodide)
    packed = tab.archive(standard)
    named = tab.digest(packed, pyodide)
    memory = tab.memory(packed, pyodide, named)
    (static / "python.zip").write_bytes(packed)
    (static / "tab.json").write_text(tab.facts(named, memory, standard), encoding="utf-8")
    (static / "python-memory.bin").write_bytes(memory)  # some hosts unpack what is named .gz

    worker = WORKER.read_text(encoding="utf-8")
    text = worker.replace("@DIGEST@", named)
    Path(app.outdir, WORKER.name).write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", write_files)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
