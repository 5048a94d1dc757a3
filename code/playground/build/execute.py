"""Execute the pages that have no outputs yet, several at a time.

The build would execute them one after another. What is executed here is found by it in its cache,
where it is kept under the code of the cells. A page that fails is left to the build, which says
where it failed. Half as many pages run at a time as there are cores: most start several ranks, and
what they measure should not be how they wait for each other.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from tqdm import tqdm

from playground.build.toc import pages_in_order

if TYPE_CHECKING:  # two seconds of imports, which a build without new pages does not need
    from jupyter_cache.base import CacheBundleIn, JupyterCacheAbstract
    from nbformat import NotebookNode

ROOT = Path(__file__).parents[3]


def may_be_new(root: Path, name: str) -> bool:
    """Will the build read this page? It costs nothing to know, and most builds are of one page."""
    page, read = root / f"{name}.md", root / f"_build/.doctrees/{name}.doctree"
    return not read.exists() or read.stat().st_mtime < page.stat().st_mtime


def read(root: Path, name: str) -> NotebookNode:
    """A page as a notebook."""
    from myst_nb.core.read import read_myst_markdown_notebook

    path = root / f"{name}.md"
    return read_myst_markdown_notebook(path.read_text(encoding="utf-8"), path=path)


def cache_of(root: Path) -> JupyterCacheAbstract:
    """Where the build looks for outputs."""
    from jupyter_cache import get_cache

    return get_cache(root / "_build/.jupyter_cache")


def has_outputs(root: Path, name: str) -> bool:
    """Does the cache have the outputs of a page, or has it no cells?"""
    notebook = read(root, name)
    if not any(cell.cell_type == "code" for cell in notebook.cells):
        return True
    try:
        return bool(cache_of(root).match_cache_notebook(notebook))
    except KeyError:
        return False


def without_outputs(root: Path, pages: Iterable[str]) -> list[str]:
    """Those of these pages that the build would have to execute."""
    return [name for name in pages if may_be_new(root, name) and not has_outputs(root, name)]


def execute(root: Path, name: str) -> CacheBundleIn | None:
    """Run a page, in a worker. Returns it with its outputs, or None: the log says what is wrong."""
    from jupyter_cache.base import CacheBundleIn
    from jupyter_cache.executors.utils import single_nb_execution

    notebook, path = read(root, name), root / f"{name}.md"
    settings = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))["execute"]
    try:
        result = single_nb_execution(
            notebook,
            cwd=str(path.parent),
            allow_errors=settings["allow_errors"],
            timeout=settings["timeout"],
            coalesce_streams=True,  # as _ext/streams.py has it for the build
            extra_arguments=["--IPKernelApp.exec_lines=__import__('playground.server.warm')"],
        )
    except Exception:  # a kernel that does not start, say
        traceback.print_exc()
        return None
    if result.err:
        print(result.exc_string, flush=True)
        return None
    return CacheBundleIn(notebook, str(path), data={"execution_seconds": result.time})


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
    parser = argparse.ArgumentParser(prog="python -m playground.build.execute", description=__doc__)
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
        runs = {pool.submit(execute, root, name): name for name in new}
        progress = tqdm(as_completed(runs), "Executing pages", len(new), unit="page")
        for run in progress:
            name, page = runs[run], run.result()
            if page:  # kept by this process alone: of two, one may remove what the other adds
                cache_of(root).cache_notebook_bundle(page, check_validity=False, overwrite=True)
            progress.set_postfix_str(name if page else f"{name} failed")


if __name__ == "__main__":
    main()
