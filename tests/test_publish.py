"""What a published book has besides the text of its pages."""

import re
import sys
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

from playground.server.policy import with_policy

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "book/_ext"))

from publish import (  # type: ignore[import-not-found]  # noqa: E402
    NOT_FOUND,
    bare,
    metatags,
    sitemap,
    write_beside_the_pages,
)

ADDRESS = "https://example.org/book/"


def test_the_sitemap_has_the_address_of_every_page():
    tree = ElementTree.fromstring(sitemap(ADDRESS, ["a.html", "b/c&d.html"]).encode())
    assert [url[0].text for url in tree] == [f"{ADDRESS}a.html", f"{ADDRESS}b/c&d.html"]


def test_a_page_without_an_address_names_none():
    tags = metatags("Title", 'says "this"', "", "a.html", card=True)
    assert 'content="says &quot;this&quot;"' in tags
    assert "og:url" not in tags
    assert "og:image" not in tags


def test_a_page_with_an_address_has_a_card():
    tags = metatags("Title", "says", ADDRESS, "a.html", card=True)
    assert f'"og:image" content="{ADDRESS}_static/card.png"' in tags
    assert '"og:image:alt" content="A page of the book' in tags
    assert f'"og:url" content="{ADDRESS}a.html"' in tags


def test_the_page_for_404_asks_nothing_of_anybody():
    page = bare("Book", NOT_FOUND.format(home="/book/index.html"))
    assert 'href="/book/index.html"' in page
    assert "src=" not in page
    assert "http" not in page


def test_the_page_for_404_leads_home_from_any_depth(tmp_path):
    """A host shows it at the address that was asked for, so a relative link would lead astray."""
    config = SimpleNamespace(project="Book", root_doc="index", html_context={})
    app = SimpleNamespace(outdir=tmp_path, srcdir=tmp_path, config=config)
    app.env = SimpleNamespace(found_docs=[])
    for config.html_baseurl, home in (("", "/index.html"), (ADDRESS, f"{ADDRESS}index.html")):
        write_beside_the_pages(app, None)
        assert f'<a href="{home}">' in (tmp_path / "404.html").read_text()


# --- the policy in each page ---

PAGE = b"""<!DOCTYPE html><html lang="en"><HEAD>
<meta charset="utf-8" /><script>one</script><script src="x.js"></script></head><body>words</body>"""


def policy_of(page: bytes) -> dict[str, list[str]]:
    (found,) = re.findall(rb'<meta http-equiv="Content-Security-Policy" content="(.*?)">', page)
    return {each.split()[0]: each.split()[1:] for each in found.decode().split("; ")}


def test_a_page_runs_the_scripts_that_it_was_built_with():
    page = with_policy(PAGE)
    one = "'sha256-" + b64encode(sha256(b"one").digest()).decode() + "'"
    assert policy_of(page)["script-src"] == ["'self'", "file:", one]
    assert policy_of(page)["default-src"] == ["'none'"]
    assert policy_of(page)["connect-src"] == ["'self'"]
    assert policy_of(page)["base-uri"] == ["'none'"], "it doesn't fall back to default-src"
    assert policy_of(page)["form-action"] == ["'self'"], "nor does this"
    assert "frame-ancestors" not in policy_of(page), "browsers take it from a header alone"
    assert page.index(b"http-equiv") < page.index(b"<script")
    assert with_policy(page) == page, "a page that is not written again has it already"


def test_a_page_with_cells_compiles_python_and_one_with_a_binder_asks_its_machines():
    cells = PAGE.replace(b"words", b"<div data-live=0>")
    assert "'wasm-unsafe-eval'" in policy_of(with_policy(cells))["script-src"]
    asked = policy_of(with_policy(cells, "https://mybinder.org"))["connect-src"]
    assert asked == ["'self'", "https:", "wss:"]
