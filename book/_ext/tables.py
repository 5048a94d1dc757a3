"""A short name in a table stays whole (book.css); a long one breaks after an underscore."""

import re

from docutils import nodes
from sphinx.application import Sphinx

SHORT = 12  # letters: three such columns fit beside each other on a phone


def keep_short_names_whole(_app: Sphinx, doctree: nodes.document, _name: str) -> None:
    for entry in doctree.findall(nodes.entry):
        for name in entry.findall(nodes.literal):
            if len(name.astext()) <= SHORT:
                name["classes"].append("whole")
            elif "_" in (text := name.astext()).strip("_") and len(name) == 1:
                name.clear()
                for part in re.findall(r"_*[^_]+_*", text):
                    if len(name):
                        name += nodes.raw("", "<wbr>", format="html")
                    name += nodes.Text(part)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-resolved", keep_short_names_whole)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
