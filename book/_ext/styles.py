"""One style sheet for a page, in the place of some fifteen that a browser has to wait for.

A page is not painted before the last of its styles is there. Joined, they are one request. What
the theme brings for things that this book does not have, three quarters of it, is left out: a rule
stays if all classes and ids that it names are words of some page, script or module.
"""

from __future__ import annotations

import json
import re
from hashlib import sha256
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

import tinycss2
from myst_nb.sphinx_ext import add_global_html_resources
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from tinycss2.ast import Node

# The theme's first sheet only imports Sphinx's, which a browser would learn late.
THEME = ["_static/basic.css", "_static/styles/pydata-sphinx-theme.css"]
TO_CUT = ("basic", "pydata-sphinx-theme", "sphinx-design", "mystnb")  # others are small
AT_RUN_TIME = ("bs-tooltip", "dataframe")  # bootstrap makes the one, pandas in a kernel the other
BESIDE = re.compile(r"(url\(\s*[\"']?)(?!data:|#|[\"'])")
HOLD_RULES = ("media", "supports", "container")
WORD = re.compile(r"[A-Za-z_][\w-]*")
PARTS = ".parts"  # the ending of a file that says what is to be joined in a sheet


def is_used(selector: list[Node], words: set[str]) -> bool:
    """What stands in brackets, :not(.a) or [href=…], decides nothing here."""
    names = [node.value for node in selector if node.type == "hash"]
    names += [
        name.value
        for dot, name in pairwise(selector)
        if dot.type == "literal" and dot.value == "." and name.type == "ident"
    ]
    return all(name in words or name.startswith(AT_RUN_TIME) for name in names)


def used_selectors(prelude: list[Node], words: set[str]) -> str:
    parts = [
        list(nodes)
        for is_comma, nodes in groupby(prelude, lambda n: n.type == "literal" and n.value == ",")
        if not is_comma
    ]
    return ",".join(tinycss2.serialize(part).strip() for part in parts if is_used(part, words))


def cut(rules: list[Node], words: set[str]) -> str:
    """The rules that can match something."""
    parts = []
    for rule in rules:
        if rule.type == "qualified-rule":
            if selectors := used_selectors(rule.prelude, words):
                parts.append(f"{selectors}{{{without_comments(rule.content)}}}")
        elif rule.type == "at-rule" and rule.lower_at_keyword in HOLD_RULES:
            if inside := cut(rules_in(rule.content), words):
                head = tinycss2.serialize(rule.prelude).strip()
                parts.append(f"@{rule.at_keyword} {head}{{{inside}}}")
        else:
            parts.append(rule.serialize())
    return "".join(parts)


def without_comments(nodes: list[Node]) -> str:
    return tinycss2.serialize([node for node in nodes if node.type != "comment"]).strip()


def rules_in(text: str | list[Node] | None) -> list[Node]:
    """The rules of a style sheet, or of what stands in the braces of one of them."""
    rules = tinycss2.parse_rule_list(text or "", skip_comments=True, skip_whitespace=True)
    if wrong := next((rule for rule in rules if rule.type == "error"), None):
        raise ExtensionError(f"a style sheet cannot be read: {wrong.message}")
    return rules


def words_of(app: Sphinx) -> set[str]:
    """All that may be the name of a class: in pages, in scripts, in what cells put out."""
    files = [*Path(app.outdir).rglob("*.html"), *Path(app.outdir, "_static").rglob("*.js")]
    files += [*Path(app.srcdir, "code").rglob("*.py")]
    words = set[str]()
    for file in files:
        words.update(WORD.findall(file.read_text(encoding="utf-8")))
    return words


class Sheets:
    """The texts of style sheets, as they are to stand beside others; those of the last build, too.

    To cut one takes half a second. A text is another one only if the sheet has changed, or if a
    word that it names has come to the pages or left them.
    """

    def __init__(self, app: Sphinx):
        self.file = Path(app.doctreedir, "style_sheets.json")
        self.words = words_of(app)
        self.before = json.loads(self.file.read_text()) if self.file.exists() else {}
        self.now: dict[str, str] = {}

    def __getitem__(self, file: Path) -> str:
        text = file.read_text(encoding="utf-8")
        if file.parent.name != "styles":  # the folder in which the joined sheet stands
            text = BESIDE.sub(r"\1../", text)
        words = self.words & set(WORD.findall(text))
        how = Path(__file__).read_text(encoding="utf-8")
        key = sha256(f"{how} {file.name} {sorted(words)} {text}".encode()).hexdigest()
        if key not in self.now:
            self.now[key] = self.before.get(key) or sheet(file, text, words)
        return self.now[key]

    def keep(self) -> None:
        self.file.write_text(json.dumps(self.now))


def sheet(file: Path, text: str, words: set[str]) -> str:
    """What this style sheet, whose text it is, brings to pages that have these words."""
    rules = rules_in(text)
    if any(rule.type == "at-rule" and rule.lower_at_keyword == "import" for rule in rules):
        raise ExtensionError(f"{file} imports another style sheet: name that one, too")
    is_large = file.name.startswith(TO_CUT)
    return cut(rules, words) if is_large else tinycss2.serialize(rules)  # no comments


def name_the_style_sheet(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Runs when all others have said which styles and scripts this page has."""
    files = (*THEME, *(str(style.filename) for style in context["css_files"]))
    whole = b"".join(Path(app.outdir, file).read_bytes() for file in files)
    name = f"_static/styles/page-{crc32(whole):08x}.css"
    parts = Path(app.outdir, name + PARTS)  # pages are written by several processes
    parts.parent.mkdir(parents=True, exist_ok=True)
    parts.write_text("\n".join(dict.fromkeys(files)), encoding="utf-8")
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
    asked = sorted(Path(app.outdir, "_static/styles").glob(f"page-*{PARTS}"))
    if failed or not asked:
        return
    sheets = Sheets(app)
    for parts in asked:
        files = parts.read_text(encoding="utf-8").splitlines()
        joined = "\n".join(sheets[Path(app.outdir, file)] for file in files)
        parts.with_suffix("").write_text(joined, encoding="utf-8")
        parts.unlink()
    sheets.keep()


def bring_styles_early(app: Sphinx) -> None:
    """myst-nb copies its style sheet when all pages are written; here it is read before."""
    add_global_html_resources(app, None)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", bring_styles_early)
    app.connect("html-page-context", name_the_style_sheet, priority=999)
    app.connect("build-finished", write_style_sheets, priority=999)  # the theme changes some late
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
