"""Browser of this machine: which one there is, and what is missing to drive it."""

import shutil
import subprocess
from pathlib import Path

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def find_browser() -> str | None:
    """The path of a browser of this machine, if it has one."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def missing(node: Path | None = None) -> str | None:
    """What this machine lacks to drive a browser, in one line; `node` is Playwright's own Node."""
    import playwright

    if find_browser() is None:
        return f"no browser found: install one of {', '.join(BROWSERS)}"
    node = node or Path(playwright.__file__).parent / "driver/node"
    started = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)
    if started.returncode == 0:
        return None
    why = (started.stderr.strip().splitlines() or [f"status {started.returncode}"])[-1]
    return f"Playwright doesn't start (on Debian and Ubuntu, install libatomic1): {why}"
