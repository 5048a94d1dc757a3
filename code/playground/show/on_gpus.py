"""What `make test-gpu` last said, and where: from the note that a run leaves, if one was kept."""

import json
from pathlib import Path

NOTE = Path(__file__).parents[3] / "bench/recorded/gpu.json"


def last_on_gpus() -> str:
    """ "not yet" until somebody has copied a note from `_build`."""
    if not NOTE.exists():
        return "not yet: no run of `make test-gpu` has been recorded"
    said = json.loads(NOTE.read_text())
    ran = f"{said['passed']} tests passed, {said['failed']} failed, {said['skipped']} skipped"
    where = f"{said['gpus']} × {said['gpu']}, torch {said['torch']}"
    return f"{ran} on {where}, {said['date']}, commit {said['commit']}"
