"""Which pages are executed anew after a change: those that use what changed, and no others."""

import os
import textwrap
from pathlib import Path

import pytest

from playground.build.digest import ROOT, cells_of, digest, used_by
from playground.build.toc import pages_in_order

PAGES = {
    str(page.relative_to(ROOT / "book")): page
    for page in (ROOT / f"{name}.md" for name in pages_in_order(ROOT))
}


def pages_that_use(name: str) -> set[str]:
    return {page for page, path in PAGES.items() if ROOT / name in files_used_by(path)}


def files_used_by(page: Path) -> set[Path]:
    whole, units = used_by(page)
    return whole | {unit.file for unit in units if unit.text}


@pytest.mark.parametrize(
    ("module", "these", "not_these"),
    [
        (
            "code/distributed/zero/stage3.py",
            ["zero/zero3.md", "zero/checkpoints.md"],
            ["ddp/by_hand.md"],
        ),
        (
            "code/distributed/runtime/transport.py",
            ["collectives/all_reduce.md", "zero/zero3.md"],
            [],
        ),
        (
            "code/playground/show/calculator.py",
            ["at_scale/step_cost.md", "ddp/overlap.md"],
            ["zero/zero1.md"],
        ),
        (
            "code/distributed/instruments/wire.py",
            ["appendix/laboratory.md"],
            ["at_scale/streams.md"],
        ),
        (
            "bench/recorded/lab.json",
            ["appendix/laboratory.md", "at_scale/failures.md"],
            ["zero/zero1.md"],
        ),
        ("bench/recorded/zero.json", ["maintainers/performance.md"], ["appendix/laboratory.md"]),
        (
            "exercises/ring_all_reduce/check.py",
            ["collectives/exercises.md"],
            ["index.md"],
        ),
        (
            "code/playground/exercises/watch.py",
            ["collectives/exercises.md", "ddp/exercises.md"],
            ["index.md"],
        ),
    ],
)
def test_a_page_uses_what_its_cells_name_and_what_that_imports(module, these, not_these):
    using = pages_that_use(module)
    assert set(these) <= using
    assert not set(not_these) & using


def test_a_page_of_exercises_reaches_what_its_checks_import():
    _, units = used_by(ROOT / "book/collectives/exercises.md")
    assert {"on_ranks", "whose", "mark", "watched"} <= {unit.name for unit in units}


def test_no_page_with_cells_that_import_is_thought_to_use_nothing():
    for name, path in PAGES.items():
        cells = cells_of(path)
        if "distributed" in cells or "playground" in cells:
            assert files_used_by(path), name


THREE = {
    "__init__.py": """
        HOMES = {"start": "distributed.runner"}
        def __getattr__(name): return HOMES[name]
        """,
    "runner.py": """
        '''Docstrings name nothing: `from distributed.runner import never`.'''
        from distributed.wheels import Wheel, turn as turned
        LIMIT = 3
        FREE = 4
        def start(wheel: "Truck"): return turned(wheel, LIMIT)
        def never(): return Wheel().stop()
        """,
    "wheels.py": """
        from collections import UserList
        import distributed.roads as roads
        class Wheel:
            def __init__(self): self.at = 0
            def roll(self): self.at += 1
            def stop(self): self.at = 0
        class Truck(UserList):
            def append(self, one): pass
        def turn(wheel, n): return roads.along(getattr(wheel, "roll"), n)
        def bare(): pass
        @register
        def kept(): pass
        print("imported")
        if __name__ == "__main__":
            bare()
        """,
    "roads.py": """
        def along(f, n): return n
        def across(f, n): return n
        """,
}


@pytest.fixture
def little(tmp_path, monkeypatch):
    """A project of three modules, and a function that says what of it a page reaches."""
    from playground.build import digest as digest_module
    from playground.build import reach

    monkeypatch.setattr(reach, "ROOT", tmp_path)
    monkeypatch.setattr(digest_module, "ROOT", tmp_path)
    (tmp_path / "requirements.txt").write_text("")
    folder = tmp_path / "code/distributed"
    folder.mkdir(parents=True)
    for name, text in THREE.items():
        (folder / name).write_text(textwrap.dedent(text))

    def reached(code: str) -> set[str]:
        write(tmp_path / "page.md", code)
        _, units = used_by(tmp_path / "page.md")
        return {f"{u.owner}.{u.name}" if u.owner else u.name for u in units if u.name}

    return reached


def test_a_page_reaches_what_it_names_and_what_that_names(little):
    """By another name, through a package, and by text; no docstring, no annotation, no main."""
    assert little("from distributed import start\nstart(1)") == {
        "HOMES", "__getattr__", "start", "turn", "LIMIT", "along",
    }  # fmt: skip


def test_a_name_that_is_imported_in_one_cell_and_defined_in_another_is_both(little):
    one = "from distributed.runner import start\nstart(1)\n"
    assert little(one) == little(one + "def start(n): return n\n")


