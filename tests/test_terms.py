"""Terms are links to the glossary: each once on a page, where it matters, and each leads there."""

import re
import sys
from pathlib import Path

import pytest
from docutils import nodes
from sphinx import addnodes

from playground.build.toc import pages_in_order, taught

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "book/_ext"))

import tips  # type: ignore[import-not-found]  # noqa: E402

GLOSSARY = (ROOT / "book/reference/glossary.md").read_text()
ENTRIES = re.findall(r"((?:^\S.*\n)+)((?:  .*\n)+)", GLOSSARY.split("```{glossary}")[1], re.M)
DEFINITIONS = {name: text for names, text in ENTRIES for name in names.splitlines()}
CHAPTERS = taught(ROOT)
PAGES = [ROOT / f"{page}.md" for page in pages_in_order(ROOT) if not page.endswith("/glossary")]
CODE = r"^(`{3,})\{(?:code-cell|literalinclude)\}.*?^\1"


def terms(text: str) -> list[str]:
    """The terms that a text links to, as the glossary spells them in small letters."""
    found = re.findall(r"\{term\}`(?:[^`<]*<([^`>]+)>|([^`<]+))`", text)
    return [" ".join((target or shown).split()).lower() for target, shown in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_links_to_a_term_once_and_not_in_a_title(page):
    text = re.sub(CODE, "", page.read_text(), flags=re.M | re.S)
    found = terms(text)
    assert set(found) <= {term.lower() for term in DEFINITIONS}
    assert sorted(found) == sorted(set(found))
    assert not re.findall(r"^#.*\{term\}", text, re.M)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_links_to_its_terms_below_its_first_paragraph(chapter):
    """The first paragraph stands on the map of the book, too."""
    text = (ROOT / f"{chapter}.md").read_text().split("\n# ")[1]
    assert terms(text)
    assert not terms(text.split("\n\n")[1])


def test_every_term_is_linked_from_a_chapter():
    linked = {term for chapter in CHAPTERS for term in terms((ROOT / f"{chapter}.md").read_text())}
    assert sorted({term.lower() for term in DEFINITIONS} - linked) == []


@pytest.mark.parametrize("term", DEFINITIONS)
def test_a_definition_is_short_and_names_a_chapter(term):
    words, _, rest = DEFINITIONS[term].partition("{doc}`")
    assert len(words) < 260
    assert (ROOT / f"{rest.split('`')[0].lstrip('/')}.md").exists()


def test_a_tip_says_what_the_glossary_says_without_where():
    def link(kind: str, target: str, text: str) -> addnodes.pending_xref:
        shown = nodes.inline(text, text)
        return addnodes.pending_xref("", shown, reftype=kind, reftarget=target)

    text = nodes.paragraph("", "", nodes.Text("A "), link("term", "bucket", "bucket"))
    text += [nodes.Text(" of water. See\n"), link("doc", "/book/ddp", "/book/ddp"), nodes.Text(".")]
    term = nodes.term("", "pail", ids=["term-pail"])
    item = nodes.definition_list_item("", term, nodes.definition("", text))
    page = nodes.section("", nodes.definition_list("", item))
    assert tips.definitions_in(page) == {"term-pail": ("A bucket of water.", "book/ddp")}
