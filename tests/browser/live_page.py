"""A page of the book as a test sees it: press, edit, wait, read. Cells are counted from 0."""

import re
from urllib.parse import urlsplit

from playwright.sync_api import ConsoleMessage, Locator, Page, Request

# A browser in a container, which is to ask nothing of the network by itself.
OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 180_000  # ms; long, because a slow machine is not a failure


class LivePage:
    def __init__(self, page: Page, url: str):
        self.page = page
        self.url = url
        self.requests: list[str] = []
        self.problems: list[str] = []  # console errors, script errors, requests to other hosts
        page.set_default_timeout(PATIENCE)
        page.on("console", self._note_message)
        page.on("pageerror", lambda error: self.problems.append(f"script error: {error}"))
        page.on("request", self._note_request)

    def _note_message(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.problems.append(f"console: {message.text} ({message.location.get('url')})")

    def _note_request(self, request: Request) -> None:
        self.requests.append(request.url)
        target = urlsplit(request.url)
        if target.scheme not in ("data", "blob") and target.netloc != urlsplit(self.url).netloc:
            self.problems.append(f"request to another host: {request.url}")

    def expect_problems(self, pattern: str) -> None:
        """Forget the problems that a test has caused on purpose; fail if there are none such."""
        found = [problem for problem in self.problems if re.search(pattern, problem)]
        assert found, f"no problem like {pattern!r} in {self.problems}"
        self.problems = [problem for problem in self.problems if problem not in found]

    def open(self, path: str) -> "LivePage":
        """Open a page by its path in the built book, such as `book/index.html`."""
        self.page.goto(f"{self.url.rstrip('/')}/{path}", wait_until="domcontentloaded")
        return self

    # ------------------------------------------------------------------ cells

    def cell(self, index: int) -> Locator:
        return self.page.locator("div.cell[data-live]").nth(index)

    def find_cell(self, code: str) -> int:
        """The index of the first cell whose code contains `code`."""
        listings = self.page.locator("div.cell[data-live]").all()
        inputs = [cell.locator(".cell_input").inner_text() for cell in listings]
        return next(index for index, text in enumerate(inputs) if code in text)

    def run(self, index: int) -> None:
        button = self.cell(index).locator(".live-run")
        button.wait_for(state="attached")  # the page may be on its way
        if not button.is_visible():  # its code is folded away
            self.cell(index).locator("summary").first.click()
        button.click()

    stop = run  # the same button: it says Stop while the cell waits or runs

    def run_and_wait(self, index: int, state: str = "ran") -> str:
        """Run a cell to its end; returns its output."""
        self.run(index)
        self.wait_state(index, state)
        return self.output(index)

    def state(self, index: int) -> str:
        return self.cell(index).get_attribute("data-state") or ""

    def states(self) -> list[str]:
        cells = self.page.locator("div.cell[data-live]")
        return cells.evaluate_all("cells => cells.map((cell) => cell.dataset.state)")

    def words(self, index: int) -> str:
        """What the cell says about itself, such as `ran here, 0.4 s`."""
        return self.cell(index).locator(".live-state").inner_text()

    def message(self, index: int) -> str:
        return self.cell(index).locator(".live-message").inner_text()

    def wait_state(self, index: int, state: str) -> None:
        """Wait for a state; a cell that ends in another one fails at once, with its output."""
        ends = ["ran", "failed", "stopped", "lost", state]
        self.page.wait_for_function(
            """([index, ends]) => ends.includes(
                 document.querySelectorAll("div.cell[data-live]")[index]?.dataset.state)""",
            arg=[index, ends if state not in ("queued", "running", "edited", "built") else [state]],
        )
        found = self.state(index)
        assert found == state, f"cell {index}: {found}, {self.words(index)}\n{self.output(index)}"

    def output(self, index: int) -> str:
        """The text of the output that is to be seen."""
        return self.cell(index).locator(".cell_output").inner_text().strip()

    def wait_output(self, index: int, text: str) -> None:
        """Wait until a run (not the build) has put `text` out."""
        live = self.cell(index).locator(".cell_output[data-showing=live] .live-output")
        live.get_by_text(text).first.wait_for()

    # ------------------------------------------------------------------ editing

    def open_editor(self, index: int) -> None:
        self.cell(index).locator(".live-edit").click()
        self.cell(index).locator(".CodeMirror-focused").wait_for()

    def code(self, index: int) -> str:
        editor = self.cell(index).locator(".CodeMirror")
        if editor.count():
            return editor.evaluate("editor => editor.CodeMirror.getValue()")
        return self.cell(index).locator(".cell_input pre").inner_text()

    def edit(self, index: int, old: str, new: str) -> None:
        """Select `old`, which must stand in the cell once, and type `new`."""
        self.open_editor(index)
        code = self.code(index)
        assert code.count(old) == 1, f"{old!r} stands {code.count(old)} times in cell {index}"
        self.cell(index).locator(".CodeMirror").evaluate(
            """(node, [start, end]) => {
                 const editor = node.CodeMirror;
                 editor.setSelection(editor.posFromIndex(start), editor.posFromIndex(end));
               }""",
            [code.index(old), code.index(old) + len(old)],
        )
        self.page.keyboard.insert_text(new)

    def reset(self, index: int) -> None:
        self.cell(index).locator(".live-reset").click()

    # ------------------------------------------------------------------ the kernel

    def status(self) -> str:
        return self.page.locator("#live-status").get_attribute("data-status") or ""

    def wait_status(self, status: str) -> None:
        self.page.locator(f"#live-status[data-status={status}]").wait_for()

    def run_all(self) -> None:
        self.page.locator(".live-run-all").click()

    def restart(self) -> None:
        self.page.locator(".live-restart").click()

    def ask_server(self, method: str, path: str) -> object:
        """A request to the Jupyter API, as a script of the page would make it."""
        return self.page.evaluate(
            """async ([method, path]) => {
                 const xsrf = document.cookie.match(/_xsrf=([^;]*)/)?.[1] ?? "";
                 const headers = { "X-XSRFToken": xsrf };
                 const root = new URL(document.documentElement.dataset.content_root, location);
                 const answer = await fetch(new URL(`api/${path}`, root), { method, headers });
                 return answer.status === 204 ? null : answer.json();
               }""",
            [method, path],
        )
