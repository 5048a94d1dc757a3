"""Navigation: the parts of the book in the side bar, and the page that comes next.

Only the part of the current page is open in the side bar. Pages for maintainers aren't listed
there; the footer links to them. At the end of a chapter of the core path, *Next* leads to the next
chapter of the core path, because other chapters between the two are optional. A search lists
chapters before modules and their functions: see `scorer.js`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.config import Config

from playground.build.toc import MAINTAINERS, chapters, core_path, pages_in_order

SIDE_BAR = ["navbar-logo.html", "icon-links.html", "search-button-field.html", "parts.html"]


def list_parts_in_the_side_bar(app: Sphinx, config: Config) -> None:
    config.html_sidebars = {"**": SIDE_BAR}
    config.html_search_scorer = str(Path(__file__).with_name("scorer.js"))


def offer_pages(
    app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Give the templates `book_parts`, `book_for_maintainers`, and the next page to read."""
    root = Path(app.srcdir)
    parts = chapters(root) or {"Chapters": pages_in_order(root)[1:]}

    def entry(page: str) -> dict[str, Any]:
        title, link = app.env.titles[page].astext(), app.builder.get_relative_uri(name, page)
        return {"title": title, "link": link, "is_current": page == name}

    context["book_for_maintainers"] = [entry(page) for page in parts.pop(MAINTAINERS, [])]
    here = next((caption for caption, pages in parts.items() if name in pages), None)
    context["book_parts"] = [
        {"caption": caption, "is_open": caption == here, "pages": [entry(p) for p in pages]}
        for caption, pages in parts.items()
    ]
    core = [*core_path(root)]
    if name in core[:-1]:
        context["next"] = entry(core[core.index(name) + 1])


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("config-inited", list_parts_in_the_side_bar)
    app.connect("html-page-context", offer_pages)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
