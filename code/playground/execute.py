"""Execute the pages that have no outputs yet, several at a time: `python -m playground.execute`.

The build would execute them one after another. What is executed here is found by it in its cache,
where it is kept under the code of the cells. A page that fails is left to the build, which says
where it failed. Half as many pages run at a time as there are cores: most start several ranks, and
what they measure should not be how they wait for each other.
"""

import argparse
import logging
import os
import signal
import sys
import traceback
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import yaml
from tqdm import tqdm

from playground.toc import pages_in_order

ROOT = Path(__file__).parents[2]


def may_be_new(root: Path, name: str) -> bool:
    """Will the build read this page? It costs nothing to know, and most builds are of one page."""
    page, read = root / f"{name}.md", root / f"_build/.doctrees/{name}.doctree"
    return not read.exists() or read.stat().st_mtime < page.stat().st_mtime


def execute(root: Path, name: str, only_look: bool = False) -> bool:
    """Make sure that the cache has the outputs of a page. Returns whether it has them."""
    from jupyter_cache import get_cache
    from myst_nb.core.config import NbParserConfig
    from myst_nb.core.execute.cache import NotebookClientCache
    from myst_nb.core.read import read_myst_markdown_notebook
    from sphinx.util.logging import getLogger

    path, cache = root / f"{name}.md", root / "_build/.jupyter_cache"
    notebook = read_myst_markdown_notebook(path.read_text(encoding="utf-8"), path=path)
    if not any(cell.cell_type == "code" for cell in notebook.cells):
        return True
    if only_look:
        try:
            return bool(get_cache(cache).match_cache_notebook(notebook))
        except KeyError:
            return False
    settings = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))["execute"]
    config = NbParserConfig(
        execution_mode="cache",
        execution_cache_path=str(cache),
        execution_timeout=settings["timeout"],
        execution_allow_errors=settings["allow_errors"],
    )
    logging.getLogger("sphinx").addHandler(logging.NullHandler())  # the build will say it
    client = NotebookClientCache(notebook, path, config, getLogger("execute"))  # type: ignore[arg-type]
    client.start_client()
    return bool(client.exec_metadata and client.exec_metadata["succeeded"])


def try_to_execute(root: Path, name: str) -> bool:
    """As `execute` in a worker, whose log has what went wrong."""
    try:
        return execute(root, name)
    except Exception:
        traceback.print_exc()
        return False


def without_outputs(root: Path, pages: Iterable[str]) -> list[str]:
    """Those of these pages that the build would have to execute."""
    return [
        name for name in pages if may_be_new(root, name) and not execute(root, name, only_look=True)
    ]


def begin_worker(root: Path) -> None:
    """What kernels say is not for the terminal. Ctrl-C works in them, as on a page."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    log = os.open(root / "_build/execute.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)


def end_workers(*_: Any) -> None:
    """At once: they would catch a milder signal. A kernel ends when its worker is gone."""
    for worker in active_children():
        worker.kill()
    sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m playground.execute", description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="the folder with _toc.yml")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    options = parser.parse_args()
    root = options.root.resolve()
    pages = [name for name in pages_in_order(root) if may_be_new(root, name)]
    if len(pages) < 2:
        return  # the build can do that
    new = without_outputs(root, pages)
    if not new:
        return
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, end_workers)
    workers = min(options.workers, len(new))
    with ProcessPoolExecutor(workers, get_context("spawn"), begin_worker, (root,)) as pool:
        runs = {pool.submit(try_to_execute, root, name): name for name in new}
        progress = tqdm(as_completed(runs), "Executing pages", len(new), unit="page")
        for run in progress:
            name = runs[run]
            progress.set_postfix_str(name if run.result() else f"{name} failed")


if __name__ == "__main__":
    main()
