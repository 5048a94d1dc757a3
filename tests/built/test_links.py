"""What the built pages point to is there, and nothing that they load comes from elsewhere."""

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest

ROOT = "http://book/"  # where the book stands in this test
URL_IN_STYLE = re.compile(r"""(?:url\(|@import)\s*["']?([^"')\s;]+)""")
LOADED = {"href": {"link", "image", "use"}, "data": {"object"}, "poster": {"video"}}
NOT_LOADED = {"canonical", "next", "prev", "search", "index", "author", "copyright"}  # <link rel=…>


@dataclass
class Page(HTMLParser):
    """What one page has: the names of its places, what it links to, and what it loads."""

    address: str
    places: list[str] = field(default_factory=list)
    links: set[str] = field(default_factory=set)
    loads: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        names = ("id", "name") if tag == "a" else ("id",)
        self.places += {given[name] for name in names if name in given}
        loads = {value for name, value in given.items() if name == "src"}
        loads |= {part.split()[0] for part in given.get("srcset", "").split(",") if part.strip()}
        loads |= set(URL_IN_STYLE.findall(given.get("style", "")))
        for name, tags in LOADED.items():
            if name in given and tag in tags and given.get("rel") not in NOT_LOADED:
                loads.add(given[name])
        self.loads |= {urljoin(self.address, url) for url in loads}
        if "href" in given:
            self.links.add(urljoin(self.address, given["href"]))


@pytest.fixture(scope="module")
def pages(built: Path) -> dict[str, Page]:
    found = {}
    for file in built.rglob("*.html"):
        name = file.relative_to(built).as_posix()
        if not name.startswith("_static/"):  # templates of the themes lie there
            found[name] = Page(ROOT + name)
            found[name].feed(file.read_text(encoding="utf-8"))
    return found


def test_every_link_leads_to_a_file_and_a_place_in_it(built: Path, pages: dict[str, Page]) -> None:
    broken = set()
    for name, page in pages.items():
        for url in (url for url in page.links | page.loads if url.startswith(ROOT)):
            parts = urlsplit(url)
            target, place = unquote(parts.path[1:]), unquote(parts.fragment)
            known = pages.get(target)
            if not (built / target).is_file():
                broken.add(f"{name}: no file {target!r}")
            elif place and known and place not in known.places:
                broken.add(f"{name}: no place #{place} in {target}")
    assert not broken, "\n".join(sorted(broken))


def test_a_page_has_no_two_places_of_one_name(pages: dict[str, Page]) -> None:
    twice = {
        f"{name}: #{place}"
        for name, page in pages.items()
        for place in set(page.places)
        if page.places.count(place) > 1
    }
    assert not twice, "\n".join(sorted(twice))


def test_nothing_that_a_page_loads_comes_from_another_host(
    built: Path, pages: dict[str, Page]
) -> None:
    foreign = {
        f"{name}: {url[:100]}"
        for name, page in pages.items()
        for url in page.loads
        if not url.startswith((ROOT, "data:"))
    }
    for style in built.rglob("*.css"):
        address = ROOT + style.relative_to(built).as_posix()
        for url in URL_IN_STYLE.findall(style.read_text(encoding="utf-8")):
            if not urljoin(address, url).startswith((ROOT, "data:")):
                foreign.add(f"{style.name}: {url[:100]}")
    assert not foreign, "\n".join(sorted(foreign))


def test_the_parser_sees_all_ways_to_point_somewhere() -> None:
    page = Page(f"{ROOT}a/b.html")
    page.feed("""<p id=here><a href="../c.html#there">x</a><a name="named"></a><img src=d.png
      srcset="e.png 1x, f.png 2x"><link rel=stylesheet href="//other/g.css"><link rel="next" href=h>
      <div style="background: url('i.png')"></div><svg><use href="#here"/></svg>""")
    assert page.places == ["here", "named"]
    assert {f"{ROOT}c.html#there", f"{ROOT}a/h"} <= page.links
    assert page.loads == {
        *(f"{ROOT}a/{name}" for name in ("d.png", "e.png", "f.png", "i.png", "b.html#here")),
        "http://other/g.css",
    }
