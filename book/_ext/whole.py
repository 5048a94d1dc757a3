"""Words that stay on one line: a number and its unit, the name of a stage, short code.

Authors write plain spaces and hyphens. When a page is written, the space before a unit is replaced
by a no-break space. Words that could break at a hyphen or a bracket get the class `whole`
(book.css).
"""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.application import Sphinx

UNITS = (
    r"%|[kMGT]?i?B(?:/s)?|[mµn]?s|min|h|bits?|[kMGT]?bit/s|[MGTPE]?FLOP/s|k?W|px|pt"
    r"|million|billion|trillion"
)
QUANTITY = re.compile(rf"(?<=\d)[ \n](?=(?:{UNITS})(?![\w/]))")
STAGE = re.compile(r"(\bZeRO-\d\b)")
SHORT = 26  # characters of code; a line on a phone has a few more
SHORT_IN_TABLE = 12  # three such columns fit next to each other on a phone
# Between the words of a name in code: after_an_underscore, after.a(bracket, and inCamelCase
SEAM = re.compile(r"(?<=[^\W_][_.=(/])(?<!\d\.)(?=[^\W_])|(?<=[a-z])(?=[A-Z])")
AS_IT_IS = (nodes.literal, nodes.literal_block, nodes.math, nodes.math_block, nodes.raw)


def keep_whole(_app: Sphinx, doctree: nodes.document, _name: str) -> None:
    for text in list(doctree.findall(nodes.Text)):
        if not inside(text, *AS_IT_IS):
            keep_words(text)
    for code in doctree.findall(nodes.literal):
        if inside(code, nodes.entry):
            keep_name_in_table(code)
        elif max(map(len, code.astext().split()), default=0) <= SHORT:
            code["classes"].append("whole")
    for output in list(doctree.findall(nodes.raw)):
        if '<table class="table">' in output.astext():
            kept = STAGE.sub(r'<span class="whole">\1</span>', output.astext())
            output.parent.replace(output, nodes.raw("", kept, **output.attributes))
    for formula in list(doctree.findall(nodes.math)):
        keep_bracket(formula)


def inside(node: nodes.Node, *kinds: type[nodes.Element]) -> bool:
    while (node := node.parent) is not None:
        if isinstance(node, kinds):
            return True
    return False


def keep_words(text: nodes.Text) -> None:
    said = QUANTITY.sub("\N{NO-BREAK SPACE}", text.astext())
    parts = [said]
    if isinstance(text.parent, nodes.paragraph | nodes.strong | nodes.emphasis):
        parts = STAGE.split(said)  # every second part is a name
    if len(parts) > 1 or said != text.astext():
        kept = [
            nodes.inline("", part, classes=["whole"]) if number % 2 else nodes.Text(part)
            for number, part in enumerate(parts)
        ]
        text.parent.replace(text, [node for node in kept if node.astext()])


def keep_name_in_table(name: nodes.literal) -> None:
    """Keep a short name whole; a long one may break between its words."""
    text = name.astext()
    if len(text) <= SHORT_IN_TABLE:
        name["classes"].append("whole")
    elif len(parts := SEAM.split(text)) > 1 and len(name) == 1:
        name.clear()
        for part in parts:
            if len(name):
                name += nodes.raw("", "<wbr>", format="html")
            name += nodes.Text(part)


def keep_bracket(formula: nodes.math) -> None:
    """Keep an opening bracket on the line of the formula after it."""
    before = formula.previous_sibling()
    if isinstance(before, nodes.Text) and before.astext().endswith("("):
        both = nodes.inline("", "(", classes=["whole"])
        formula.parent.replace(before, nodes.Text(before.astext()[:-1]))
        formula.parent.replace(formula, both)
        both += formula


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-resolved", keep_whole)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
