"""PDF of the whole book: `python -m playground.build.pdf --html … --to …`.

The system's Chromium prints each built page, in the order of the book. The printed pages are then
joined after a table of contents, with a bookmark for each page, and numbered. Links between pages
lead to sheets. Most folded material is replaced by its title, and answers move to the end of
their page (`on_paper.js`). Pages that are only looked up on screen aren't printed. It needs what
the tests need: playwright and pypdf.
"""

import argparse
import io
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from html import escape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

from playground.build.toc import chapters, first_page

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PAPERS = {"A4": ("210mm", "297mm", 842.0), "Letter": ("8.5in", "11in", 792.0)}  # height in points
LEFT_OUT = ("For maintainers",)  # only looked up on screen
ON_PAPER = (Path(__file__).parent / "on_paper.js").read_text("utf-8")
# Resolves when the page's own scripts have drawn everything.
IS_DRAWN = """
async () => {
  await window.MathJax?.startup?.promise;
  const late = ".steps:not(.steps-ready), .frames:not(.frames-ready)";
  for (let tenths = 0; document.querySelector(late) && tenths < 50; tenths++)
    await new Promise((go) => setTimeout(go, 100));
  await document.fonts.ready;
}
"""
FACE = """<style>
@font-face {{
  font-family: "Source Serif 4";
  src: url({base}_static/fonts/source-serif-4-latin-400-normal.woff2);
}}
"""
# The foot of each sheet has the title of its page, and its number.
FEET = """@page {{ size: {width} {height}; margin: 0; }}
body {{ margin: 0; font: 9pt "Source Serif 4", Georgia, serif; color: #444; }}
div {{ height: {height}; break-after: page; position: relative; overflow: hidden; }}
p {{ position: absolute; bottom: 7mm; left: 17mm; right: 17mm; margin: 0;
     display: flex; justify-content: space-between; }}
</style>"""
CONTENTS = """@page {{ size: {width} {height}; margin: 14mm 32mm; }}
body {{ margin: 0; font: 9pt/1.18 "Source Serif 4", Georgia, serif; }}
h1 {{ font-size: 20pt; line-height: 1; margin: 0 0 3mm; }}
h2 {{ font-size: inherit; margin: 1.3mm 0 0; }}
p {{ margin: 0; display: flex; justify-content: space-between; }}
a {{ color: inherit; text-decoration: none; }}
</style><h1>Contents</h1>"""
Places = dict[tuple[str, str], tuple[int, float]]  # address, fragment -> sheet, height in points


class Printed(NamedTuple):
    """One page of the book on paper: title, number of its first sheet (from 0), count of sheets."""

    title: str
    first: int
    sheets: int


def find_browser() -> str | None:
    """The path of a browser of this machine, if it has one."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def missing(node: Path | None = None) -> str | None:
    """What this machine lacks to drive a browser, in one line; `node` is Playwright's own Node."""
    import playwright

    if find_browser() is None:
        return f"no browser found: install one of {', '.join(BROWSERS)}"
    node = node or Path(playwright.__file__).parent / "driver/node"
    started = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)
    if started.returncode == 0:
        return None
    why = (started.stderr.strip().splitlines() or [f"status {started.returncode}"])[-1]
    return f"Playwright doesn't start (on Debian and Ubuntu, install libatomic1): {why}"


def parts_on_paper(root: Path) -> dict[str, list[str]]:
    """The pages of each part that are printed; the first page is in a part without a name."""
    kept = {
        caption: [page for page in pages if page not in LEFT_OUT]
        for caption, pages in chapters(root).items()
        if caption not in LEFT_OUT
    }
    return {"": [first_page(root)], **kept}


