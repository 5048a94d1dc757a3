"""From a bare clone to the first live output: `python -m bench.clone --record`.

Clones the last commit into a new folder, runs `make serve` there, opens the page in a browser and
presses Run: immediately, and again as a reader who has read for some seconds. Packages come from
where pip finds them on this machine. Keeps the seconds in `bench/recorded/clone.json`, and writes
them into the page *Running the book*.
"""

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from bench.live import OPTIONS, PAGE, READING, LivePage, press
from bench.on_page import main
from bench.pairs import ROOT
from playground.build.pdf import find_browser
from playground.environment import environment

RECORD = ROOT / "bench/recorded/clone.json"
PICTURE = ROOT / "book/_static/page.png"  # the README's


@contextmanager
def reader(url: str) -> Iterator[LivePage]:
    """The page, open in a separate browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=OPTIONS)
        context = browser.new_context(viewport={"width": 1200, "height": 630})
        context.new_page().goto(url)  # which knows names below localhost
        yield LivePage(context.new_page(), url.split("/?")[0]).open(PAGE)
        browser.close()


def take_picture(url: str) -> None:
    """A cell that ran, with what it put out."""
    with reader(url) as page:
        press(page)
        page.page.wait_for_timeout(300)  # the state of the cell settles
        page.cell(0).evaluate("cell => scrollTo(0, cell.getBoundingClientRect().top - 170)")
        page.page.wait_for_timeout(300)
        page.page.screenshot(path=PICTURE)


def packages(log: str) -> dict[str, int]:
    """How many pip installed, and how many of them it had to download."""
    installed = re.findall(r"^Successfully installed (.*)", log, flags=re.M)
    downloaded = re.findall(r"^ *Downloading ", log, flags=re.M)
    return {
        "installed": sum(len(names.split()) for names in installed),
        "downloaded": len(downloaded),
    }


def measure() -> dict[str, Any]:
    """Seconds of each part, from `git clone` to the output of four ranks."""
    marks = {"start": time.perf_counter()}
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder, "clone")
        subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "VIRTUAL"))}
        server = subprocess.Popen(
            ["make", "serve", "PORT=0", "BROWSER=true"],  # a command that opens nothing
            cwd=clone, env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            assert server.stdout
            for line in server.stdout:
                name = "open" if line.startswith("Open") else line.strip()
                marks.setdefault(name, time.perf_counter())
                print(line, end="", flush=True)
                if name == "open":
                    break
            else:
                raise SystemExit("make serve ended before it printed the address")
            url = line.split()[1]
            with reader(url) as page:
                first_run = press(page)
                assert "[rank 3]" in page.output(0)
                marks["end"] = time.perf_counter()
            with reader(url) as page:
                page.page.wait_for_timeout(1000 * READING)
                run_after_reading = press(page)
            take_picture(url)
            log = Path(clone, "_build/pip.log").read_text()
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(20)
    return {
        "total_s": marks["end"] - marks["start"],
        "build_s": marks["open"] - marks["Building the book ..."],
        "first_run_s": first_run,
        "run_after_reading_s": run_after_reading,
        "packages": packages(log),
        "env": environment(),
    }


def sentence(measured: dict[str, Any]) -> str:
    """What *Running the book* says of it."""
    env = measured["env"]
    packages = measured["packages"]
    return (
        f"From `git clone` to the first live output, it takes {measured['total_s']:.0f} s, "
        f"including {measured['build_s']:.0f} s for the build. From pressing Run to the output of "
        f"four ranks, it takes {measured['first_run_s']:.1f} s if you press as soon as the page is "
        f"there, and {measured['run_after_reading_s']:.1f} s after {READING} s of reading. (This "
        f"is one run of `python -m bench.clone` on {env['cores']} cores of {env['cpu']} with torch "
        f"{env['torch']}, {env['date']}. It downloaded {packages['downloaded']} of "
        f"{packages['installed']} packages, and found the others on its disk.)"
    )


if __name__ == "__main__":
    main("bench.clone", __doc__, RECORD, measure, sentence)
