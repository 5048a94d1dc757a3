"""Directives for exercises: folded hints and the solution, question cards, and progress.

    ```{solution} ring_all_reduce
    ```

    :::{question} Why does a ring need 2(N − 1) steps?
    :must: reduce-scatter, all-gather, the slowest link
    :proof: ../collectives/all_reduce.md
    :cell: def count(group, n, algorithm)
    The answer, in Markdown.
    :::

    ```{progress}
    ```

The proof is the one live cell of the `proof` page whose code contains the words of `cell`. Its
number may change, but a build in which no cell or several contain them fails. Hints, solutions and
answers are folded, work without scripts, and are open in print. Some browsers don't open them by
style, so exercise.js does that.
"""

from __future__ import annotations

import ast
from html import escape
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from live import cells_to_make_live, part_of
from pages import inline
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from playground.exercises import FOLDER, names


def hints(name: str) -> list[str]:
    """Hints of an exercise, parsed from its source: an import would make each build load torch."""
    for node in ast.parse((FOLDER / name / "check.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "HINTS":
            return ast.literal_eval(node.value)
    raise ValueError(f"{name}.py has no HINTS")


def folded(kind: str, summary: str, inside: list[nodes.Node]) -> list[nodes.Node]:
    """Wrap nodes in a <details> element with this summary."""
    begin = f'<details class="exercise-{kind}"><summary>{escape(summary)}</summary>\n'
    return [
        nodes.raw("", begin, format="html"),
        *inside,
        nodes.raw("", "</details>\n", format="html"),
    ]


class Solution(SphinxDirective):
    """Hints and solution of an exercise, read from its files."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        (name,) = self.arguments
        file = FOLDER / name / "solution.py"
        if not file.exists():
            raise self.error(f"no exercise {name!r}: {file} is not there")
        self.env.note_dependency(str(file))
        self.env.note_dependency(str(FOLDER / name / "check.py"))
        found = []
        for number, hint in enumerate(hints(name), start=1):
            found += folded("hint", f"Hint {number}", [nodes.paragraph("", "", *inline(hint))])
        code = file.read_text().rstrip()
        listing = nodes.literal_block(code, code, language="python")
        return [*found, *folded("solution", "Solution", [listing])]


class Proof(nodes.General, nodes.Inline, nodes.Element):
    """Placeholder for a link to the live cell of `page` that contains `code`."""


def link_proofs(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    for proof in list(doctree.findall(Proof)):
        page, code = proof["page"], proof["code"]
        cells = cells_to_make_live(app.env.get_doctree(page))
        numbers = [n for n, cell in enumerate(cells, start=1) if code in source_of(cell)]
        if len(numbers) != 1:
            raise ExtensionError(
                f"{docname}: a question has its proof in {page}, in the live cell with {code!r}: "
                f"there are {len(numbers)}"
            )
        to = app.builder.get_relative_uri(docname, page) + f"#cell-{numbers[0]}"
        proof.replace_self(nodes.reference("", "Where it is shown", refuri=to, internal=True))


def source_of(cell: nodes.Element) -> str:
    source = part_of(cell, "cell_code_source")
    return "" if source is None else source.astext()


class Question(SphinxDirective):
    """A card: a question, what a good answer must mention, an answer, follow-ups, and its proof."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec = {  # noqa: RUF012 (docutils reads it from the class)
        "must": directives.unchanged_required,
        "then": directives.unchanged,
        "proof": directives.unchanged_required,
        "cell": directives.unchanged_required,
    }

    def run(self) -> list[nodes.Node]:
        if missing := {"must", "proof", "cell"} - set(self.options):
            raise self.error(f"a question says :{sorted(missing)[0]}:, too")
        inside = self.parse_content_to_nodes()
        relative, path = self.env.relfn2path(self.options["proof"])
        page = self.env.path2doc(relative)
        if page is None or not Path(path).exists():
            raise self.error(f"proof: there is no page {self.options['proof']!r}")
        self.env.note_dependency(path)
        for words, what in (("Must mention", "must"), ("Follow-ups", "then")):
            if text := self.options.get(what):
                strong = nodes.strong("", f"{words}: ")
                inside.append(nodes.paragraph("", "", strong, nodes.Text(text)))
        inside.append(nodes.paragraph("", "", Proof("", page=page, code=self.options["cell"])))
        return folded("question", self.arguments[0], inside)


PROGRESS = """\
<div class="exercise-progress" data-exercises="{names}" hidden>
  <label>Exercises: <meter min="0" max="{count}" value="0"></meter></label>
  <span class="exercise-count" role="status"></span>
</div>
"""


class Progress(SphinxDirective):
    """Count of the exercises that have been solved in this browser; hidden without scripts."""

    def run(self) -> list[nodes.Node]:
        html = PROGRESS.format(names=" ".join(names()), count=len(names()))
        return [nodes.raw("", html, format="html")]


def setup(app: Sphinx) -> dict:
    app.add_directive("solution", Solution)
    app.add_directive("question", Question)
    app.add_directive("progress", Progress)
    app.add_node(Proof)
    app.connect("doctree-resolved", link_proofs)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
