"""English that reads as translated: constructions to look at, in pages and in Python files.

    python -m playground.build.prose                     # what `make lint` runs: the files below
    python -m playground.build.prose book/ddp/overlap.md   # each hit of a file, with its line

A page's prose is its paragraphs, lists and tables, without code, formulas and roles. A Python
file's prose is its docstrings, its comments and the help texts of its options. A hit is a place to
look at, and not always a fault, so a file fails only with more than `MOST` per 1,000 words.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from mdit_py_plugins.colon_fence import colon_fence_plugin
from mdit_py_plugins.deflist import deflist_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mdit_py_plugins.front_matter import front_matter_plugin
from mdit_py_plugins.myst_role import myst_role_plugin

from playground.build.digest import ROOT
from playground.build.toc import chapters, first_page

MOST = 4.0  # hits per 1,000 words
SHORT = 60  # words: of fewer, a share says nothing
LATER = ("For maintainers",)  # not rewritten yet
PROSE_BLOCKS = ("admonition", "note", "tip", "warning", "dropdown", "grid", "solution", "question")
RULES = {  # a name → what to search for
    "a crowd": r"(?i)\b(nobody|everybody|somebody|everyone|anybody|no one)\b",
    "things that stand": r"(?i)\b(stands?|standing|stood|lies?)\b(?! for\b)",
    "an old adverb": r"(?i)\b(for ever|anew|seldom|aloud|at once|as a rule|(in|to) (the )?place of"
    r"|the other way (round|around)|of (its|their) own|one by one)\b",
    "another for different": r"(?i)\banother (one|each|order|number|shard|share|rank|machine|part"
    r"|card|way|branch|seed|row|size)\b",
    "a negated noun": r"(?<!here )\b(is|are|was|were|makes?|costs?) (no|nothing|none)\b"
    r"(?! (longer|more|different|need|way))|\b(has|have|had) not got\b|\bneed not\b"
    r"|\bkn(ow|ows|ew) nothing\b",
    "a clause as subject": r"(?m)(^|(?<=[.?!:;] ))(Who|Whom|Whoever|Whatever|Whichever|What|Which"
    r"|Where|How)\b(?![^.?!]*\?)[^.?!]*[.!]|\bto whom\b|\bof which\b|\ball that\b",
    "an inverted clause": r"(?m)(^|(?<=[.?!] ))(So|Below|Above|Not|Nor|On top|In front|Outside"
    r"|Inside|Last) (stands?|comes?|goe?s?|is|are|lies|many|much|does|do)\b[^.?!]*[.]"
    r"|\b(so|nor|neither) (is|are|does|do|has|have) (it|they|the|a)\b",
    "a thing that feels": r"(?i)(?<!you )(?<!to )(?<!we )\b(afraid|cares? about|not care|speaks?"
    r"|forgets?|forgotten|believes?|thinks?|notices?|have their say|tells? you|(is|are) told)\b",
    "a long aside": r"\([A-Z][^()]{20,}[.?!]\)|\((?=(?:[^()]*?[a-z]{2,}[^a-z()]+){6})[^()]{40,}\)",
    "arithmetic in words": r"(?i)\bhalf as (much|many|long)( [a-z]+)? again\b"
    r"|\b(so|too) many [a-z]+\b|\ban? N-th\b|\ba (third|half|quarter) later\b",
}


class Hit(NamedTuple):
    line: int
    rule: str
    text: str


def page_prose(text: str) -> Iterator[tuple[int, str]]:
    """(line, prose) of each paragraph, item and cell of a table in a page."""
    parser = MarkdownIt("commonmark").enable("table")
    for plugin in (front_matter_plugin, dollarmath_plugin, myst_role_plugin, deflist_plugin):
        parser.use(plugin)
    parser.use(colon_fence_plugin)
    for token in parser.parse(text):
        line = token.map[0] + 1 if token.map else 1
        if token.type == "inline":
            parts = [
                part.content if part.type == "text" else " "
                for part in token.children or []
                if part.type in ("text", "softbreak", "hardbreak")
            ]
            yield line, "".join(parts)
        elif token.type in ("fence", "colon_fence"):
            kind = re.match(r"\{([\w-]+)\}", token.info.strip())
            if kind and kind[1].startswith(PROSE_BLOCKS):
                inner = re.sub(r"(?m)^:[\w-]+:.*$", "", token.content)
                for below, prose in page_prose(inner):
                    yield line + below, prose


def python_prose(text: str) -> Iterator[tuple[int, str]]:
    """(line, prose) of each docstring, help text and comment of a Python file."""
    described = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, described) and ast.get_docstring(node) is not None:
            yield node.body[0].lineno, without_code(ast.get_docstring(node) or "")
        elif isinstance(node, ast.keyword) and node.arg in ("help", "description", "epilog"):
            texts = [n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant)]
            yield node.value.lineno, " ".join(text for text in texts if isinstance(text, str))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], without_code(token.string)


def without_code(text: str) -> str:
    return re.sub(r"(?m)^ {4,}\S.*$|`[^`]*`", " ", text)


def hits(path: Path) -> tuple[list[Hit], int]:
    """What to look at in a file, in order, and the file's number of words."""
    read = python_prose if path.suffix == ".py" else page_prose
    found, words = [], 0
    for line, prose in read(path.read_text(encoding="utf-8")):
        words += len(re.findall(r"[A-Za-z]{2,}", prose))
        for rule, pattern in RULES.items():
            for match in re.finditer(pattern, prose):
                text = " ".join(match[0].split())
                found.append(Hit(line, rule, text[:80]))
    return sorted(found), words


def checked(root: Path) -> list[Path]:
    """The files that `make lint` holds to the limit: the pages that have been rewritten."""
    parts = [files for caption, files in chapters(root).items() if caption not in LATER]
    names = [first_page(root), *(name for files in parts for name in files)]
    return [root / f"{name}.md" for name in names]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Find English that reads as translated.")
    parser.add_argument(
        "files", nargs="*", type=Path, help="pages or Python files (default: those of make lint)"
    )
    given = parser.parse_args(arguments)
    failed = 0
    for path in given.files or checked(ROOT):
        found, words = hits(path)
        share = 1000 * len(found) / max(1, words)
        over = words >= SHORT and share > MOST
        failed += over
        if given.files or over:
            for hit in found:
                print(f"{path}:{hit.line}: {hit.rule}: {hit.text}")
            print(f"{path}: {share:.1f} hits per 1,000 words, at most {MOST:.0f} are allowed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
