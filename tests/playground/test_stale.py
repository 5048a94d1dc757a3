"""Which pages are executed anew when a module changes: those that use it, and no others."""

from pathlib import Path

import nbformat
import pytest
from jupyter_cache import get_cache

from playground.build import digest as stale
from playground.build.digest import ROOT, digest, forget, used_by

PAGES = {str(page.relative_to(ROOT / "book")): page for page in ROOT.glob("book/**/*.md")}


def pages_that_use(name: str) -> set[str]:
    return {page for page, path in PAGES.items() if ROOT / name in used_by(path)}


@pytest.mark.parametrize(
    ("module", "these", "not_these"),
    [
        ("code/distributed/zero3.py", ["zero/zero3.md", "zero/checkpoints.md"], ["ddp/by_hand.md"]),
        ("code/distributed/transport.py", ["collectives/all_reduce.md", "zero/zero3.md"], []),
        (
            "code/playground/show/calculator.py",
            ["at_scale/scaling.md", "zero/memory.md"],
            ["zero/zero1.md"],
        ),
        ("code/distributed/wire.py", ["at_scale/hosts.md"], ["at_scale/scaling.md"]),
        (
            "bench/recorded/lab.json",
            ["at_scale/hosts.md", "at_scale/failures.md"],
            ["zero/zero1.md"],
        ),
        ("bench/recorded/zero.json", ["zero/which_stage.md"], ["at_scale/hosts.md"]),
        (
            "exercises/ring_all_reduce/check.py",
            ["collectives/exercises.md"],
            ["index.md"],
        ),
    ],
)
def test_a_page_uses_what_its_cells_name_and_what_that_imports(module, these, not_these):
    using = pages_that_use(module)
    assert set(these) <= using
    assert not set(not_these) & using


def test_no_page_with_cells_that_import_is_thought_to_use_nothing():
    for name, path in PAGES.items():
        cells = "\n".join(stale.CELL.findall(path.read_text()))
        if "distributed" in cells or "playground" in cells:
            assert used_by(path), name


def test_a_changed_module_changes_the_digests_of_its_pages_alone(monkeypatch):
    before = {name: digest(page) for name, page in PAGES.items()}
    read = Path.read_bytes

    def changed(self: Path) -> bytes:
        return read(self) + b"# changed" * (self.name == "zero3.py")

    monkeypatch.setattr(Path, "read_bytes", changed)
    different = {name for name, page in PAGES.items() if digest(page) != before[name]}
    assert different == pages_that_use("code/distributed/zero3.py")


def test_only_stale_pages_are_forgotten(tmp_path, monkeypatch):
    monkeypatch.setattr(stale, "ROOT", tmp_path)
    cache = get_cache(tmp_path / "_build/.jupyter_cache")
    pages = [tmp_path / f"book/{name}.md" for name in ("stale", "kept")]
    for i, page in enumerate(pages):
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(f"print({i})")])
        file = tmp_path / f"{i}.ipynb"
        nbformat.write(notebook, file)
        cache.cache_notebook_file(file, uri=str(page), check_validity=False)
        doctree = tmp_path / f"_build/.doctrees/book/{page.stem}.doctree"
        doctree.parent.mkdir(parents=True, exist_ok=True)
        doctree.touch()
    forget([pages[0]], tmp_path / "_build")
    assert [record.uri for record in cache.list_cache_records()] == [str(pages[1])]
    left = [path.stem for path in (tmp_path / "_build/.doctrees/book").iterdir()]
    assert left == ["kept"]
