"""Live cells: the part of them that is made when the book is built, without a network.

1. Every code cell becomes a *live* cell: it gets a bar with Run, Edit and Reset in the page
   itself, and an output container even if the built cell printed nothing.
2. The web parts (thebe, MathJax, Vega, Pyodide) are copied from `book/web/node_modules` into the
   book's own `_static`.
3. References of other extensions to files on other hosts are removed, so that a page of this book
   loads files only from the host that served it.

`book/_static/live.js` handles a press of Run.
"""

from __future__ import annotations

import ast
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from myst_nb.sphinx_ import HideCodeCellNode
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import ExtensionError

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # Sphinx finds the extension by its path, but not its parts
from downloads import offer_downloads  # noqa: E402
from icons import leave_out_fonts, look_at_few_siblings, write_icons  # noqa: E402

STATIC = HERE.parent / "_static"

# package in node_modules -> (folder in it, patterns to copy, folder in the book's _static)
WEB_PARTS = {
    # without its 110 other scripts, which show JSON and code of other languages: live-thebe.js
    "thebe": ("lib", ["index.js", "index.js.LICENSE.txt"], "thebe"),
    "mathjax": (
        "es5",
        ["tex-chtml.js", "input/tex/extensions/*.js", "output/chtml/fonts/woff-v2/*.woff"],
        "mathjax",
    ),
    "vega": ("build", ["vega.min.js"], "vega"),
    "@fontsource/source-serif-4": (
        "files",
        [f"*-{face}.woff2" for face in ("latin-400-*", "latin-600-normal", "greek-400-normal")],
        "fonts",
    ),
    "@fontsource-variable/source-code-pro": ("files", ["*-latin-wght-normal.woff2"], "fonts"),
    "pyodide": (
        ".",
        [
            "pyodide.mjs",
            "pyodide.asm.mjs",
            "pyodide.asm.wasm",
            "pyodide-lock.json",
            "python_stdlib.zip",
        ],
        "pyodide",
    ),
    "vega-interpreter": ("build", ["vega-interpreter.js"], "vega"),
}

# Files of the themes in _static that no page loads: maps, icons and fonts, translations (7 MB).
DEAD_WEIGHT = ["**/*.map", "scripts/fontawesome.js*", "vendor/**/webfonts/*", "locales/**/*.[pm]o"]

# Screen readers read "cell 3", because ten buttons that all say "Run" can't be told apart.
BAR = """\
<div class="live-bar">
  <button type="button" class="live-run" title="Run this cell. Cells above that have not run yet, \
were edited or come after an edit, run first.">
    <svg viewBox="0 0 16 16" aria-hidden="true"><path class="live-icon-run" d="M4 2.5v11l9-5.5z"/>\
<path class="live-icon-stop" d="M3.5 3.5h9v9h-9z"/></svg>
    <span class="live-run-label">{verb}</span><span class="live-unseen"> cell {number}</span>
  </button>
  <button type="button" class="live-edit" title="Edit the code. Shift+Enter runs it, Esc leaves \
the editor.">Edit<span class="live-unseen"> cell {number}</span></button>
  <button type="button" class="live-reset" title="Bring back the book's code and output" hidden>\
Reset<span class="live-unseen"> cell {number}</span></button>
  <button type="button" class="live-changes" aria-expanded="false" title="What differs from the \
book's code" hidden>Changes<span class="live-unseen"> in cell {number}</span></button>
  <a class="live-link" href="#cell-{number}" title="The address of this cell, to copy">Link<span \
class="live-unseen"> to cell {number}</span></a>
  <span class="live-state" title="This output came with the book">as in the book</span>
  <p class="live-message" role="alert" hidden></p>
  <pre class="live-diff" tabindex="0" role="group" aria-label="Changes in cell \
{number}" hidden></pre>
</div>
"""
# The buttons are in the page from the start, so presses are kept until the scripts have loaded.
KEEP_PRESSES = """\
var earlyPresses = [];
document.addEventListener("click", function (event) {
  var button = event.target.closest(".live-bar button, #live-status button");
  if (button && earlyPresses) earlyPresses.push(button);
});
"""
POINT, WIDE = 4 / 3, 480  # pixels; live-output.js has the same for figures that a run makes
EMPTY_OUTPUT = '<div class="cell_output docutils container live-empty"></div>\n'