@contextmanager
def served(html: Path) -> Iterator[str]:
    """Serve the built pages and yield their address: pages from files can't load the scripts."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def end_headers(self) -> None:
            self.send_header("Cache-Control", "no-store")  # no tab waits while another stores it
            super().end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(html))) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def print_pages(
    html: Path, parts: dict[str, list[str]], to: Path, paper: str = "A4"
) -> dict[str, Printed]:
    """Print the pages of each part into one file; returns the sheets that each page takes."""
    from playwright.sync_api import sync_playwright
    from pypdf import PdfReader, PdfWriter

    if why := missing():
        raise FileNotFoundError(why)
    with sync_playwright() as playwright, served(html) as base:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        window = browser.new_context(color_scheme="light", service_workers="block")

        def print_made(style: str, body: str) -> PdfReader:
            width, height, _ = PAPERS[paper]
            page = window.new_page()
            page.goto(f"{base}{next(iter(printed))}.html")  # fonts load from the book's own address
            page.set_content((FACE + style).format(base=base, width=width, height=height) + body)
            page.evaluate("document.fonts.ready")
            return PdfReader(io.BytesIO(page.pdf(prefer_css_page_size=True)))

        printed, titles = dict[str, PdfReader](), dict[str, str]()
        for name in (name for names in parts.values() for name in names):
            page = window.new_page()  # a new tab, because closing one ends the workers of its page
            page.goto(f"{base}{name}.html", wait_until="load")
            page.evaluate(IS_DRAWN)
            page.emulate_media(media="print")  # material that only paper shows needs a size, too
            page.evaluate(ON_PAPER)
            titles[name] = page.title().split(" — ")[0]
            printed[name] = PdfReader(io.BytesIO(page.pdf(format=paper)))
            page.close()
        sizes = {name: len(sheets.pages) for name, sheets in printed.items()}
        unnumbered = print_made(CONTENTS, list_of(parts, lay_out(titles, sizes, behind=0), base))
        pages = lay_out(titles, sizes, behind=len(unnumbered.pages))
        contents = print_made(CONTENTS, list_of(parts, pages, base))
        feet = print_made(FEET, "".join(feet_of(pages)))
        browser.close()

    book = PdfWriter()
    places: Places = {}
    for name, sheets in printed.items():
        address = f"{base}{name}.html"
        places[address, ""] = (pages[name].first, PAPERS[paper][2])
        for fragment, place in sheets.named_destinations.items():
            on = pages[name].first + (sheets.get_destination_page_number(place) or 0)
            places[address, fragment.removeprefix("/")] = (on, float(place.top or 0))
        book.append(sheets, import_outline=False)
        if len(book.pages) == sizes[name]:
            book.append(contents, import_outline=False)
    lead_within(book, places, base)
    add_bookmarks(book, parts, pages)
    for sheet, its_foot in zip(book.pages, feet.pages, strict=True):
        sheet.merge_page(its_foot)
        sheet.compress_content_streams()  # reduces the file to a fifth
    book.compress_identical_objects()
    with to.open("wb") as written:
        book.write(written)
    return pages


def lay_out(titles: dict[str, str], sizes: dict[str, int], behind: int) -> dict[str, Printed]:
    """The sheets of each page, if the contents take `behind` sheets after the first page."""
    pages: dict[str, Printed] = {}
    sheet = 0
    for name, size in sizes.items():
        pages[name] = Printed(titles[name], sheet, size)
        sheet += size + (0 if len(pages) > 1 else behind)
    return pages


def list_of(parts: dict[str, list[str]], pages: dict[str, Printed], base: str) -> str:
    """Table of contents as HTML: each page of the book with the number of its first sheet."""
    lines = []
    for caption, names in parts.items():
        lines.append(f"<h2>{escape(caption)}</h2>")
        for name in names:
            link = f"<a href='{base}{name}.html'>{escape(pages[name].title)}</a>"
            lines.append(f"<p>{link}<span>{pages[name].first + 1}</span></p>")
    return "".join(lines)


def feet_of(pages: dict[str, Printed]) -> list[str]:
    """The foot of each sheet as HTML: the title of its page, and the sheet's number."""
    last = max(page.first + page.sheets for page in pages.values())
    titles = ["Contents"] * last
    for page in pages.values():
        titles[page.first : page.first + page.sheets] = [page.title] * page.sheets
    return [
        f"<div><p><span>{escape(title)}</span><span>{number}</span></p></div>"
        for number, title in enumerate(titles, start=1)
    ]


def add_bookmarks(book: Any, parts: dict[str, list[str]], pages: dict[str, Printed]) -> None:
    """Add a bookmark for each part, and below it one for each of its pages."""
    for caption, names in parts.items():
        part = None
        if caption and names:
            part = book.add_outline_item(title=caption, page_number=pages[names[0]].first)
        for name in names:
            book.add_outline_item(
                title=pages[name].title, page_number=pages[name].first, parent=part
            )


def lead_within(book: Any, places: Places, base: str) -> None:
    """Point links between pages at sheets, and remove links to other files of the book.

    A browser names the target of a link by its fragment alone, and every chapter has a section
    *The idea*, so the file comes from the sheet that the link is on.
    """
    from pypdf.generic import ArrayObject, FloatObject, NameObject, NullObject

    starts = sorted(
        (sheet, file) for (file, fragment), (sheet, _) in places.items() if not fragment
    )
    for number, sheet in enumerate(book.pages):
        own = [file for start, file in starts if start <= number][-1]
        kept = ArrayObject()
        for annotation in sheet.get("/Annots", []):
            link = annotation.get_object()
            target = str(link.get("/A", {}).get("/URI", ""))
            file, _, fragment = target.partition("#")
            if "/Dest" in link:
                file, fragment = own, str(link["/Dest"]).removeprefix("/")
            elif not target.startswith(base):
                kept.append(annotation)
                continue
            place = places.get((file, fragment)) or places.get((file, ""))
            if place is None:
                continue
            link.pop("/A", None)
            there = book.pages[place[0]].indirect_reference
            how = [NameObject("/XYZ"), FloatObject(0), FloatObject(place[1]), NullObject()]
            link[NameObject("/Dest")] = ArrayObject([there, *how])
            kept.append(annotation)
        if "/Annots" in sheet:
            sheet[NameObject("/Annots")] = kept
    book.root_object.pop("/Names", None)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m playground.build.pdf", description=__doc__)
    html = "folder of the built book (default: _build/html)"
    parser.add_argument("--html", type=Path, default=Path("_build/html"), help=html)
    to = "file to write (default: _build/book.pdf)"
    parser.add_argument("--to", type=Path, default=Path("_build/book.pdf"), help=to)
    paper = "size of the paper (default: A4)"
    parser.add_argument("--paper", choices=PAPERS, default="A4", help=paper)
    options = parser.parse_args()
    parts = parts_on_paper(Path(__file__).parents[3])
    for name in (name for names in parts.values() for name in names):
        if not (options.html / f"{name}.html").exists():
            sys.exit(f"--html {options.html}: {name}.html isn't there; run `make book` first")
    pages = print_pages(options.html, parts, options.to, options.paper).values()
    sheets = max(page.first + page.sheets for page in pages)
    print(f"{options.to}: {len(pages)} pages of the book on {sheets} sheets")
    longest = sorted(pages, key=lambda page: -page.sheets)[:5]
    print("longest pages, in sheets:", ", ".join(f"{page.title} {page.sheets}" for page in longest))


if __name__ == "__main__":
    main()
