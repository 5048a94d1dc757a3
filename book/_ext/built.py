"""What a build did, in one line at its end: "Built in 3.2 s: 1 page read, 0 executed".

The same stands in `_build/built.json`, for the last build, and for the last cold and warm one.

A build that warns has failed (`-W`), and yet Sphinx keeps what it read: the next one would find
nothing to do, and pass. So the pages of a failed build are forgotten: they are judged again.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import psutil
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

LOG = logging.getLogger(__name__)
STARTED = ".started"  # `make` touches it first: it does more than Sphinx
RECORD = "built.json"


def executed_since(begun: float, build: Path) -> int:
    """How many pages have outputs that are newer than a moment (s since 1970)."""
    return sum(file.stat().st_mtime >= begun for file in (build / "outputs").rglob("*.json"))


def in_words(seconds: float, read: int, executed: int) -> str:
    pages = "1 page" if read == 1 else f"{read} pages"
    return f"Built in {seconds:.1f} s: {pages} read, {executed} executed"


class Build:
    """What one run of Sphinx has read so far."""

    def __init__(self) -> None:
        self.read: list[str] = []
        self.is_cold = True
        self.begun = time.time()

    def begin(self, app: Sphinx, env: BuildEnvironment, docnames: list[str]) -> None:
        self.is_cold = not env.all_docs
        # Jupyter Book loads both, and they do not say that pages may be read side by side. They
        # number pages and make LaTeX, which this book does not ask for.
        for name in ("sphinx_multitoc_numbering", "sphinx_jupyterbook_latex"):
            if extension := app.extensions.get(name):
                extension.parallel_read_safe = True
        self.read = list(docnames)

    def end(self, app: Sphinx, error: Exception | None) -> None:
        if error or (app._warncount and app.keep_going):
            for page in {*self.read, *self.written(app)}:
                Path(app.doctreedir, f"{page}.doctree").unlink(missing_ok=True)
        elif app.builder.name == "html":
            LOG.info(self.record(Path(app.outdir).parent, self.written(app)))

    def written(self, app: Sphinx) -> list[str]:
        """The pages that this run has written, be it in other processes."""
        files = {name: Path(app.outdir, f"{name}.html") for name in app.env.found_docs}
        return sorted(n for n, f in files.items() if f.exists() and f.stat().st_mtime >= self.begun)

    def record(self, folder: Path, written: list[str]) -> str:
        """Keep what was done, and say it."""
        file, begun = folder / RECORD, folder / STARTED
        before = json.loads(file.read_text()) if file.exists() else {}
        since = begun.stat().st_mtime if begun.exists() else psutil.Process().create_time()
        begun.unlink(missing_ok=True)
        executed = executed_since(since, folder)
        seconds = round(time.time() - since, 1)
        line = in_words(seconds, len(self.read), executed)
        now = {"said": line, "seconds": seconds, "executed": executed}
        now |= {"read": sorted(self.read), "written": written}
        kept = {"last": now, "cold" if self.is_cold else "warm": now}
        file.write_text(json.dumps(before | kept, indent=1) + "\n")
        return line


def leave_figures_unnumbered(app: Sphinx, config: Config) -> None:
    """No page numbers them. Jupyter Book asks for it, twice, and all pages are walked for that."""
    config.numfig = False


def setup(app: Sphinx) -> dict[str, Any]:
    build = Build()
    app.connect("config-inited", leave_figures_unnumbered, priority=999)
    app.connect("env-before-read-docs", build.begin)
    app.connect("build-finished", build.end, priority=900)  # the last to have something to do
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