class LiveCell(nodes.General, nodes.Element):
    """A code cell that can be run; it replaces the plain container of myst-nb."""


def visit_live_cell(writer, node: LiveCell) -> None:
    attributes = {"data-live": node["number"], "data-state": "built"}
    attributes["data-needs"] = node.get("needs", "")  # libraries that a tab doesn't have
    writer.body.append(writer.starttag(node, "div", CLASS="docutils container", **attributes))


def depart_live_cell(writer, node: LiveCell) -> None:
    writer.body.append("</div>\n")


def part_of(cell: nodes.Element, name: str) -> nodes.Element | None:
    """The container of a cell's source or output, even inside the wrappers of "hide" tags."""
    return next((n for n in cell.findall(nodes.container) if n.get("nb_element") == name), None)


def cells_to_make_live(doctree: nodes.document) -> Iterator[nodes.container]:
    for cell in list(doctree.findall(nodes.container)):
        is_code = cell.get("nb_element") == "cell_code" and part_of(cell, "cell_code_source")
        if is_code and "tag_no-live" not in cell["classes"]:
            yield cell


def only_imports(cell: nodes.Element) -> bool:
    """Whether a cell has no visible result; cells below run it automatically if they need it."""
    source = part_of(cell, "cell_code_source")
    try:
        body = ast.parse(source.astext()).body if source else []
    except SyntaxError:
        return False
    return bool(body) and all(isinstance(line, ast.Import | ast.ImportFrom) for line in body)


