"""Which pages are executed anew after a change: those that use what changed, and no others."""

from pathlib import Path

import pytest

from playground.build.digest import ROOT, cells_of, digest, used_by

PAGES = {str(page.relative_to(ROOT / "book")): page for page in ROOT.glob("book/**/*.md")}


def pages_that_use(name: str) -> set[str]:
    return {page for page, path in PAGES.items() if ROOT / name in used_by(path)}


@pytest.mark.parametrize(
    ("module", "these", "not_these"),
    [
        ("code/distributed/zero3.py", ["zero/zero3.md", "zero/checkpoints.md"], ["ddp/by_hand.md"]),
        (
            "code/distributed/runtime/transport.py",
            ["collectives/all_reduce.md", "zero/zero3.md"],
            [],
        ),
        (
            "code/playground/show/calculator.py",
            ["at_scale/scaling.md", "zero/memory.md"],
            ["zero/zero1.md"],
        ),
        ("code/distributed/wire.py", ["at_scale/hosts.md"], ["at_scale/step_cost.md"]),
        (
            "bench/recorded/lab.json",
            ["at_scale/hosts.md", "at_scale/failures.md"],
            ["zero/zero1.md"],
        ),
        ("bench/recorded/zero.json", ["zero/hsdp.md"], ["at_scale/hosts.md"]),
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
        cells = cells_of(path)
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
