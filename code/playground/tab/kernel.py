"""Kernel in a Web Worker: runs a page's cells and reports their output, values and errors."""

import ast
import io
import json
import linecache
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pprint import pformat
from typing import Any

import distributed
from distributed.runtime.report import WorldError, is_machinery
from playground.tab import world

LIMIT = 500_000  # characters that one run of a cell may print


class Output(io.TextIOBase):
    """Output stream of a run: passes text to the page, up to `LIMIT` characters."""

    def __init__(self, name: str, pass_on: Any):
        self.name, self.pass_on = name, pass_on
        self.size = self.hidden = 0

    def write(self, text: str) -> int:
        self.size += len(text)
        if self.size <= LIMIT:
            self.pass_on("stream", {"name": self.name, "text": text})
        else:
            self.hidden += text.count("\n")
        return len(text)

    def end(self) -> None:
        """End a run: report how many lines were dropped."""
        if self.hidden:
            text = f"… and {self.hidden:,} more lines\n"
            self.pass_on("stream", {"name": self.name, "text": text})
        self.size = self.hidden = 0


class Kernel:
    """The namespace in which cells run. `page.tell(kind, json)` receives Jupyter's messages."""

    def __init__(self, page: Any):
        self.page = page
        self.namespace = sys.modules["__main__"].__dict__
        self.namespace["display"] = self.display
        self.outputs = Output("stdout", self.tell), Output("stderr", self.tell)

    def tell(self, kind: str, content: dict[str, Any]) -> None:
        self.page.tell(kind, json.dumps(content))

    def execute(self, code: str, number: int) -> str:
        """Run a cell; returns Jupyter's reply as JSON."""
        reply: dict[str, Any] = {"status": "ok"}
        try:
            with redirect_stdout(self.outputs[0]), redirect_stderr(self.outputs[1]):
                value = self.run(code, f"cell {number}")
            if value is not None and not code.rstrip().endswith(";"):
                self.tell("execute_result", {"data": bundle_of(value), "execution_count": number})
        except BaseException as error:
            reply = {"status": "error", **told(error)}
        for output in self.outputs:
            output.end()
        if reply["status"] == "error":
            self.tell("error", reply)
        return json.dumps(reply)

    def run(self, code: str, name: str) -> Any:
        """Run code, and return the value of its last line if that is an expression."""
        linecache.cache[name] = len(code), None, code.splitlines(keepends=True), name
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), self.namespace)
        if last is None:
            return None
        return eval(compile(ast.Expression(last.value), name, "eval"), self.namespace)  # type: ignore[attr-defined]

    def display(self, *values: Any) -> None:
        """Show values below the cell."""
        for value in values:
            self.tell("display_data", {"data": bundle_of(value)})


def bundle_of(value: Any) -> dict[str, Any]:
    """A value in each of the formats in which a page can show it."""
    data = {"text/plain": pformat(value, width=79)}
    for kind, method in (("text/html", "_repr_html_"), ("image/svg+xml", "_repr_svg_")):
        made = getattr(value, method, None)
        if made is not None and not isinstance(value, type):
            data[kind] = made()
    return data


def told(error: BaseException) -> dict[str, Any]:
    """An error as a Jupyter message, with the frames in cells and in the book's modules only."""
    name = type(error).__name__
    if isinstance(error, WorldError):  # its message contains everything
        return {"ename": name, "evalue": str(error), "traceback": [f"{name}: {error}"]}
    report = traceback.TracebackException.from_exception(error)
    frames = [frame for frame in report.stack if not is_machinery(frame.filename)]
    report.stack = traceback.StackSummary.from_list(frames)
    return {"ename": name, "evalue": str(error), "traceback": ["".join(report.format()).rstrip()]}


def stand_in() -> None:
    """From now on, make `from distributed import launch, Group` import the tab's versions."""
    sys.modules["distributed.launching"] = world
    distributed.HOMES.update(
        launch=world.__name__, world=world.__name__, Group="playground.tab.group"
    )


def start(page: Any, mail: Any) -> Kernel:
    """Create the kernel of this tab, and the ranks that its `launch` uses."""
    if mail.kind.startswith("workers"):
        world.here = world.Ranks(mail)
    else:
        from playground.tab.turns import Turns

        world.here = Turns(mail)
    stand_in()
    return Kernel(page)