def make_cells_live(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    for number, cell in enumerate(cells_to_make_live(doctree), start=1):
        look = ["live-imports"] * only_imports(cell)
        live = LiveCell("", *cell.children, classes=[*cell["classes"], *look], number=number)
        live["ids"] = [f"cell-{number}", *cell["ids"]]
        cell.replace_self(live)

        # The bar is right below the code, and outside the fold if only the code is folded.
        above = part_of(live, "cell_code_source")
        output = part_of(live, "cell_code_output")
        assert above is not None  # otherwise it wouldn't be a live cell
        assert above.parent is not None
        if isinstance(above.parent, HideCodeCellNode) and (
            output is None or output.parent is not above.parent
        ):
            above = above.parent
        verb = "Check" if "tag_exercise" in cell["classes"] else "Run"
        bar = nodes.raw("", BAR.format(number=number, verb=verb), format="html")
        above.parent.insert(above.parent.index(above) + 1, bar)
        if output is None:
            live.append(nodes.raw("", EMPTY_OUTPUT, format="html"))


def let_wide_figures_fill_the_page(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Mark figures that are drawn wide. On a large screen they become as wide as the code."""
    for image in doctree.findall(nodes.image):
        file = Path(app.srcdir, image["uri"])
        if file.suffix == ".svg" and file.is_file():
            width = re.search(r'<svg [^>]*?width="([\d.]+)pt"', file.read_text("utf-8"))
            if width and float(width[1]) * POINT >= WIDE:
                image["classes"].append("wide")


def attach_files_where_cells_are_live(app: Sphinx, pagename, templatename, context, doctree):
    """Only pages with live cells load these files (`add_…_file` here applies to one page)."""
    if "body" in context:  # this label hid the button's own text from screen readers
        context["body"] = context["body"].replace(' aria-label="Toggle hidden content"', "")
    cells = [] if doctree is None else list(doctree.findall(LiveCell))
    context["live_cells"] = len(cells)
    context["live_in_tab"] = any(
        not cell.get("needs") and "live-imports" not in cell["classes"] for cell in cells
    )
    if context["live_cells"]:
        kernelspec = app.env.metadata[pagename].get("kernelspec")
        context["live_kernel"] = (kernelspec if isinstance(kernelspec, dict) else {}).get(
            "name", "python3"
        )
        offer_downloads(app, pagename, context)
        for part in ("live", "ranks", "steps", "exercise", "calculator"):
            app.add_css_file(f"{part}.css")
        app.add_js_file(None, body=KEEP_PRESSES)
        app.add_js_file("live.js", type="module")  # it imports the other scripts


def drop_options_of_the_theme(
    app: Sphinx, pagename: str, templatename: str, context: dict, doctree: nodes.document | None
) -> None:
    """Remove the theme's inline script of options, which needs a script that loads later."""
    if pagename != "search":
        context["script_files"] = [
            script
            for script in context["script_files"]
            if not script.attributes.get("body", "").startswith("DOCUMENTATION_OPTIONS.")
        ]


def remove_what_no_page_loads(app: Sphinx, failed: Exception | None) -> None:
    if not failed:
        for pattern in DEAD_WEIGHT:
            for file in Path(app.outdir, "_static").glob(pattern):
                file.unlink()
        leave_out_fonts(Path(app.outdir, "_static"))
        look_at_few_siblings(Path(app.outdir, "_static"))


def copy_web_parts(app: Sphinx) -> None:
    for package, (folder, patterns, target) in WEB_PARTS.items():
        source = Path(app.srcdir) / "book/web/node_modules" / package / folder
        if not source.is_dir():
            raise ExtensionError(
                f"live cells need the package '{package}', and {source} is not there: "
                f"run `npm ci` in {app.srcdir} first"
            )
        for pattern in patterns:
            for file in source.glob(pattern):
                copy_if_newer(file, Path(app.outdir, "_static", target, file.relative_to(source)))


def copy_if_newer(source: Path, target: Path) -> None:
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.name == "vega-interpreter.js":  # browsers can't import a package by its name
            import_by_name = r"import \{(.+?)\} from 'vega-util';"
            text = re.sub(import_by_name, r"const {\1} = globalThis.vega;", source.read_text())
            target.write_text(text)
        else:
            shutil.copy2(source, target)


def serve_everything_from_the_book(app: Sphinx, config: Config) -> None:
    """Set up the configuration after all extensions are loaded and before any of them uses it."""
    config.html_static_path.append(str(STATIC))
    config.templates_path.append(str(HERE / "templates"))
    config.html_extra_path.append(str(STATIC / "favicon.ico"))  # browsers request it at the root
    config.html_favicon = str(STATIC / "favicon.ico")
    config.mathjax_path = "mathjax/tex-chtml.js"
    config.html_theme_options["article_header_start"] = [
        "toggle-primary-sidebar.html",
        "live-status.html",
    ]
    remove_sphinx_thebe(app)


def remove_sphinx_thebe(app: Sphinx) -> None:
    """Disconnect sphinx-thebe, which Jupyter Book always loads: it fetches an older thebe."""
    for listeners in app.events.listeners.values():
        for listener in list(listeners):
            if listener.handler.__module__ == "sphinx_thebe":
                app.disconnect(listener.id)
    app.registry.css_files[:] = [
        (name, attributes)
        for name, attributes in app.registry.css_files
        if name != "sphinx-thebe.css"
    ]


def setup(app: Sphinx) -> dict:
    app.add_node(LiveCell, html=(visit_live_cell, depart_live_cell))
    # With an early priority, because the theme reads its options at the same event.
    app.connect("config-inited", serve_everything_from_the_book, priority=100)
    app.connect("builder-inited", copy_web_parts)
    app.connect("builder-inited", write_icons)
    app.add_css_file("icons.css")
    app.connect("doctree-resolved", make_cells_live)
    app.connect("doctree-resolved", let_wide_figures_fill_the_page)
    app.connect("html-page-context", attach_files_where_cells_are_live)
    app.connect("html-page-context", drop_options_of_the_theme, priority=999)
    app.connect("build-finished", remove_what_no_page_loads, priority=999)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
