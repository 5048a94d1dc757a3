"""Live preview for authors: `make dev` builds the book when a file is saved, and pages reload.

The server is that of `make serve`. It serves a copy of the last successful build, so a reader never
sees half a build, and a page that doesn't build leaves the previous version in place.

The preview checks the modification times of a few hundred files, four times per second. An open
page asks for one small file of the copy, twice per second. So the server needs no changes and no
additional library.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from playground.server.app import on_stop

ROOT = Path(__file__).parents[3]
WATCHED = ("book", "code", "exercises", "bench/recorded", "_config.yml", "_toc.yml")
STATIC = "book/_static/"  # scripts and styles, which are copied unchanged
MACHINERY = ("_config.yml", "book/_ext/")  # changes to these affect every page
NOT_OURS = {"__pycache__", ".ipynb_checkpoints", "node_modules"}
LOOK = 0.25  # s between two checks
OWN = ("_static/reload.js", "_static/builds.txt")  # the script, and the number of builds so far

RELOAD = """\
const shown = "BUILDS";
const running = "RUNNING";
const address = new URL("builds.txt", import.meta.url);
const place = `scroll ${location.pathname}`;

async function look() {
  const answer = await fetch(address, { cache: "no-store" }).catch(() => undefined);
  const now = answer?.ok ? await answer.text() : shown;
  if (now !== shown && !document.querySelector(running)) {
    sessionStorage.setItem(place, scrollY);
    location.reload();
  } else {
    setTimeout(look, 500);
  }
}

async function scrollBack() {
  const before = sessionStorage.getItem(place);
  sessionStorage.removeItem(place);
  await window.MathJax?.startup?.promise;  // formulas change the height of a page
  if (before !== null) scrollTo({ top: before, behavior: "instant" });
}

addEventListener("load", scrollBack);
look();
"""
RUNNING = "[data-state=queued], [data-state=running]"  # a page with one of these doesn't reload
SCRIPT = '<script type="module" src="{up}_static/reload.js"></script>\n</body>'

Times = dict[str, int]


def look(root: Path = ROOT) -> Times:
    """Modification time of each source file of the book (ns)."""
    found: Times = {}
    for name in WATCHED:
        for path in (root / name).rglob("*") if (root / name).is_dir() else [root / name]:
            hidden = path.name.startswith((".", "#")) or path.name.endswith((".pyc", "~"))
            if hidden or NOT_OURS & {*path.parts}:
                continue
            try:
                if path.is_file():
                    found[path.relative_to(root).as_posix()] = path.stat().st_mtime_ns
            except OSError:  # the file has just been deleted
                continue
    return found


def changed(before: Times, now: Times) -> list[str]:
    """Files that are new, deleted or modified."""
    return sorted(n for n in before.keys() | now.keys() if before.get(n) != now.get(n))


def complaints(log: str) -> list[str]:
    """The first two messages of a failed build, and how many more there are."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", log).replace(f"{ROOT}/", "")
    found = re.findall(r"^.*(?:WARNING|ERROR|CRITICAL|Error): (?!\[?IPKernelApp).*$", plain, re.M)
    found = [line.strip() for line in dict.fromkeys(found)]
    more = [f"… and {len(found) - 2} more: see _build"] if len(found) > 2 else []
    return [*found[:2], *more]


