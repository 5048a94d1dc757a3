"""Additions to a published book: a description and a card, a sitemap, a page for 404, and a
security policy in each page.

The environment variable `BOOK_URL` has the address at which the book will be published. Without it,
nothing that needs an address is written.
"""

from __future__ import annotations

import os
import shutil
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config

from playground.server.policy import with_policy

CARD = "book/_static/page.png"  # also the picture in the README; a test takes it
CARD_ALT = "A page of the book: a cell of code, its Run button, and what four ranks printed."
BARE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
body {{ font: 1.1rem/1.6 system-ui, sans-serif; max-width: 50rem; margin: 3rem auto;
  padding: 0 1rem; color: #20262e; background: #fff; }}
th, td {{ text-align: left; vertical-align: top; padding: .2rem 1rem .2rem 0; }}
a {{ color: #0b5cad; }}
@media (prefers-color-scheme: dark) {{ body {{ color: #dfe3e8; background: #14181e; }}
  a {{ color: #7fbcff; }} }}
</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""
NOT_FOUND = """\
<h1>No such page</h1>
<p>There is no page at this address. <a href="{home}">The map of the book</a> lists them all.</p>"""


def bare(title: str, body: str) -> str:
    """A standalone page, which needs no file of the book's other pages."""
    return BARE.format(title=escape(title), body=body)


def take_address(app: Sphinx, config: Config) -> None:
    config.project = config.html_title or config.project  # Jupyter Book sets only html_title
    address = os.environ.get("BOOK_URL", "")
    config.html_baseurl = f"{address.rstrip('/')}/" if address else ""


def metatags(title: str, said: str, address: str, page: str, card: bool) -> str:
    """Meta tags with the text that search engines and messengers show for a page."""
    tags = [("name", "description", said), ("property", "og:title", title)]
    tags += [("property", "og:description", said), ("property", "og:type", "article")]
    if address:
        tags.append(("property", "og:url", address + page))
        if card:
            tags.append(("property", "og:image", f"{address}_static/card.png"))
            tags.append(("property", "og:image:alt", CARD_ALT))
            tags.append(("name", "twitter:card", "summary_large_image"))
    return "".join(
        f'<meta {kind}="{name}" content="{escape(text)}">\n' for kind, name, text in tags
    )


def sitemap(address: str, pages: list[str]) -> str:
    """Sitemap: the list of all pages in the format for search engines."""
    lines = "".join(f"<url><loc>{escape(address + page)}</loc></url>\n" for page in pages)
    head = '<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">'
    return f'<?xml version="1.0" encoding="utf-8"?>\n{head}\n{lines}</urlset>\n'


def describe_page(
    app: Sphinx, pagename: str, templatename: str, context: dict, doctree: nodes.document | None
) -> None:
    if doctree is None:
        return
    said = next((p.astext() for p in doctree.findall(nodes.paragraph)), "")
    title = next((t.astext() for t in doctree.findall(nodes.title)), app.config.project)
    card = (Path(app.srcdir) / CARD).exists()
    page = f"{pagename}.html"
    tags = metatags(title, " ".join(said.split()), app.config.html_baseurl, page, card)
    context["metatags"] = context.get("metatags", "") + tags


def write_beside_the_pages(app: Sphinx, failed: Exception | None) -> None:
    if failed:
        return
    out, address = Path(app.outdir), app.config.html_baseurl
    home = f"{address or '/'}{app.config.root_doc}.html"
    page = bare(f"No such page · {app.config.project}", NOT_FOUND.format(home=escape(home)))
    (out / "404.html").write_text(page, encoding="utf-8")
    binder = (app.config.html_context.get("live_binder") or {}).get("url", "")
    for file in out.rglob("*.html"):
        found = file.read_bytes()
        if (confined := with_policy(found, binder)) != found:
            file.write_bytes(confined)
    if address:
        pages = [f"{name}.html" for name in sorted(app.env.found_docs)]
        (out / "sitemap.xml").write_text(sitemap(address, pages), encoding="utf-8")
        if (Path(app.srcdir) / CARD).exists():
            shutil.copy2(Path(app.srcdir) / CARD, out / "_static/card.png")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("config-inited", take_address)
    app.connect("html-page-context", describe_page)
    app.connect("build-finished", write_beside_the_pages, priority=950)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
