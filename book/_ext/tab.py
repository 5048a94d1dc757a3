"""Python in a reader's own tab: the files that it takes, written beside the pages.

`python.zip` has our modules that need no library, `tab.json` says which these are, and
`python-memory.bin` is a Python that has started already. The worker that stands between the pages
and a plain host is in the book's root, for it can serve what lies below.
"""

from __future__ import annotations

import hashlib
import json
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


def write_worker(app: Sphinx, failed: Exception | None) -> None:
    """Last of all, since it names what it keeps by all that was built."""
    if failed or app.builder.format != "html":
        return
    out = Path(app.outdir)
    text = WORKER.read_text(encoding="utf-8")
    known = json.loads((out / "_static/tab.json").read_text(encoding="utf-8"))
    text = text.replace("@PYTHON@", known["digest"]).replace("@BUILT@", digest(out))
    (out / WORKER.name).write_text(text, encoding="utf-8")


def digest(out: Path) -> str:
    """Names these pages with all that belongs to them."""
    found = hashlib.sha256()
    for file in sorted(path for path in out.rglob("*") if path.is_file()):
        if file.name not in (WORKER.name, ".built", ".buildinfo"):
            found.update(f"{file.relative_to(out)} {file.stat().st_size} ".encode())
            found.update(file.read_bytes())
    return found.hexdigest()[:16]


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", write_files)
    app.connect("build-finished", write_worker, priority=1000)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
