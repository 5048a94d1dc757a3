"""The book for e-book readers: a container that is whole, and pages that need no script."""

import posixpath
import re
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from playground.epub import Parts, mathml, parts_of_book, write

ROOT = Path(__file__).parents[2]
OPF = "{http://www.idpf.org/2007/opf}"
XHTML = "{http://www.w3.org/1999/xhtml}"
MATHML = "{http://www.w3.org/1998/Math/MathML}"
SVG = "{http://www.w3.org/2000/svg}"
WRONG = 'mathcolor="red"'  # how MathJax shows a command that it does not know
PAGES = {
    "book/index": """
        <h1>The book<a class="headerlink" href="#the-book">#</a></h1>
        <p>Begin with <a class="reference" href="part/one.html#gradient">one</a>, or look at
        <a href="../genindex.html">the index</a> and <a href="https://arxiv.org">elsewhere</a>.
        <a href="part/one.html#gone">Gone</a>.</p>""",
    "book/part/one": r"""
        <h1 id="gradient">One & all</h1>
        <p>The sum <span class="math">\(\sum_i g_i < \Psi\)</span> is</p>
        <div class="math">\[\frac{1}{N}\]</div>
        <div class="cell" data-live="1"><pre>x &lt; 1</pre>
        <div class="live-bar"><button onclick="run()">Run</button><p>built</p></div></div>
        <details class="hide"><summary>Show code</summary><pre>hidden</pre></details>
        <details class="exercise-hint"><summary>Hint 1</summary><p>Look again.</p></details>
        <img alt="Bars fall." src="../../_images/bars.svg"><br>
        <div class="calculator" data-vega="{}"><svg viewBox="0 0 9 9"><rect width="9"/></svg></div>
        <script>run()</script>""",
}
PARTS: Parts = {"": ["book/index"], "Part & parcel": ["book/part/one"]}


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    html = tmp_path_factory.mktemp("html")
    for name, body in PAGES.items():
        (html / name).parent.mkdir(parents=True, exist_ok=True)
        page = f"<!doctype html><nav>all</nav><article class='bd-article'>{body}</article>"
        (html / f"{name}.html").write_text(page)
    (html / "_images").mkdir()
    (html / "_images/bars.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    return html


@pytest.fixture(scope="module")
def book(html: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    to = tmp_path_factory.mktemp("epub") / "book.epub"
    assert write(html, PARTS, "Title & more", "Authors", to) == 2
    return zipfile.ZipFile(to)


def assert_whole(book: zipfile.ZipFile) -> None:
    """What every reading system relies on: EPUB 3.3, sections 4 and 5."""
    first = book.infolist()[0]
    assert (first.filename, first.compress_type) == ("mimetype", zipfile.ZIP_STORED)
    assert book.read("mimetype") == b"application/epub+zip"
    container = ElementTree.fromstring(book.read("META-INF/container.xml"))
    (root,) = [e.attrib["full-path"] for e in container.iter() if e.tag.endswith("rootfile")]
    package = ElementTree.fromstring(book.read(root))
    items = list(package.iter(f"{OPF}item"))
    listed = {posixpath.join("OEBPS", item.attrib["href"]): item for item in items}
    inside = {n for n in book.namelist() if n.startswith("OEBPS/")} - {root}
    assert set(listed) == inside, "the manifest lists every file, and no other"
    assert len({item.attrib["id"] for item in items}) == len(items)
    assert sum(item.attrib.get("properties") == "nav" for item in items) == 1
    spine = [ref.attrib["idref"] for ref in package.iter(f"{OPF}itemref")]
    assert spine
    assert set(spine) <= {item.attrib["id"] for item in items}
    ids: dict[str, set[str]] = {}
    pages = {n: ElementTree.fromstring(book.read(n)) for n in inside if n.endswith(".xhtml")}
    for name, page in pages.items():
        found = [e.attrib["id"] for e in page.iter() if "id" in e.attrib]
        ids[name] = set(found)
        tags = {e.tag for e in page.iter()}
        assert not tags & {f"{XHTML}script", f"{XHTML}button", f"{XHTML}iframe"}, name
        said = set(listed[name].attrib.get("properties", "").split()) - {"nav"}
        has = {"mathml": f"{MATHML}math" in tags, "svg": f"{SVG}svg" in tags}
        assert said == {kind for kind, there in has.items() if there}, name
        for element in page.iter():
            assert not [a for a in element.attrib if a.startswith(("on", "data-"))], name
    for name, page in pages.items():
        folder = posixpath.dirname(name)
        for element in page.iter():
            target = element.attrib.get("href") or element.attrib.get("src") or ""
            if not target or re.match(r"[a-z]+:", target):
                continue
            path, _, fragment = target.partition("#")
            path = posixpath.normpath(posixpath.join(folder, path)) if path else name
            assert path in inside, f"{name} leads to {target}"
            assert not fragment or fragment in ids[path], f"{name} leads to {target}"


def test_the_container_is_whole(book: zipfile.ZipFile) -> None:
    assert_whole(book)


def test_what_can_only_be_pressed_goes_and_folded_code_is_open(book: zipfile.ZipFile) -> None:
    page = book.read("OEBPS/book/part/one.xhtml").decode()
    for gone in ("Run", "built", "Show code", "run()", "data-"):
        assert gone not in page
    assert re.findall(r"<details[^>]*><summary>(.*?)</summary>", page) == ["Hint 1"]
    for kept in ("x &lt; 1", "hidden", "Hint 1", "Look again.", 'alt="Bars fall."', "viewBox"):
        assert kept in page


def test_a_formula_becomes_mathml(book: zipfile.ZipFile) -> None:
    page = ElementTree.fromstring(book.read("OEBPS/book/part/one.xhtml"))
    inline, display = page.iter(f"{MATHML}math")
    assert [e.text for e in inline.iter(f"{MATHML}mi")] == ["i", "g", "i", "Ψ"]
    assert display.attrib["display"] == "block"
    assert display.find(f".//{MATHML}mfrac") is not None
    assert WRONG in mathml([(r"\nonsense", False)])[0]


def test_links_lead_to_chapters_and_what_is_no_chapter_is_plain_text(book: zipfile.ZipFile) -> None:
    page = book.read("OEBPS/book/index.xhtml").decode()
    links = re.findall(r'href="([^"]+)"[^>]*>([^<]+)<', page)
    assert links == [("part/one.xhtml#gradient", "one"), ("https://arxiv.org", "elsewhere"),
                     ("part/one.xhtml", "Gone")]  # fmt: skip
    assert "the index" in page


def test_the_contents_have_parts_and_titles(book: zipfile.ZipFile) -> None:
    contents = book.read("OEBPS/nav.xhtml").decode()
    assert '<a href="book/index.xhtml">The book</a>' in contents
    assert "<span>Part &amp; parcel</span>" in contents
    assert '<a href="book/part/one.xhtml">One &amp; all</a>' in contents


def test_the_real_book_is_whole(built: Path, tmp_path: Path) -> None:
    parts = parts_of_book(ROOT)
    write(built, parts, "Book", "Authors", tmp_path / "book.epub")
    with zipfile.ZipFile(tmp_path / "book.epub") as book:
        assert_whole(book)
        pages = [book.read(name).decode() for name in book.namelist() if name.endswith(".xhtml")]
    assert len(pages) == 1 + sum(map(len, parts.values()))
    assert not [page for page in pages if WRONG in page or "merror" in page]
