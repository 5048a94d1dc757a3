"""Settings for Sphinx without Jupyter Book, from the same file: see book/_ext/plain_sphinx.md."""

import re
import sys
from pathlib import Path

import pytest
from jupyter_book.config import get_final_config

ROOT = Path(__file__).parents[1]
# Extensions that Jupyter Book loads and this book does not use.
UNUSED = {"jupyter_book", "sphinx_thebe", "sphinx_comments", "sphinx_jupyterbook_latex"}
UNUSED |= {"sphinx.ext.intersphinx"}
# Settings of those, of LaTeX, and what says nothing: an empty text or list is Sphinx's own default.
WITHOUT = {"comments_config", "latex_engine", "use_jupyterbook_latex", "use_multitoc_numbering"}


def settings(monkeypatch: pytest.MonkeyPatch) -> dict:
    page = (ROOT / "book/_ext/plain_sphinx.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.setattr(sys, "path", [*sys.path])
    found = {"__file__": str(ROOT / "conf.py")}
    exec(code, found)
    return found


def test_plain_sphinx_would_have_the_settings_that_jupyter_book_makes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = settings(monkeypatch)
    theirs, _ = get_final_config(
        user_yaml=ROOT / "_config.yml",
        sourcedir=ROOT,
        cli_config={"latex_individualpages": False},
    )
    assert set(theirs.pop("extensions")) - UNUSED == set(ours["extensions"])
    assert set(theirs.pop("exclude_patterns")) == set(ours["exclude_patterns"])
    for name, value in theirs.items():
        if name not in WITHOUT and value not in ("", [], False):
            assert ours[name] == value, name
