"""What stands below an exercise's cell: hints, one after the other, and the solution; and cards.

    ```{solution} ring_all_reduce
    ```

    :::{question} Why does a ring need 2(N − 1) steps?
    :must: reduce-scatter, all-gather, the slowest link
    :proof: ../collectives/all_reduce
    The answer, in Markdown.
    :::

    ```{progress}
    ```

All of it is folded, works without scripts, and is open in print.
"""

from __future__ import annotations

import ast
from html import escape
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import playground

CHECKS = Path(playground.__file__).parent / "exercises"
FOLDER = CHECKS.parents[2] / "exercises"


def hints(name: str) -> list[str]:
    """The hints of an exercise, read and not imported: each build would wait for torch."""
    for node in ast.parse((CHECKS / f"{name}.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "HINTS":
            return ast.literal_eval(node.value)
    raise ValueError(f"{name}.py has no HINTS")


def folded(kind: str, summary: str, inside: list[nodes.Node]) -> list[nodes.Node]:
    """A <details> around what is inside."""
    begin = f'<details class="exercise-{kind}"><summary>{escape(summary)}</summary>\n'
    return [
        nodes.raw("", begin, format="html"),
        *inside,
        nodes.raw("", "</details>\n", format="html"),
    ]


class Solution(SphinxDirective):
    """The hints and the solution of an exercise, from its own files."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        (name,) = self.arguments
        file = FOLDER / name / "solution.py"
        if not file.exists():
            raise self.error(f"no exercise {name!r}: {file} is not there")
        self.env.note_dependency(str(file))
        self.env.note_dependency(str(CHECKS / f"{name}.py"))
        found = []
        for number, hint in enumerate(hints(name), start=1):
            found += folded("hint", f"Hint {number}", [nodes.paragraph("", hint)])
        code = file.read_text().rstrip()
        listing = nodes.literal_block(code, code, language="python")
        return [*found, *folded("solution", "Solution", [listing])]


class Question(SphinxDirective):
    """A card: a question, what a good answer must mention, an answer, follow-ups, the proof."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec = {  # noqa: RUF012 (docutils reads it from the class)
        "must": directives.unchanged_required,
        "then": directives.unchanged,
        "proof": directives.unchanged_required,
    }

    def run(self) -> list[nodes.Node]:
        if missing := {"must", "proof"} - set(self.options):
            raise self.error(f"a question says :{sorted(missing)[0]}:, too")
        inside = self.parse_content_to_nodes()
        link, _ = self.state.inline_text(
            f"[Where it is shown]({self.options['proof']})", self.lineno
        )
        for words, what in (("Must mention", "must"), ("Follow-ups", "then")):
            if text := self.options.get(what):
                strong = nodes.strong("", f"{words}: ")
                inside.append(nodes.paragraph("", "", strong, nodes.Text(text)))
        inside.append(nodes.paragraph("", "", *link))
        return folded("question", self.arguments[0], inside)


PROGRESS = """\
<div class="exercise-progress" data-exercises="{names}" hidden>
  <label>Exercises: <meter min="0" max="{count}" value="0"></meter></label>
  <span class="exercise-count" role="status"></span>
  <button type="button" class="exercise-export">Save as a file</button>
  <button type="button" class="exercise-erase">Erase</button>
</div>
"""


class Progress(SphinxDirective):
    """How many exercises this browser has seen solved; nothing without scripts."""

    def run(self) -> list[nodes.Node]:
        names = sorted(path.stem for path in CHECKS.glob("*.py") if path.stem != "__init__")
        html = PROGRESS.format(names=" ".join(names), count=len(names))
        return [nodes.raw("", html, format="html")]


def setup(app: Sphinx) -> dict:
    app.add_directive("solution", Solution)
    app.add_directive("question", Question)
    app.add_directive("progress", Progress)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
