"""What a kernel may take from the machine, set by itself before it runs anything of a reader.

The ranks that it starts inherit this. What no such setting can hold (the memory and the number of
all its processes together) is watched from outside, in `playground.server.limits`.
"""

import contextlib
import os
import threading
from pathlib import Path

try:
    import resource
except ImportError:  # Windows has none of this
    resource = None  # type: ignore[assignment]

OPEN_FILES = 4096  # eight ranks use some hundreds
SPARE_TASKS = 2000  # the system counts the threads of all programs of this user


def confine(processes: int, file_size: int) -> None:
    """Limit open files, the size of a file (bytes) and, as a backstop, the number of processes.

    There is no limit of address space: torch and CUDA reserve far more than they use.
    """
    if resource is None:
        return
    lower("RLIMIT_NOFILE", OPEN_FILES)
    lower("RLIMIT_FSIZE", file_size)  # shared memory counts as a file
    lower("RLIMIT_CORE", 0)
    # The watcher looks four times a second. This holds what grows faster, if the user is not root.
    tasks = tasks_of_user() + 10 * processes + SPARE_TASKS
    if leaves_room("RLIMIT_NPROC", tasks):
        lower("RLIMIT_NPROC", tasks)
    with contextlib.suppress(OSError):  # when memory runs out, a kernel goes before anything else
        Path("/proc/self/oom_score_adj").write_text("700")


def lower(name: str, value: int) -> None:
    """Set a limit for good, unless a lower one stands already or the system does not know it."""
    which = getattr(resource, name, None)
    if which is None:
        return
    hard = resource.getrlimit(which)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(which, (value, value))


def leaves_room(name: str, tasks: int) -> bool:
    """Whether a thread can be started with this limit of tasks.

    Perhaps not in a container: the system counts the same user's outside, too, and we cannot.
    """
    which = getattr(resource, name, None)
    if which is None:
        return False
    before = resource.getrlimit(which)
    thread = threading.Thread(target=int)
    try:
        resource.setrlimit(which, (tasks, before[1]))
        thread.start()
    except (RuntimeError, OSError, ValueError):  # the last two: the limit is that low already
        return False
    finally:
        resource.setrlimit(which, before)
    thread.join()
    return True


def tasks_of_user() -> int:
    """The threads that this user runs now, as the system counts them."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.stat().st_uid == os.getuid():
                count += len(os.listdir(process / "task"))
    return count
