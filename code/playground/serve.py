"""`make serve`: the book with live cells, soon, even if no page was ever executed.

To execute all pages takes minutes. Where more than a few wait for that, the book is first built
and served without their outputs; its cells are live already. The outputs are computed meanwhile.
When all are there, pages show them by themselves, but for those in which the reader has run a cell.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from playground.build.dev import LOOK, show, tell
from playground.build.execute import without_outputs
from playground.build.toc import pages_in_order
from playground.server import app as server
from playground.server.app import on_stop

ROOT = Path(__file__).parents[2]
FIRST = Path("_build/first")  # the build without outputs, and the copy of a build that is served
FEW = 2  # pages that a reader waits for
BOOK = ["make", "--no-print-directory", "-s", "book"]
WAITING = "Outputs are still computed: {done} of {pages} pages are done. Cells run already."
FAILED = "Not all outputs could be computed: the terminal says why. Cells run all the same."
READY = "All outputs are there now. Reload this page when you need yours no more."
# A cell that was run, runs or is to run; edits alone are kept when a page is loaded again.
RAN = "[data-live]:not([data-state=built], [data-state=edited])"


def executed() -> int:
    """How many pages the build keeps outputs of."""
    return len([*(ROOT / "_build/.jupyter_cache/executed").glob("*")])


def build_first(shown: Path) -> bool:
    """Build without the outputs that are not there; whether that went through."""
    print("Building the book ...", flush=True)
    command = [sys.executable, "-m", "playground.build", "--path-output", str(FIRST)]
    with (ROOT / "_build/book.log").open("w") as log:
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | {"BOOK_OUTPUTS": "later"}, stdout=log, stderr=log,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    if done.returncode == 0:
        show(ROOT / FIRST / "_build/html", shown, 1, keep=RAN)
    return done.returncode == 0


def serve_at_once(shown: Path, options: list[str], pages: int) -> int:
    """Serve the pages as they are, compute their outputs, and show these."""
    before = executed()
    command = [sys.executable, "-m", "playground.server", "--html", str(shown), *options]
    tell(shown, 1, WAITING.format(done=0, pages=pages))
    started = []
    try:
        started.append(serving := subprocess.Popen(command))
        # A cell that the reader runs goes first.
        nice = ["nice", *BOOK]
        started.append(building := subprocess.Popen(nice, cwd=ROOT, stdin=subprocess.DEVNULL))
        while building.poll() is None and serving.poll() is None:
            tell(shown, 1, WAITING.format(done=min(pages, executed() - before), pages=pages))
            time.sleep(4 * LOOK)
        if serving.poll() is None and building.returncode == 0:
            show(ROOT / "_build/html", shown, 2, READY, last=True)
            print("All outputs are there: open pages show them.", flush=True)
        elif serving.poll() is None:
            tell(shown, 1, FAILED)
        return serving.wait()
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m playground.serve", description=__doc__)
    parser.add_argument("--port", default="8123")
    parser.add_argument("--browser", action=argparse.BooleanOptionalAction, default=True)
    given = parser.parse_args()
    options = ["--port", given.port, *([] if given.browser else ["--no-browser"])]
    on_stop(lambda *_: sys.exit(0))
    waiting = len(without_outputs(ROOT, pages_in_order(ROOT)))
    if waiting <= FEW:
        if subprocess.run(BOOK, cwd=ROOT, check=False).returncode:
            sys.exit(1)
        server.main(["--html", str(ROOT / "_build/html"), *options])
        return
    shown = ROOT / FIRST / "shown"
    shutil.rmtree(ROOT / FIRST, ignore_errors=True)
    try:
        if not build_first(shown):  # what is wrong, the usual build says
            sys.exit(subprocess.run(BOOK, cwd=ROOT, check=False).returncode or 1)
        sys.exit(serve_at_once(shown, options, waiting))
    finally:
        shutil.rmtree(ROOT / FIRST, ignore_errors=True)


if __name__ == "__main__":
    main()
