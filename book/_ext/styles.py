"""One style sheet for a page, in the place of some fifteen that a browser has to wait for.

A page is not painted before the last of its styles is there. Joined, they are one request. What
the theme brings for things that this book does not have, three quarters of it, is left out: a rule
stays if all classes and ids that it names are words of some page, script or module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

from myst_nb.sphinx_ext import add_global_html_resources
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

# The theme's first sheet only imports Sphinx's, which a browser would learn late.
THEME = ["_static/basic.css", "_static/styles/pydata-sphinx-theme.css"]
TO_CUT = ("basic", "pydata-sphinx-theme", "sphinx-design", "mystnb")  # others are small
AT_RUN_TIME = ("bs-tooltip", "dataframe")  # bootstrap makes the one, pandas in a kernel the other
COMMENT = re.compile(r"/\*.*?\*/\s*", re.DOTALL)
BESIDE = re.compile(r"(url\(\s*[\"']?)(?!data:|#|[\"'])")
IN_BRACKETS = re.compile(r"\([^()]*\)|\[[^\]]*\]")  # :not(.a), [href=…]: they decide nothing here
NAMED = re.compile(r"[.#]((?:[\w-]|\\.)+)")
WORD = re.compile(r"[A-Za-z_][\w-]*")
sheets: dict[str, tuple[str, ...]] = {}  # of the pages written now: name → what is joined in it


def blocks(text: str) -> Iterator[tuple[str, str | None]]:
    """The rules of a style sheet: what stands before the braces, and what stands in them.

    Statements without braces, such as `@charset`, come with None.
    """
    start = place = 0
    while place < len(text):
        if text[place] in "\"'":
            place = end_of_string(text, place)
        elif text[place] == ";":
            yield text[start : place + 1], None
            start = place + 1
        elif text[place] == "{":
            end = end_of_block(text, place)
            yield text[start:place].strip(), text[place + 1 : end]
            start, place = end + 1, end
        place += 1


def end_of_string(text: str, place: int) -> int:
    found = re.compile(r"(?:[^\\]|\\.)*?" + text[place], re.DOTALL).match(text, place + 1)
    assert found is not None, "a string without an end"
    return found.end() - 1


def end_of_block(text: str, place: int) -> int:
    depth = 0
    while True:
        if text[place] in "\"'":
            place = end_of_string(text, place)
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return place
        place += 1


def is_used(selector: str, words: set[str]) -> bool:
    while (shorter := IN_BRACKETS.sub("", selector)) != selector:
        selector = shorter
    names = (name.replace("\\", "") for name in NAMED.findall(selector))
    return all(name in words or name.startswith(AT_RUN_TIME) for name in names)


def cut(text: str, words: set[str]) -> str:
    """The rules that can match something."""
    parts = []
    for head, body in blocks(text):
        if body is None:
            parts.append(head)
        elif head.startswith(("@media", "@supports", "@layer", "@container")):
            if inside := cut(body, words):
                parts.append(f"{head}{{{inside}}}")
        elif head.startswith("@"):
            parts.append(f"{head}{{{body}}}")
        else:
            selectors = re.split(r",(?![^()]*\))", head)
            if used := [one for one in selectors if is_used(one, words)]:
                parts.append(f"{','.join(used)}{{{body}}}")
    return "".join(parts)


def words_of(app: Sphinx) -> set[str]:
    """All that may be the name of a class: in pages, in scripts, in what cells put out."""
    files = [*Path(app.outdir).rglob("*.html"), *Path(app.outdir, "_static").rglob("*.js")]
    files += [*Path(app.srcdir, "code").rglob("*.py")]
    words = set[str]()
    for file in files:
        words.update(WORD.findall(file.read_text(encoding="utf-8")))
    return words


def joined(files: list[Path], words: set[str]) -> str:
    """The text of these style sheets, in order."""
    parts = []
    for file in files:
        text = COMMENT.sub("", file.read_text(encoding="utf-8"))
        if file.parent.name != "styles":  # the folder in which the joined sheet stands
            text = BESIDE.sub(r"\1../", text)
        if "@import" in text:
            raise ExtensionError(f"{file} imports another style sheet: name that one, too")
        parts.append(cut(text, words) if file.name.startswith(TO_CUT) else text)
    return "\n".join(parts)


def name_the_style_sheet(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Runs when all others have said which styles and scripts this page has."""
    files = (*THEME, *(str(style.filename) for style in context["css_files"]))
    whole = b"".join(Path(app.outdir, file).read_bytes() for file in files)
    name = f"_static/styles/page-{crc32(whole):08x}.css"
    sheets[name] = files
    context["css_files"] = []
    context["style_sheet"] = name
    # These would need a script that the page does not wait for, and say what nobody asks.
    if pagename != "search":
        context["script_files"] = [
            script
            for script in context["script_files"]
            if not script.attributes.get("body", "").startswith("DOCUMENTATION_OPTIONS.")
        ]


def write_style_sheets(app: Sphinx, failed: Exception | None) -> None:
    if failed or not sheets:
        return
    words = words_of(app)
    for name, files in sheets.items():
        text = joined([Path(app.outdir, file) for file in dict.fromkeys(files)], words)
        Path(app.outdir, name).write_text(text, encoding="utf-8")


def bring_styles_early(app: Sphinx) -> None:
    """myst-nb copies its style sheet when all pages are written; here it is read before."""
    add_global_html_resources(app, None)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", bring_styles_early)
    app.connect("html-page-context", name_the_style_sheet, priority=999)
    app.connect("build-finished", write_style_sheets, priority=999)  # the theme changes some late
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": False}
