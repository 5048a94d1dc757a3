"""`python -m playground.build.pdf --html … --to …`: the whole book on paper.

Each built page is printed by the system's Chromium in the order of the book, and the parts are
joined, with a bookmark for each page, and numbered; links between pages lead to sheets. It needs
what the tests need: playwright and pypdf.
"""

import argparse
import io
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from playground.build.toc import pages_in_order

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PAPER: dict[str, Any] = {
    "format": "A4",
    "scale": 0.8,
    "margin": {"top": "18mm", "bottom": "18mm", "left": "16mm", "right": "16mm"},
}
PAPER_TOP = 842.0  # of A4, in points
NUMBERS: dict[str, Any] = {
    "display_header_footer": True,
    "header_template": "<p></p>",
    "footer_template": "<div style='width: 100%; text-align: center; font-size: 9px; color: #555'>"
    "<span class='pageNumber'></span></div>",
}
EMPTY = "<p style='break-after: page'>&nbsp;</p>"
# Folds open, and listings of a few lines stay on one sheet.
UNFOLD = """
document.querySelectorAll("details").forEach((details) => (details.open = true));
for (const pre of document.querySelectorAll("pre")) {
  const isShort = pre.textContent.trim().split("\\n").length < 16;
  const box = pre.closest(".cell_input, .output, div[class*='highlight-']") ?? pre;
  for (let part = pre; isShort && part !== box.parentElement; part = part.parentElement) {
    part.classList.add("short");
  }
}
"""
Places = dict[tuple[str, str], tuple[int, float]]  # file, fragment -> sheet, height in points


def find_browser() -> str | None:
    """The path of a browser of this machine, if it has one."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def missing(node: Path | None = None) -> str | None:
    """What this machine lacks to drive a browser, in a line; `node` is Playwright's own Node."""
    import playwright

    if find_browser() is None:
        return f"no browser on this machine: none of {', '.join(BROWSERS)} is on the path"
    node = node or Path(playwright.__file__).parent / "driver/node"
    started = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)
    if started.returncode == 0:
        return None
    why = (started.stderr.strip().splitlines() or [f"status {started.returncode}"])[-1]
    return f"Playwright does not start (on Debian and Ubuntu install libatomic1): {why}"


def print_pages(html: Path, names: list[str], to: Path) -> int:
    """Print pages into one file; how many sheets it has."""
    from playwright.sync_api import sync_playwright
    from pypdf import PdfReader, PdfWriter

    if why := missing():
        raise FileNotFoundError(why)
    path = find_browser()
    book = PdfWriter()
    places: Places = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(color_scheme="light")
        for name in names:
            file = (html / f"{name}.html").absolute().as_uri()
            page.goto(file, wait_until="load")
            page.evaluate("window.MathJax?.startup?.promise")
            page.evaluate(UNFOLD)
            printed = PdfReader(io.BytesIO(page.pdf(**PAPER)))
            first = len(book.pages)
            book.append(printed, import_outline=False)
            book.add_outline_item(title=page.title().split(" — ")[0], page_number=first)
            places[file, ""] = (first, PAPER_TOP)
            for fragment, place in printed.named_destinations.items():
                on = printed.get_destination_page_number(place) or 0
                places[file, fragment.removeprefix("/")] = (first + on, float(place.top or 0))
        page.set_content(EMPTY * (len(book.pages) - 1) + "<p>&nbsp;</p>")
        numbers = PdfReader(io.BytesIO(page.pdf(**PAPER, **NUMBERS)))
        browser.close()
    lead_within(book, places)
    for sheet, number in zip(book.pages, numbers.pages, strict=True):
        sheet.merge_page(number)
        sheet.compress_content_streams()  # a fifth of the size
    book.compress_identical_objects()
    with to.open("wb") as written:
        book.write(written)
    return len(book.pages)


def lead_within(book: Any, places: Places) -> None:
    """Links between pages of the book lead to sheets; those to other files of it go.

    A browser names the target of a link by its fragment alone, and each chapter has *The idea*.
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
            elif not target.startswith("file:"):
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
    parser.add_argument("--html", type=Path, default=Path("_build/html"))
    parser.add_argument("--to", type=Path, default=Path("_build/book.pdf"))
    options = parser.parse_args()
    names = pages_in_order(Path(__file__).parents[3])
    missing = [name for name in names if not (options.html / f"{name}.html").exists()]
    if missing:
        sys.exit(f"{options.html} lacks {missing[0]}.html: say `make book` first")
    sheets = print_pages(options.html, names, options.to)
    print(f"{options.to}: {len(names)} pages of the book on {sheets} sheets")


if __name__ == "__main__":
    main()
