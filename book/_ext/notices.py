"""Licenses of the book and of the third-party software in it: one text file next to the pages.

The build writes `licenses.txt`, to which the footer of every page links, from the packages that the
files come from. The build fails if a package contains no license.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, NamedTuple

from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import ExtensionError

import playground

ROOT = Path(playground.__file__).parents[2]

# Two projects name this license but contain no text of it. The text is the same everywhere.
MIT = """\
Permission is hereby granted, free of charge, to any person obtaining a copy of this software
and associated documentation files (the "Software"), to deal in the Software without
restriction, including without limitation the rights to use, copy, modify, merge, publish,
distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the
Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or
substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING
BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM,
DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""


class Part(NamedTuple):
    """Files of one origin. A text is `npm:PACKAGE/FILE`, `pip:PACKAGE/FILE` or `mit:COPYRIGHT`;
    `#WORDS` is where it begins, and `npm:PACKAGE/*` adds the licenses of all dependencies."""

    name: str
    files: tuple[str, ...]  # below _static
    licence: str  # SPDX identifier
    texts: tuple[str, ...]
    source: str  # URL


OFL = "npm:@fontsource/source-serif-4/LICENSE#SIL OPEN FONT LICENSE"
THEME = "pip:pydata-sphinx-theme/"
RULE = "=" * 80 + "\n\n"
PARTS = (
    Part(
        "Pyodide",
        ("pyodide/*", "python-memory.bin"),
        "MPL-2.0",
        ("pip:fqdn/LICENSE",),  # the same license text
        "https://github.com/pyodide/pyodide",
    ),
    Part(
        "Python, in Pyodide",
        ("pyodide/*", "python-memory.bin"),
        "PSF-2.0",
        ("pip:typing-extensions/LICENSE",),  # the same license text
        "https://github.com/python/cpython",
    ),
    Part(
        "Emscripten and musl, in Pyodide",
        ("pyodide/*",),
        "MIT",
        ("mit:Copyright (c) Emscripten authors\nCopyright © 2005-2020 Rich Felker, et al. (musl)",),
        "https://github.com/emscripten-core/emscripten",
    ),
    Part(
        "cloudpickle",
        ("python.zip", "python-memory.bin"),
        "BSD-3-Clause",
        ("pip:cloudpickle/LICENSE",),
        "https://github.com/cloudpipe/cloudpickle",
    ),
    Part(
        "Traces of GPUs, reduced in size (each file names its source and commit)",
        ("traces/re*", "traces/small-*"),
        "MIT",
        ("mit:Copyright (c) Meta Platforms, Inc. and affiliates.",),
        "https://github.com/facebookresearch/HolisticTraceAnalysis",
    ),
    Part(
        "Thebe",
        ("thebe/*",),
        "BSD-3-Clause",
        # license of the same project, then licenses of the software that is bundled in it
        ("pip:jupyter-book/LICENSE", "npm:thebe/lib/index.js.LICENSE.txt"),
        "https://github.com/executablebooks/thebe",
    ),
    Part(
        "MathJax",
        ("mathjax/**/*",),
        "Apache-2.0",
        ("npm:mathjax/LICENSE",),
        "https://github.com/mathjax/MathJax",
    ),
    Part(
        "Vega, with what is bundled in it",
        ("vega/vega.min.js",),
        "BSD-3-Clause AND ISC",
        ("npm:vega/*",),
        "https://github.com/vega/vega",
    ),
    Part(
        "Vega's interpreter",
        ("vega/vega-interpreter.js",),
        "BSD-3-Clause",
        ("npm:vega-interpreter/LICENSE",),
        "https://github.com/vega/vega",
    ),
    Part(
        "Source Serif 4",
        ("fonts/source-serif-4-*",),
        "OFL-1.1",
        ("npm:@fontsource/source-serif-4/LICENSE",),
        "https://github.com/adobe-fonts/source-serif",
    ),
    Part(
        "Source Code Pro",
        ("fonts/source-code-pro-*",),
        "OFL-1.1",
        ("npm:@fontsource-variable/source-code-pro/LICENSE",),
        "https://github.com/adobe-fonts/source-code-pro",
    ),
    Part(
        "Font Awesome Free",
        ("icons.css", "vendor/fontawesome/**/*", "styles/*.css", "scripts/fontawesome.js*"),
        "OFL-1.1 AND MIT AND CC-BY-4.0",
        (f"{THEME}fontawesome.js.LICENSE.txt", OFL, "mit:Copyright 2024 Fonticons, Inc."),
        "https://github.com/FortAwesome/Font-Awesome",
    ),
    Part(
        "Bootstrap",
        ("scripts/bootstrap.js*", "styles/*.css"),
        "MIT",
        (f"{THEME}bootstrap.js.LICENSE.txt", "mit:Copyright 2011-2024 The Bootstrap Authors"),
        "https://github.com/twbs/bootstrap",
    ),
    Part(
        "PyData Sphinx Theme",
        ("scripts/pydata-sphinx-theme.js*", "styles/*.css", "locales/**/*", "*webpack-macros.html"),
        "BSD-3-Clause",
        (f"{THEME}licenses/LICENSE",),
        "https://github.com/pydata/pydata-sphinx-theme",
    ),
    Part(
        "Sphinx Book Theme",
        ("scripts/sphinx-book-theme.js*", "styles/*.css", "locales/**/*", "images/logo_*", "sbt-*"),
        "BSD-3-Clause",
        ("pip:sphinx-book-theme/LICENSE",),
        "https://github.com/executablebooks/sphinx-book-theme",
    ),
    Part(
        "Sphinx",
        (
            *("basic.css", "doctools.js", "documentation_options.js", "language_data.js"),
            *("searchtools.js", "sphinx_highlight.js", "file.png", "plus.png", "minus.png"),
        ),
        "BSD-2-Clause",
        ("pip:Sphinx/LICENSE.rst",),
        "https://github.com/sphinx-doc/sphinx",
    ),
    Part(
        "Pygments",
        ("pygments.css",),
        "BSD-2-Clause",
        ("pip:Pygments/LICENSE",),
        "https://github.com/pygments/pygments",
    ),
    Part(
        "MyST-NB",
        ("mystnb*.css",),
        "BSD-3-Clause",
        ("pip:myst-nb/LICENSE",),
        "https://github.com/executablebooks/MyST-NB",
    ),
    Part(
        "sphinx-copybutton",
        ("copybutton*", "copy-button.svg", "check-solid.svg"),
        "MIT",
        ("pip:sphinx-copybutton/LICENSE",),
        "https://github.com/executablebooks/sphinx-copybutton",
    ),
    Part(
        "clipboard.js, in sphinx-copybutton",
        ("clipboard.min.js",),
        "MIT",
        ("mit:Copyright (c) Zeno Rocha",),
        "https://github.com/zenorocha/clipboard.js",
    ),
    Part(
        "sphinx-togglebutton",
        ("togglebutton*",),
        "MIT",
        ("pip:sphinx-togglebutton/LICENSE",),
        "https://github.com/executablebooks/sphinx-togglebutton",
    ),
    Part(
        "sphinx-design",
        ("design-tabs.js", "sphinx-design*.css"),
        "MIT",
        ("pip:sphinx-design/licenses/LICENSE",),
        "https://github.com/executablebooks/sphinx-design",
    ),
)


