"""A short name in a table stays whole where the page is narrow; a long one gives way (book.css)."""

from docutils import nodes
from sphinx.application import Sphinx

SHORT = 12  # letters: three such columns fit beside each other on a phone


def keep_short_names_whole(_app: Sphinx, doctree: nodes.document, _name: str) -> None:
    for entry in doctree.findall(nodes.entry):
        for name in entry.findall(nodes.literal):
            if len(name.astext()) <= SHORT:
                name["classes"].append("whole")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-resolved", keep_short_names_whole)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
