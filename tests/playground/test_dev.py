"""`make dev`: which changes are seen, what a build shows, and what stays after a bad one."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from playground.build import dev
from playground.build.dev import OWN, Session, changed, complaints, look, show

PAGE = "<html><body><h1>{}</h1></body></html>"


@pytest.fixture
def html(tmp_path: Path) -> Path:
    html = tmp_path / "html"
    (html / "_static").mkdir(parents=True)
    (html / "_static/live.js").write_text("old")
    (html / "index.html").write_text(PAGE.format("old"))
    (html / "book").mkdir()
    (html / "book/page.html").write_text(PAGE.format("old"))
    return html


def test_what_is_saved_is_seen_and_what_tools_leave_is_not(tmp_path: Path) -> None:
    (tmp_path / "book/part/__pycache__").mkdir(parents=True)
    (tmp_path / "_toc.yml").write_text("")
    (tmp_path / "book/part/gone.md").write_text("")
    before = look(tmp_path)
    for name in ("new.md", ".new.md.swp", "new.md~", "__pycache__/new.pyc"):
        (tmp_path / "book/part" / name).write_text("")
    (tmp_path / "book/part/gone.md").unlink()
    (tmp_path / "README.md").write_text("")
    assert changed(before, look(tmp_path)) == ["book/part/gone.md", "book/part/new.md"]
    assert changed(look(tmp_path), look(tmp_path)) == []


def test_the_real_book_is_watched() -> None:
    seen = look()
    for name in ("_config.yml", "book/index.md", "book/_static/live.js", "book/references.bib",
                 "code/distributed/dp.py", "exercises/manual_ddp/starter.py"):  # fmt: skip
        assert name in seen


def test_the_copy_follows_the_build_and_every_page_of_it_reloads(
    html: Path, tmp_path: Path
) -> None:
    shown = tmp_path / "shown"
    assert len(show(html, shown, 1)) == 3
    script = '<script type="module" src="../_static/reload.js">'
    assert script in (shown / "book/page.html").read_text()
    assert (html / "book/page.html").read_text() == PAGE.format("old"), "the build stays as it is"
    (html / "index.html").write_text(PAGE.format("new"))
    (html / "book/page.html").unlink()
    assert show(html, shown, 2) == ["index.html"]
    assert "new" in (shown / "index.html").read_text()
    assert not (shown / "book/page.html").exists()
    assert 'const shown = "2"' in (shown / OWN[0]).read_text()
    assert (shown / OWN[1]).read_text() == "2"


def test_a_page_that_does_not_build_leaves_the_old_ones_up(
    html: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ["", "book/page.md:3: WARNING: unknown document: 'x'", ""]
    asked: list[set[str]] = []

    def build(names: Iterable[str]) -> str:
        asked.append(set(names))
        (html / "index.html").write_text(PAGE.format(len(asked)))
        return said[len(asked) - 1]

    session = Session(html, tmp_path / "shown", build)
    assert session.update(["book/index.md"])
    assert not session.update(["book/page.md"])
    assert capsys.readouterr().out == f"{said[1]}\nThe pages stay as they were.\n"
    assert "<h1>1</h1>" in (tmp_path / "shown/index.html").read_text()
    assert session.update(["book/other.md"])
    assert asked[-1] == {"book/page.md", "book/other.md"}, "what failed is built again"
    assert "<h1>3</h1>" in (tmp_path / "shown/index.html").read_text()
    assert (tmp_path / "shown" / OWN[1]).read_text() == "2"


def test_a_script_or_a_style_is_copied_and_nothing_is_built(
    html: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dev, "ROOT", tmp_path)
    (tmp_path / "book/_static").mkdir(parents=True)
    (tmp_path / "book/_static/live.js").write_text("new")
    (tmp_path / "book/_static/live.css").write_text("new")
    session = Session(html, tmp_path / "shown", lambda names: pytest.fail("was built"))
    assert session.update(["book/_static/live.js", "book/_static/live.css"])
    assert (tmp_path / "shown/_static/live.js").read_text() == "new"
    assert (tmp_path / "shown/_static/live.css").read_text() == "new"


def test_of_a_long_log_two_lines_are_said() -> None:
    colour, plain = "\x1b[91m", "\x1b[39;49;00m"
    log = "".join(
        f"{colour}{dev.ROOT}/book/{name}.md:3: WARNING: title too short{plain}\nnothing\n"
        for name in "abcd"
    )
    log = f"[IPKernelApp] WARNING | Kernel is running over TCP\n{log}"
    assert complaints(log) == [
        "book/a.md:3: WARNING: title too short",
        "book/b.md:3: WARNING: title too short",
        "… and 2 more: see _build",
    ]
