"""Tooltips of links: the definition of a term, or the paper behind a citation.

Each page contains the tips of all links on it when it is built, so they need neither a network nor
a kernel. They are hidden until `book/_static/tips.js` shows one. Without scripts, a link still
leads to the glossary or to the bibliography.
"""

from __future__ import annotations

import re
from html import escape
from typing import Any, NamedTuple

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

TERM = re.compile(
    r'<a class="reference internal" href="(?P<href>[^"#]*#(?P<id>term-[^"]+))">'
    r'(?=<span class="xref std std-term">)'
)
CITATION = re.compile(
    r'<a class="reference internal" href="(?P<href>[^"#]*#(?P<id>[^"]+))" title="(?P<said>[^"]+)">'
)
TIP = (
    '<div class="link-tip" id="tip-{id}" role="tooltip" hidden>'
    '<span id="said-{id}">{said}</span>{links}</div>\n'
)
# Not a stop of the Tab key, because the link with the tip leads to the same place.
LINK = ' <a href="{href}" tabindex="-1">{text}</a>'


class Definition(NamedTuple):
    text: str
    chapter: str  # a page that uses the term, or ""


def definition_of(item: nodes.Element) -> Definition:
    """Definition of a term in the glossary, without a sentence that only names a chapter."""
    text, chapter = "", ""
    for node in item.findall(lambda n: isinstance(n, nodes.Text | addnodes.pending_xref)):
        if isinstance(node, addnodes.pending_xref):
            if node["reftype"] == "doc":
                chapter = node["reftarget"].lstrip("/")
        elif in_link_to_page(node):
            text += "\0"
        else:
            text += node.astext()
    return Definition(" ".join(re.sub(r"\s*See\s+\0\.", "", text).split()), chapter)


def in_link_to_page(node: nodes.Node) -> bool:
    while node.parent is not None:
        node = node.parent
        if isinstance(node, addnodes.pending_xref):
            return node["reftype"] == "doc"
    return False


def definitions_in(glossary: nodes.document) -> dict[str, Definition]:
    """Definitions of all terms on a page: id of the term → definition."""
    found = {}
    for item in glossary.findall(nodes.definition_list_item):
        for term in item.findall(nodes.term):
            for name in term["ids"]:
                found[name] = definition_of(next(item.findall(nodes.definition)))
    return found


class Tips:
    """Tips of one build; reads the glossary once, for the first page that is written."""

    def __init__(self) -> None:
        self.definitions: dict[str, Definition] = {}
        self.all_pages_anew = False

    def look_for_changes(self, app: Sphinx, env: BuildEnvironment, docnames: list[str]) -> None:
        self.definitions = {}
        self.all_pages_anew = bool(set(docnames) & glossaries(env))

    def pages_to_write(self, app: Sphinx, env: BuildEnvironment) -> list[str]:
        """All pages if a definition changed, because every page may contain a copy of it."""
        return sorted(env.found_docs) if self.all_pages_anew else []

    def add(
        self,
        app: Sphinx,
        pagename: str,
        templatename: str,
        context: dict[str, Any],
        doctree: nodes.document | None,
    ) -> None:
        env = app.env
        if doctree is None or pagename in glossaries(env):
            return
        if not self.definitions:
            for name in glossaries(env):
                self.definitions |= definitions_in(env.get_doctree(name))
        bibliography: Any = env.get_domain("cite")
        papers = {citation.citation_id for citation in bibliography.citations}
        tips: dict[str, str] = {}

        def of_term(found: re.Match[str]) -> str:
            name, href = found["id"], found["href"]
            text, chapter = self.definitions[name]
            links = LINK.format(href=href, text="Glossary")
            if chapter in env.titles and chapter != pagename:
                there = app.builder.get_relative_uri(pagename, chapter)
                links += LINK.format(href=there, text=escape(env.titles[chapter].astext()))
            tips[name] = TIP.format(id=name, said=escape(text), links=links)
            return f'<a class="has-tip term" href="{href}" aria-describedby="said-{name}">'

        def of_citation(found: re.Match[str]) -> str:
            name, href = found["id"], found["href"]
            if name not in papers:
                return found[0]  # other links have titles, too, such as those to functions
            links = LINK.format(href=href, text="Bibliography")
            tips[name] = TIP.format(id=name, said=found["said"], links=links)
            return f'<a class="has-tip" href="{href}" aria-describedby="said-{name}">'

        body = CITATION.sub(of_citation, TERM.sub(of_term, context["body"]))
        if tips:
            context["body"] = body + "".join(tips.values())
            app.add_css_file("tips.css")
            app.add_js_file("tips.js", type="module")


def glossaries(env: BuildEnvironment) -> set[str]:
    """Pages that define terms."""
    objects = env.get_domain("std").get_objects()
    return {page for _, _, kind, page, _, _ in objects if kind == "term"}


def setup(app: Sphinx) -> dict[str, Any]:
    tips = Tips()
    app.connect("env-before-read-docs", tips.look_for_changes)
    app.connect("env-updated", tips.pages_to_write)
    app.connect("html-page-context", tips.add)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
