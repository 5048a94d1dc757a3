"""From a bare clone to the first live output: `python -m bench.clone --record`.

Clones the last commit into a new folder, says `make serve` there, opens the page in a browser and
presses Run, with the package cache that the machine has, if it has one. Keeps the seconds in
`bench/recorded/clone.json`, and writes them into the README.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from bench.live import OPTIONS, PAGE, LivePage, press
from bench.pairs import ROOT
from playground.build.pdf import find_browser
from playground.environment import environment

RECORD = ROOT / "bench/recorded/clone.json"
PICTURE = ROOT / "docs/page.png"  # the README's


@contextmanager
def reader(url: str) -> Iterator[LivePage]:
    """The page, open in a browser of its own."""
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


def has_package_cache() -> bool:
    """Has pip kept packages here, or are all of them downloaded?"""
    pip = [sys.executable, "-m", "pip", "cache", "info"]
    said = subprocess.run(pip, capture_output=True, text=True, check=False).stdout
    return bool(re.search(r"HTTP files: [1-9]", said))


def measure() -> dict[str, Any]:
    """Seconds of each part, from `git clone` to the output of four ranks."""
    cached = has_package_cache()
    marks = {"start": time.perf_counter()}
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder, "clone")
        subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "VIRTUAL"))}
        server = subprocess.Popen(
            ["make", "serve", "PORT=0", "BROWSER=none"],
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
            url = line.split()[1]
            with reader(url) as page:
                first_run = press(page)
                assert "[rank 3]" in page.output(0)
                marks["end"] = time.perf_counter()
            take_picture(url)
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(20)
    return {
        "total_s": marks["end"] - marks["start"],
        "build_s": marks["open"] - marks["Building the book ..."],
        "first_run_s": first_run,
        "package_cache": cached,
        "env": environment(),
    }


def readme_sentence(measured: dict[str, Any]) -> str:
    """What the README says of it."""
    env = measured["env"]
    packages = "a warm package cache" if measured["package_cache"] else "all packages downloaded"
    return (
        f"From `git clone` to the first live output it takes {measured['total_s']:.0f} s, of which "
        f"the build {measured['build_s']:.0f} s; from pressing Run on a fresh page to "
        f"the output of four ranks {measured['first_run_s']:.1f} s. (One run of "
        f"`python -m bench.clone`, with {packages}, on {env['cores']} cores of "
        f"{env['cpu']}, torch {env['torch']}, {env['date']}, commit {env['commit']}.)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.clone", description=__doc__)
    parser.add_argument("--record", action="store_true", help="keep the result, update the README")
    record = parser.parse_args().record
    measured = measure()
    print(readme_sentence(measured))
    if record:
        RECORD.write_text(json.dumps(measured, indent=1) + "\n")
        readme = ROOT / "README.md"
        marks = r"(<!-- bench.clone -->\n).*?(<!-- end -->)"
        text = re.sub(marks, rf"\1{readme_sentence(measured)}\n\2", readme.read_text(), flags=re.S)
        readme.write_text(text)


if __name__ == "__main__":
    main()
