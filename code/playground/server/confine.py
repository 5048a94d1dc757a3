"""Resource limits of a kernel, which sets them itself before it runs a reader's code.

The ranks that it starts inherit them. Resource limits can't bound the memory or the number of all
its processes together, so `playground.server.limits` watches those from outside.
"""

import contextlib
import os
import threading
from pathlib import Path

try:
    import resource
except ImportError:  # Windows has no resource limits
    resource = None  # type: ignore[assignment]

OPEN_FILES = 4096  # eight ranks use a few hundred
SPARE_TASKS = 2000  # the system counts the threads of all programs of this user


def confine(processes: int, file_size: int) -> None:
    """Limit open files, the size of a file (bytes) and, as a backstop, the number of processes.

    The address space isn't limited, because torch and CUDA reserve far more than they use.
    """
    if resource is None:
        return
    lower("RLIMIT_NOFILE", OPEN_FILES)
    lower("RLIMIT_FSIZE", file_size)  # shared memory counts as a file
    lower("RLIMIT_CORE", 0)
    # The watcher looks four times a second. This stops faster growth, if the user isn't root.
    tasks = tasks_of_user() + 10 * processes + SPARE_TASKS
    if leaves_room("RLIMIT_NPROC", tasks):
        lower("RLIMIT_NPROC", tasks)
    with contextlib.suppress(OSError):  # when memory runs out, a kernel is killed first
        Path("/proc/self/oom_score_adj").write_text("700")


def lower(name: str, value: int) -> None:
    """Lower a limit for good, unless it is lower already or the system doesn't have it."""
    which = getattr(resource, name, None)
    if which is None:
        return
    hard = resource.getrlimit(which)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(which, (value, value))


def leaves_room(name: str, tasks: int) -> bool:
    """Whether a thread can start under this limit of tasks.

    In a container it may not: the system also counts this user's threads outside the container,
    which can't be seen from inside.
    """
    which = getattr(resource, name, None)
    if which is None:
        return False
    before = resource.getrlimit(which)
    thread = threading.Thread(target=int)
    try:
        resource.setrlimit(which, (tasks, before[1]))
        thread.start()
    except (RuntimeError, OSError, ValueError):  # the last two: the limit is already lower
        return False
    finally:
        resource.setrlimit(which, before)
    thread.join()
    return True


def tasks_of_user() -> int:
    """Number of threads that this user is running, as the system counts them."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.stat().st_uid == os.getuid():
                count += len(os.listdir(process / "task"))
    return count
