"""Summary line at the end of a build; makes the next build read failed pages again.

A build with warnings has failed (`-W`), but Sphinx caches what it read, so the next build would
find nothing to do and pass. The cached pages of a failed build are therefore deleted.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

LOG = logging.getLogger(__name__)


class Build:
    """Pages that one run of Sphinx has read so far."""

    def __init__(self) -> None:
        self.read: list[str] = []
        self.begun = time.time()

    def begin(self, app: Sphinx, env: BuildEnvironment, docnames: list[str]) -> None:
        # Jupyter Book loads both, and they don't declare that pages can be read in parallel. They
        # number pages and make LaTeX, which this book doesn't use.
        for name in ("sphinx_multitoc_numbering", "sphinx_jupyterbook_latex"):
            if extension := app.extensions.get(name):
                extension.parallel_read_safe = True
        self.read = list(docnames)

    def end(self, app: Sphinx, error: Exception | None) -> None:
        if error or (app._warncount and app.keep_going):
            for page in {*self.read, *self.written(app)}:
                Path(app.doctreedir, f"{page}.doctree").unlink(missing_ok=True)
        else:
            LOG.info("Built: %d pages read", len(self.read))

    def written(self, app: Sphinx) -> list[str]:
        """Pages that this run has written, also in other processes."""
        files = {name: Path(app.outdir, f"{name}.html") for name in app.env.found_docs}
        return [n for n, f in files.items() if f.exists() and f.stat().st_mtime >= self.begun]


def remove_pages_that_are_gone(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Remove what earlier builds wrote for a page that the book no longer has."""
    for page in removed:
        for suffix in (".html", ".ipynb", ".py"):
            Path(app.outdir, f"{page}{suffix}").unlink(missing_ok=True)
    return []  # no other page has to be read again


def leave_figures_unnumbered(app: Sphinx, config: Config) -> None:
    """Turn off figure numbers. No page uses them, and Sphinx walks all pages to assign them."""
    config.numfig = False


def setup(app: Sphinx) -> dict[str, Any]:
    build = Build()
    app.connect("config-inited", leave_figures_unnumbered, priority=999)
    app.connect("env-get-outdated", remove_pages_that_are_gone)
    app.connect("env-before-read-docs", build.begin)
    app.connect("build-finished", build.end, priority=900)  # after all other work
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
