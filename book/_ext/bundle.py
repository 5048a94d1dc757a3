"""All pages as notebooks in one file, `notebooks.zip`, with all that makes them run.

Unzipped anywhere, it has the folders of this project, so that a notebook finds modules, exercises
and recorded measurements where a page does; its first cell puts the modules on the path.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import playground

ROOT = Path(playground.__file__).parents[2]
NAME = "notebooks.zip"
FOLDER = "data-parallelism-that-runs"  # all stands in it, so that unzipping makes one folder
# The pages' sources are there because one chapter trains on the text of the book.
TAKEN = ("book/**/*.md", "code/**/*.py", "exercises/**/*.py", "engines/*", "bench/aims.json")
TAKEN += ("bench/recorded/*.json", "LICENSE*")
READ_ME = """\
# {title}: all notebooks

You need Python 3.11, 3.12 or 3.13. In this folder:

    python3 -m venv .venv
    .venv/bin/pip install -r requirements.txt
    .venv/bin/jupyter lab

The pages in the order of the book:

{pages}
"""
PATH_CELL = """\
# The modules of the book lie in `code`, in a folder above this notebook. Ranks look there, too.
import os
import sys
from pathlib import Path

here = next(p for p in Path.cwd().parents if (p / "code/distributed").is_dir())
sys.path.insert(0, str(here / "code"))
os.environ["PYTHONPATH"] = os.pathsep.join([str(here / "code"), os.environ.get("PYTHONPATH", "")])
"""


def requirements(text: str) -> str:
    """What the cells need of `requirements.txt`, and a program that opens notebooks."""
    cells = text.split("# the book:")[0].rstrip()
    kernel = [line for line in text.splitlines() if re.match(r"(ipykernel|psutil)=", line)]
    return "\n".join([cells, *kernel, "jupyterlab  # or another program that opens notebooks", ""])


def ready_to_run(notebook: dict[str, Any]) -> dict[str, Any]:
    """A notebook whose first code cell finds the modules."""
    setup = {"cell_type": "code", "execution_count": None, "id": "path", "metadata": {}}
    setup |= {"outputs": [], "source": PATH_CELL.rstrip()}
    return notebook | {"cells": [setup, *notebook["cells"][1:]]}  # the first says what this does


def files(html: Path, pages: list[str], title: str) -> Iterator[tuple[str, str]]:
    """Each file of the bundle: its name, and its text."""
    found = [name for name in pages if (html / f"{name}.ipynb").exists()]
    listed = "\n".join(f"- {name}.ipynb" for name in found)
    yield "README.md", READ_ME.format(title=title, pages=listed)
    yield "requirements.txt", requirements((ROOT / "requirements.txt").read_text())
    for name in found:
        page = json.loads((html / f"{name}.ipynb").read_text(encoding="utf-8"))
        yield f"{name}.ipynb", json.dumps(ready_to_run(page), indent=1) + "\n"
    for pattern in TAKEN:
        for path in sorted(ROOT.glob(pattern)):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def write(html: Path, pages: list[str], title: str) -> Path:
    """Write the bundle beside the pages; the same files give the same bytes."""
    target = html / NAME
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, text in files(html, pages, title):
            entry = zipfile.ZipInfo(f"{FOLDER}/{name}")
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            bundle.writestr(entry, text)
    return target


def pages_in_order(app: Sphinx) -> list[str]:
    """As the table of contents has them."""
    found = [app.config.root_doc]
    for name in found:
        found += app.env.toctree_includes.get(name, [])
    return found


def bundle(app: Sphinx, error: Exception | None) -> None:
    if not error and app.builder.name == "html":
        write(Path(app.outdir), pages_in_order(app), app.config.project)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("build-finished", bundle, priority=400)  # before the build says how long it took
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