def words(text: str, packages: Path) -> str:
    """Content of one text of a `Part`; `packages` is node_modules."""
    kind, _, rest = text.partition(":")
    if kind == "mit":
        return f"The MIT License\n\n{rest}\n\n{MIT}"
    where, _, begin = rest.partition("#")
    if kind == "pip":
        said = of_distribution(*where.split("/", 1))
    elif where.endswith("/*"):
        return "\n\n".join(with_dependencies(where.removesuffix("/*"), packages))
    else:
        said = read(packages / where)
    at = said.find(begin)
    if at < 0:
        raise ExtensionError(f"{where} does not say {begin!r}: look for the words of that license")
    return said[at:]


def read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        raise ExtensionError(
            f"{file} is not there: the book needs it, to hand on what it is of"
        ) from None


def of_distribution(name: str, file: str) -> str:
    """Read a file of an installed Python package, given by the end of its path."""
    try:
        found = [path for path in distribution(name).files or () if str(path).endswith(f"/{file}")]
    except PackageNotFoundError:
        found = []
    if not found:
        raise ExtensionError(
            f"{name} brings no {file}: the book needs it, to hand on what it is of"
        )
    return read(Path(str(found[0].locate())))


def with_dependencies(package: str, packages: Path) -> Iterator[str]:
    """Licenses of a package and of all its dependencies, which may be bundled in it."""
    found, left = set(), [package]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += json.loads(read(packages / name / "package.json")).get("dependencies", {})
    for name in sorted(found):
        files = [f for f in (packages / name).iterdir() if re.match(r"(?i)licen[cs]e", f.name)]
        said = json.loads(read(packages / name / "package.json")).get("license", "")
        yield f"{name}\n{'=' * len(name)}\n\n" + (read(files[0]) if files else str(said))


def text_of_all(packages: Path) -> str:
    """The licenses of the book, and a section for each part; `packages` is node_modules."""
    own = f"{read(ROOT / 'LICENSE')}\n{RULE}{read(ROOT / 'book/LICENSE.md')}"
    sections = [f"This book: programs (MIT), and text, tables and figures (CC BY 4.0)\n\n{own}"]
    for part in PARTS:
        head = f"{part.name}\n{part.licence}\n{part.source}"
        sections.append("\n\n".join([head, *(words(text, packages) for text in part.texts)]))
    return f"\n\n{RULE}".join(sections)


def write_notices(app: Sphinx, failed: Exception | None) -> None:
    if not failed:
        text = text_of_all(Path(app.srcdir, "book/web/node_modules"))
        Path(app.outdir, "licenses.txt").write_text(text, encoding="utf-8")


def link_from_every_page(app: Sphinx, config: Config) -> None:
    """Drop the theme's line with the authors, because the copyright names them."""
    config.html_theme_options["footer_content_items"] = [
        "copyright.html",
        "licenses-link.html",
        "maintainers-link.html",
    ]


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("config-inited", link_from_every_page, priority=100)  # before the theme reads it
    app.connect("build-finished", write_notices)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