def show(html: Path, shown: Path, builds: int) -> list[str]:
    """Copy changed pages to `shown`, with a script that reloads them; returns the copied files."""
    written = []
    for path in html.rglob("*"):
        name = path.relative_to(html)
        target = shown / name
        if path.is_dir():
            continue
        stat = path.stat()
        if target.exists() and target.stat().st_mtime_ns == stat.st_mtime_ns:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}")
        if path.suffix == ".html":
            script = SCRIPT.format(up="../" * (len(name.parts) - 1))
            text = path.read_text(encoding="utf-8").replace("</body>", script)
            part.write_text(text, encoding="utf-8")
        else:
            shutil.copyfile(path, part)
        os.utime(part, ns=(stat.st_mtime_ns, stat.st_mtime_ns))
        part.replace(target)  # a reader gets either the old file or the new one
        written.append(name.as_posix())
    for path in shown.rglob("*"):
        name = path.relative_to(shown)
        if path.is_file() and not (html / name).exists() and name.as_posix() not in OWN:
            path.unlink()
    (shown / "_static").mkdir(parents=True, exist_ok=True)
    script = RELOAD.replace("BUILDS", str(builds)).replace("RUNNING", RUNNING)
    (shown / OWN[0]).write_text(script)
    part = shown / f"{OWN[1]}.part"
    part.write_text(str(builds))
    part.replace(shown / OWN[1])
    return written


def make_book(names: Iterable[str]) -> str:
    """Build what these changes affect; returns the errors, or an empty text."""
    keep = [] if any(name.startswith(MACHINERY) for name in names) else ["-o", "_build/.machinery"]
    command = ["make", "--no-print-directory", "-s", *keep, "book"]
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True, check=False)  # fmt: skip
    if done.returncode == 0:
        return ""
    if wrong := complaints(done.stderr):  # from pages that could not be executed
        return "\n".join(wrong)
    log = ROOT / "_build/book.log"
    lines = complaints(log.read_text(errors="replace")) if log.exists() else []
    return "\n".join(lines or done.stderr.strip().splitlines()[-2:]) or "make failed"


class Session:
    """State of the preview: which pages are shown, and changes since the last good build."""

    def __init__(self, html: Path, shown: Path, build: Callable[[Iterable[str]], str] = make_book):
        self.html, self.shown, self.build = html, shown, build
        self.builds = 0
        self.waiting: set[str] = set()  # files that changed after the last successful build

    def update(self, names: Iterable[str]) -> bool:
        """Build after these files changed, and show the result if the build succeeds."""
        self.waiting |= set(names)
        static = {name for name in self.waiting if name.startswith(STATIC)}
        if self.waiting - static or not self.waiting:
            wrong = self.build(self.waiting)
            if wrong:
                print(f"{wrong}\nThe pages stay as they were.", flush=True)
                return False
        for name in static:
            if (ROOT / name).exists():
                shutil.copy2(ROOT / name, self.html / "_static" / name.removeprefix(STATIC))
        self.waiting.clear()
        self.builds += 1
        show(self.html, self.shown, self.builds)
        return True


def serve(session: Session, port: str | None, browser: bool) -> int:
    """Serve the shown pages, and build after each change, until the server ends."""
    command = [sys.executable, "-m", "playground.server", "--html", str(session.shown)]
    command += ["--no-spare", *(["--port", port] if port else [])]
    command += [] if browser else ["--no-browser"]
    before = look()
    server = subprocess.Popen(command)
    try:
        while server.poll() is None:
            time.sleep(LOOK)
            now = look()
            if changed(before, now):
                time.sleep(LOOK / 2)  # an editor may still be writing
                now = look()
                names, before = changed(before, now), now
                print(f"{time.strftime('%H:%M:%S')} {', '.join(names[:3])} changed", flush=True)
                session.update(names)
        return server.returncode
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m playground.build.dev", description=__doc__)
    port = "port of the server (default: 8123, or a free one if that is in use)"
    parser.add_argument("--port", help=port)
    browser = "open the book in a browser (default: yes)"
    parser.add_argument(
        "--browser", action=argparse.BooleanOptionalAction, default=True, help=browser
    )
    options = parser.parse_args()
    on_stop(lambda *_: sys.exit(0))
    session = Session(ROOT / "_build/html", ROOT / "_build/dev")
    if not session.update(MACHINERY):
        if not (session.html / "index.html").exists():
            sys.exit(1)
        show(session.html, session.shown, session.builds)  # show the previous build
    sys.exit(serve(session, options.port, options.browser))


if __name__ == "__main__":
    main()
