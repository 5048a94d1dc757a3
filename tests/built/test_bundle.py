"""All notebooks in one file: unzipped anywhere, they run with the modules that lie beside them."""

import os
import sys
import zipfile
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from pybtex.database import parse_file

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "book/_ext"))

from bundle import FOLDER, NAME, requirements, write  # type: ignore[import-not-found]  # noqa: E402
from downloads import notebook_of  # type: ignore[import-not-found]  # noqa: E402

ASKS = """\
import distributed, playground.recorded
from distributed.world import launch
print(distributed.__file__, playground.recorded.FOLDER.is_dir())
print(launch(lambda group: __import__("distributed").__file__, ranks=2))
"""


@pytest.fixture
def unzipped(tmp_path: Path) -> Path:
    html = tmp_path / "html"
    entries = parse_file(ROOT / "book/references.bib").entries
    for page in ("book/index", "book/ddp/real_text"):
        (html / page).parent.mkdir(parents=True, exist_ok=True)
        notebook = notebook_of(ROOT / f"{page}.md", entries)
        (html / f"{page}.ipynb").write_text(nbformat.writes(notebook))
    pages = ["book/index", "book/ddp/real_text", "book/reference/glossary"]
    first = write(html, pages, "Book").read_bytes()
    assert write(html, pages, "Book").read_bytes() == first, "the same pages, the same bytes"
    with zipfile.ZipFile(html / NAME) as bundle:
        bundle.extractall(tmp_path / "anywhere")
    return tmp_path / "anywhere" / FOLDER


def test_a_notebook_runs_with_the_modules_of_the_bundle(
    unzipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    notebook = nbformat.read(unzipped / "book/index.ipynb", as_version=4)
    nbformat.validate(notebook)
    notebook.cells.append(nbformat.v4.new_code_cell(ASKS))
    NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": unzipped / "book"}}
    ).execute()
    printed = ["".join(out.text for out in c.outputs if "text" in out) for c in notebook.cells
               if c.cell_type == "code"]  # fmt: skip
    assert "my gradient is now [1.5 1.5 1.5]" in printed[1]
    module = unzipped / "code/distributed/__init__.py"
    assert printed[-1].splitlines()[0] == f"{module} True"
    assert str([str(module)] * 2) in printed[-1]


def test_it_says_how_and_holds_what_a_page_reads(unzipped: Path) -> None:
    said = (unzipped / "README.md").read_text()
    assert "pip install -r requirements.txt" in said
    assert said.index("book/index.ipynb") < said.index("book/ddp/real_text.ipynb")
    assert "glossary" not in said, "a page without cells is no notebook"
    for name in ("code/playground/check.py", "exercises/manual_ddp/starter.py", "LICENSE",
                 "bench/recorded/ddp.json", "bench/aims.json", "book/zero/zero1.md"):  # fmt: skip
        assert (unzipped / name).exists(), name


def test_its_requirements_are_those_of_cells() -> None:
    wanted = requirements((ROOT / "requirements.txt").read_text())
    names = {line.split("==")[0].split()[0] for line in wanted.splitlines() if line[:1].isalpha()}
    assert {"torch", "numpy", "matplotlib", "altair", "ipykernel", "jupyterlab"} <= names
    assert not {"sphinx", "jupyter-book", "jupyter-server"} & names
    assert "-e ." not in wanted


def test_the_built_book_has_every_notebook_and_a_link_to_all(built: Path) -> None:
    with zipfile.ZipFile(built / NAME) as bundle:
        inside = {name for name in bundle.namelist() if name.endswith(".ipynb")}
    pages = {f"{FOLDER}/{p.relative_to(built)}" for p in built.glob("book/**/*.ipynb")}
    assert inside == pages != set()
    assert 'href="../notebooks.zip"' in (built / "book/index.html").read_text()
    assert os.path.getsize(built / NAME) < 5e6
