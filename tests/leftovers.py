"""What a test might leave behind."""

import multiprocessing
import os
import time
from pathlib import Path

OWN = f"mp-{os.getpid()}"  # what multiprocessing calls semaphores of this process and its children
multiprocessing.current_process()._config["semprefix"] = f"/{OWN}"  # type: ignore[attr-defined]


def shared_memory() -> set[str]:
    """Names in shared memory that stay, but for those of browsers and builds beside this test."""
    looks = []
    for _ in range(2):
        looks.append(set(os.listdir("/dev/shm")) if Path("/dev/shm").is_dir() else set())
        time.sleep(0.2)
    names = {name for name in looks[0] & looks[1] if not name.startswith(".org.chromium")}
    return {name for name in names if not name.startswith("sem.mp-") or OWN in name}
