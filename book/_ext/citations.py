"""Citations by authors and year; the bibliography uses the same names.

    {cite:t}`goyal2017` keep …              Goyal et al. (2017) keep …
    … by a ring {cite:p}`thakur2005{§4}`    … by a ring (Thakur et al., 2005, §4)

The whole citation is a link. `tips.py` adds the tip that shows the paper.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pybtex.plugin
from docutils import nodes
from pybtex.backends import plaintext
from pybtex.database import Entry
from pybtex.richtext import Text
from pybtex.style.formatting import toplevel
from pybtex.style.formatting.plain import Style as PlainStyle
from pybtex.style.labels import BaseLabelStyle
from pybtex.style.template import field, optional, sentence, tag
from pybtex.style.template import join as plain_join
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinxcontrib.bibtex.citation_target import parse_citation_targets
from sphinxcontrib.bibtex.plugin import register_plugin
from sphinxcontrib.bibtex.style.referencing import BaseReferenceStyle
from sphinxcontrib.bibtex.style.template import join, join2, node, post_text, pre_text, reference


def authors(entry: Entry) -> str:
    """`Li et al.`, `Patarasuk and Yuan`, or `Young`."""
    people = entry.persons["author"]
    parts = [[*person.rich_prelast_names, *person.rich_last_names] for person in people]
    names = [" ".join(map(str, words)) for words in parts]
    if len(names) > 2 or names[-1] == "others":
        return f"{names[0]} et al."
    return " and ".join(names)


def name_of(entry: Entry) -> str:
    return f"{authors(entry)} {entry.fields['year']}"


def in_words(kind: str, targets: str, entries: Mapping[str, Entry]) -> str:
    """A citation as plain text, for places that can't contain a link."""
    several = []
    for key, before, after in parse_citation_targets(targets):
        names, year = authors(entries[key]), entries[key].fields["year"]
        where = ", ".join(filter(None, [year, after]))
        said = f"{names} ({where})" if kind == "t" else f"{names}, {where}"
        several.append(f"{before} {said}".strip())
    return "; ".join(several) if kind == "t" else f"({'; '.join(several)})"


@node
def who(children: Any, data: dict[str, Any]) -> Text:
    return Text(authors(data["entry"]))


@node
def when(children: Any, data: dict[str, Any]) -> Text:
    return Text(data["entry"].fields["year"])


@dataclass
class AuthorsAndYear(BaseReferenceStyle):
    """The whole citation is the link, and brackets are round."""

    def role_names(self) -> Iterable[str]:
        return ["t", "p"]

    def outer(self, role_name: str, children: list[Any]) -> Any:
        several = join(sep="; ")[children]
        return join["(", several, ")"] if role_name == "p" else several

    def inner(self, role_name: str) -> Any:
        where = join2(sep1=" ", sep2=", ")
        if role_name == "p":
            return reference[where[pre_text, join(sep=", ")[who, when], post_text]]
        return reference[join(sep=" ")[who, join["(", where[pre_text, when, post_text], ")"]]]


class Labels(BaseLabelStyle):
    """Labels in the bibliography: the text of a citation without brackets."""

    def format_labels(self, sorted_entries: Iterable[Entry]) -> Iterator[str]:
        return map(name_of, sorted_entries)


class Entries(PlainStyle):
    """pybtex's plain style, but volumes of journals are shown even if the pages aren't known."""

    default_label_style = "authors-year"

    def get_article_template(self, entry: Entry) -> Any:
        volume = optional[" ", field("volume"), optional["(", field("number"), ")"]]
        journal = plain_join[tag("em")[field("journal")], volume]
        return toplevel[
            self.format_names("author"),
            self.format_title(entry, "title"),
            sentence[journal, field("year")],
            self.format_web_refs(entry),
        ]


def say_where_cited(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Below each entry of a bibliography, list the pages that cite it, in the book's order."""
    entries = list(doctree.findall(nodes.citation))
    if not entries:
        return
    bibliography: Any = app.env.get_domain("cite")
    order = list(app.env.collect_relations())
    for entry in entries:
        citing = {
            found.docname
            for found in bibliography.citation_refs
            if any(target.key == entry["ids"][0] for target in found.targets)
        }
        line = nodes.paragraph("", "", classes=["cited-in"])
        for number, page in enumerate(sorted(citing & set(order), key=order.index)):
            line += nodes.Text("; " if number else "Cited in ")
            there = app.builder.get_relative_uri(docname, page)
            name = app.env.titles[page].astext()
            line += nodes.reference("", name, internal=True, refuri=there)
        if line.children:
            line += nodes.Text(".")
            entry += line


def pages_with_entries(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Write the bibliography in every build, because citations on any page may have changed."""
    bibliography: Any = env.get_domain("cite")
    return sorted({key.docname for key in bibliography.bibliographies})


def name_roles_that_browsers_know(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Replace the role of bibliography entries, which is deprecated and invalid in a list."""
    if "body" in context:
        context["body"] = context["body"].replace('role="doc-biblioentry"', 'role="listitem"')


def setup(app: Sphinx) -> dict[str, Any]:
    pybtex.plugin.register_plugin("pybtex.style.labels", "authors-year", Labels)
    pybtex.plugin.register_plugin("pybtex.style.formatting", "authors-year", Entries)
    # Once it is registered, pybtex doesn't search all installed packages per citation (2 s).
    pybtex.plugin.register_plugin("pybtex.backends", "plaintext", plaintext.Backend, force=True)
    register_plugin("sphinxcontrib.bibtex.style.referencing", "authors-year", AuthorsAndYear)
    app.connect("doctree-resolved", say_where_cited)
    app.connect("env-updated", pages_with_entries)
    app.connect("html-page-context", name_roles_that_browsers_know)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