def test_a_method_is_reached_by_its_name_on_any_class_that_is_reached(little):
    found = little("from distributed.wheels import Wheel, turn\nturn(Wheel(), 2)")
    assert {"Wheel", "Wheel.__init__", "Wheel.roll"} <= found
    assert "Wheel.stop" not in found
    assert "Wheel.stop" in little("from distributed.wheels import Wheel\nWheel().stop()")


def test_a_library_may_call_any_method_of_a_class_that_extends_its_own(little):
    assert "Truck.append" in little("from distributed.wheels import Truck\nTruck()")


def test_a_table_that_is_read_belongs_to_what_a_page_uses(little, tmp_path):
    folder = tmp_path / "code/distributed"
    (folder / "tables.py").write_text('def read():\n    return open("mine.csv")\n')
    (folder / "mine.csv").write_text("1,2")
    _ = little("from distributed.tables import read\nread()")
    whole, _ = used_by(tmp_path / "page.md")
    assert whole == {folder / "mine.csv"}


def test_a_class_of_ours_with_the_name_of_a_librarys_does_not_hide_it(little, tmp_path):
    module = tmp_path / "code/distributed/lorries.py"
    module.write_text(
        "import collections\n\n\n"
        "class Lorry(collections.UserList):\n    def append(self, x): return x\n"
    )
    (tmp_path / "code/distributed/lists.py").write_text("class UserList:\n    size = 1\n")
    code = "from distributed.lists import UserList\nfrom distributed.lorries import Lorry\nLorry()"
    assert "Lorry.append" in little(code)


def test_what_runs_at_import_is_always_reached(little, tmp_path):
    """And so is what a decorator may have registered."""
    _ = little("import distributed.wheels")
    _, units = used_by(tmp_path / "page.md")
    at_import = "\n".join(unit.text for unit in units)
    assert 'print("imported")' in at_import
    assert "def kept" in at_import
    assert "def bare" not in at_import


def test_a_program_that_is_run_runs_all_of_its_main(little, tmp_path):
    _ = little("!python -m distributed.wheels")
    whole, units = used_by(tmp_path / "page.md")
    assert {path.name for path in whole} == {"wheels.py"}
    assert "along" in {unit.name for unit in units}


def test_cells_that_are_no_python_reach_what_any_of_their_words_names(little):
    assert "turn" in little("from distributed.wheels import bare\nturn this is no Python")


def test_a_function_that_a_page_does_not_reach_leaves_its_digest_as_it_is(little, tmp_path):
    """Nor do imports, docstrings and what stands above it."""
    page, runner = tmp_path / "page.md", tmp_path / "code/distributed/runner.py"
    before = write(page, "from distributed import start\nstart(1)")
    text = runner.read_text()

    def after(old: str, new: str) -> str:
        runner.write_text(text.replace(old, new))
        os.utime(runner, ns=(1, hash(new) % 10**15))
        return digest(page)

    assert after("Wheel().stop()", "Wheel().roll()") == before
    assert after("FREE = 4", "FREE = 4\n\n\n# Comment") == before
    assert after("LIMIT = 3", "LIMIT = 5") != before
    assert after("turned(wheel, LIMIT)", "turned(wheel, FREE)") != before


@pytest.fixture
def page(tmp_path: Path) -> Path:
    return tmp_path / "page.md"


def write(page: Path, code: str = "import numpy\nprint(1)", words: str = "Words.") -> str:
    page.write_text(f"# Title\n\n{words}\n\n```{{code-cell}} python\n{code}\n```\n")
    return digest(page)


def test_words_and_looks_are_not_in_the_digest_and_code_is(page: Path) -> None:
    before = write(page)
    assert write(page, words="Other words.") == before
    assert write(page, "---\ntags: [hide-input]\n---\nimport numpy\nprint(1)") == before
    assert write(page, ":tags: [hide-input]\nimport numpy\nprint(1)") == before
    assert write(page, "import numpy\nprint(2)") != before


def test_a_loaded_file_is_in_the_digest(page: Path) -> None:
    (page.parent / "mine.py").write_text("print(1)")
    before = write(page, ":load: mine.py")
    (page.parent / "mine.py").write_text("print(2)")
    assert write(page, ":load: mine.py") != before


def test_a_new_version_of_a_package_makes_the_pages_stale_that_import_it(page, monkeypatch):
    """A new `psutil` must not execute every page again."""
    of_numpy = write(page)
    of_nothing = write(page, "print(1)")
    read = Path.read_text

    def newer(self: Path, *args, **kwargs) -> str:
        text = read(self, *args, **kwargs)
        if self.name == "requirements.txt":
            text = text.replace("numpy==", "numpy==9.").replace("psutil==", "psutil==9.")
        return text

    monkeypatch.setattr(Path, "read_text", newer)
    assert write(page) != of_numpy
    assert write(page, "print(1)") == of_nothing
