"""Tests that need more than a user's rights: taken with `sudo`, where there is one that never asks.

Runners of CI have it. So there a test that is skipped for want of rights would be skipped on every
machine, and fails instead.
"""

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

SUDO = [] if sys.platform != "win32" and os.geteuid() == 0 else ["sudo", "-n"]


def lacking(what: str) -> NoReturn:
    """Skip this test for want of rights; on a runner with Linux, let it fail."""
    if os.environ.get("CI") and sys.platform == "linux":
        pytest.fail(f"on a runner this has to be possible: {what}")
    pytest.skip(what)


def as_root(*words: str) -> None:
    """Run a command as root, or skip the test."""
    try:
        done = subprocess.run([*SUDO, *words], capture_output=True, text=True, check=False)
    except (FileNotFoundError, PermissionError):  # the latter if a folder of PATH is another user's
        lacking(f"only root can say: {' '.join(words)}")
    if done.returncode:
        lacking(f"{' '.join([*SUDO, *words])}: {done.stderr.strip()}")


@contextlib.contextmanager
def control_group(kind: str, limit: int) -> Iterator[Path]:
    """A control group of Linux with at most so many "pids", or bytes of "memory".

    Who writes to its `cgroup.procs`, as root does, is in it. Nobody is left in it at the end.
    """
    if not Path("/sys/fs/cgroup").is_dir():
        pytest.skip("only Linux has control groups")
    first = Path("/sys/fs/cgroup", kind)  # of version 1
    base, name = (first, "limit_in_bytes") if first.is_dir() else (first.parent, "max")
    name = f"{kind}.{'max' if kind == 'pids' else name}"
    group = base / f"test-{uuid.uuid4().hex}"
    as_root("mkdir", str(group))
    try:
        as_root("sh", "-c", f"echo {limit} >{group / name}")
        yield group
    finally:
        empty = f'while pids=$(cat {group}/cgroup.procs) && [ -n "$pids" ]; do kill -9 $pids; done'
        as_root("sh", "-c", f"{empty} 2>/dev/null; rmdir {group}")


def in_group(group: Path, *words: str) -> list[str]:
    """The command that joins a control group and then is another."""
    join = f'echo $$ | {" ".join([*SUDO, "tee"])} {group}/cgroup.procs >/dev/null && exec "$@"'
    return ["sh", "-c", join, "sh", *words]
