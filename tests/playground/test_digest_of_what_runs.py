"""What the kernel of a page and its ranks run, the digest of the page knows."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from playground.build.digest import ROOT, used_by
from playground.build.execute import execute
from playground.build.reach import files_of, reached, units_of

NOTE_CALLS = """\
import os, sys, threading

seen, ours = set(), os.environ["OURS"]
file = os.open(os.environ["CALLS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def note(frame, event, arg):
    code = frame.f_code
    if event == "call" and code not in seen:
        seen.add(code)
        if code.co_filename.startswith(ours):
            os.write(file, f"{code.co_filename} {code.co_qualname}\\n".encode())

sys.setprofile(note)
threading.setprofile(note)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        "first_steps/one_device",
        "collectives/exercises",
        "ddp/when_ranks_differ",
        "zero/zero3",
        "at_scale/step_cost",
    ],
)
def test_a_page_runs_nothing_that_its_digest_does_not_know(page, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(NOTE_CALLS)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("OURS", f"{ROOT}/code")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with ThreadPoolExecutor(1) as aside:  # in this thread a browser may have its event loop
        aside.submit(asyncio.run, execute(ROOT, f"book/{page}", {})).result()
    whole, units = used_by(ROOT / f"book/{page}.md")
    # The kernel itself warms up, whatever stands in the cells.
    units += reached([], files_of(["playground.server.warm", "playground.server.shutdown"]))
    known = {(u.file, f"{u.owner}.{u.name}" if u.owner else u.name) for u in units}
    calls = [line.split(" ") for line in (tmp_path / "calls").read_text().splitlines()]
    called = {(Path(file), name.partition(".<locals>")[0]) for file, name in calls}
    assert len(called) > 20
    for file, name in sorted(called - known):
        tops = [u for u in units_of(file) if not u.owner]
        is_body = name in {u.name for u in tops if u.bases is not None}
        at_import = "\n".join(u.text for u in tops if not u.name or f"{u.name} =" in u.text)
        runs_at_import = name.startswith("<") or f"{name}(" in at_import
        assert file in whole or is_body or runs_at_import, f"{page} runs {name} of {file.name}"
