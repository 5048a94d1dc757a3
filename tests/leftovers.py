"""What a test might leave behind."""

import os
import time
from pathlib import Path


def shared_memory() -> set[str]:
    """Names in shared memory that stay, but for those of browsers, which other tests start."""
    looks = []
    for _ in range(2):
        looks.append(set(os.listdir("/dev/shm")) if Path("/dev/shm").is_dir() else set())
        time.sleep(0.2)
    return {name for name in looks[0] & looks[1] if not name.startswith(".org.chromium")}
