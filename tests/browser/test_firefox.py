"""Ranks in a tab of the other browser, and traces: Firefox, told what to do by WebDriver BiDi."""

import itertools
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import websocket
from live_page import PATIENCE
from plain import plain
from ports import free_port

FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(FIREFOX is None, reason="Firefox wanted, none found"),
]
EACH, FORGET = 2, 3  # cells of tab.md
CELL = "document.querySelectorAll('div.cell[data-live]')[{}]"


class Firefox:
    """A tab of a Firefox of its own (https://w3c.github.io/webdriver-bidi)."""

    def __init__(self, port: int):
        self.socket = websocket.create_connection(
            f"ws://127.0.0.1:{port}/session", timeout=PATIENCE / 1000, suppress_origin=True
        )
        self.numbers = itertools.count(1)
        self.call("session.new", capabilities={})
        self.tab = self.call("browsingContext.getTree")["contexts"][0]["context"]

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self.numbers)
        command = {"id": number, "method": method, "params": parameters}
        self.socket.send(json.dumps(command))
        while (answer := json.loads(self.socket.recv())).get("id") != number:
            pass  # what happens meanwhile
        assert answer["type"] == "success", answer
        return answer["result"]

    def open(self, url: str) -> None:
        self.call("browsingContext.navigate", context=self.tab, url=url, wait="complete")

    def evaluate(self, code: str) -> Any:
        answer = self.call(
            "script.evaluate", expression=code, target={"context": self.tab}, awaitPromise=True
        )
        assert answer["type"] == "success", answer
        return answer["result"].get("value")

    def wait_for(self, code: str) -> None:
        """Until the code gives true; the page may be loaded anew meanwhile."""
        until = time.monotonic() + PATIENCE / 1000
        while not self.evaluate(code):
            assert time.monotonic() < until, self.evaluate("document.body.innerText")
            time.sleep(0.1)

    def run(self, index: int, state: str) -> str:
        """Press Run and wait; what the cell puts out."""
        cell = CELL.format(index)
        self.wait_for(f"!!{cell}?.querySelector('.live-run')")
        self.evaluate(f"{cell}.querySelector('.live-run').click()")
        self.wait_for(f"{cell}?.dataset.state === '{state}'")
        return self.evaluate(f"{cell}.querySelector('.cell_output').innerText")


@pytest.fixture
def firefox(tmp_path: Path) -> Iterator[Firefox]:
    port = free_port()
    process = subprocess.Popen(
        [FIREFOX, "--headless", "--no-remote", "--profile", tmp_path,
         "--remote-debugging-port", str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        next(line for line in process.stderr if "BiDi listening" in line)
        yield Firefox(port)
    finally:
        process.terminate()
        process.communicate()


def test_four_ranks_exchange_messages_and_a_hang_is_told(firefox: Firefox, small_book: Path):
    with plain(small_book) as origin:
        firefox.open(f"{origin}/tab.html")
        output = firefox.run(EACH, "ran")
        assert output.startswith("4 ranks · workers of this tab")
        assert output.strip().endswith("[6.0, 6.0, 6.0, 6.0]")
        assert "rank 0 waits in all_reduce at cell 4, line 3" in firefox.run(FORGET, "failed")
        assert firefox.run(EACH, "ran").strip().endswith("[6.0, 6.0, 6.0, 6.0]")


def test_a_trace_is_read_in_the_tab(firefox: Firefox, small_book: Path):
    with plain(small_book) as origin:
        firefox.open(f"{origin}/traces.html")
        firefox.wait_for("!!document.querySelector('.traces-timeline')")
        firefox.evaluate("document.querySelector('[data-example^=slow-rank]').click()")
        firefox.wait_for("document.querySelector('.traces').dataset.shows?.startsWith('Rank 1 ')")
        firefox.evaluate("document.querySelector('[data-zoom=in]').click()")
        lane = "document.querySelector('.traces-lanes svg').getAttribute('viewBox')"
        assert firefox.evaluate(lane) == "25000 0 50000 10"
