"""What a cell can do by accident, and what the server does about it. All bombs here are small."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from jupyter_server.services.kernels.kernelmanager import (
    AsyncMappingKernelManager,
    ServerKernelManager,
)
from rights import control_group, in_group
from serving import Server, running_server
from visitor import PATIENCE, Browser, Kernel, logged_in
from waiting import soon

from playground.server.kernels import BookChannels, FewKernels
from playground.server.limits import (
    Families,
    Limits,
    Watch,
    has_ended,
    memory_of_machine,
    memory_used,
)

MB = 1e6


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """In a thread: in this one a browser of other tests may have its event loop."""
    with ThreadPoolExecutor(1) as aside:
        aside.submit(asyncio.run, coroutine).result()


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    html = tmp_path_factory.mktemp("site")
    html.joinpath("index.html").write_text("<!doctype html><title>A book</title>")
    return html


@pytest.fixture(scope="module")
def server(html: Path) -> Iterator[Server]:
    limits = ("--memory", "3", "--processes", "12", "--text", "0.1")
    limits += ("--kernel-memory", "1.2")
    with running_server(html, ("--no-browser", *limits)) as server:
        yield server


@pytest.fixture(scope="module")
def reader(server: Server) -> Browser:
    return logged_in(server)


@pytest.fixture
def kernel(reader: Browser) -> Iterator[Kernel]:
    kernel = Kernel(reader)
    yield kernel
    kernel.socket.close()
    reader.api("DELETE", f"/api/sessions/{kernel.session['id']}")


def end_of(kernel: Kernel, code: str, when_sent: Callable[[], None] = lambda: None) -> str:
    """Run what will be ended, and see that the server answers meanwhile; what the cell was told."""
    name = kernel.send(code)
    when_sent()
    said = ""
    deadline = time.monotonic() + 2 * PATIENCE
    while time.monotonic() < deadline:
        assert kernel.browser.get("/")[0] == 200
        message = json.loads(kernel.socket.recv())
        kind, content = message["header"]["msg_type"], message["content"]
        if kind == "stream" and message["parent_header"].get("msg_id") == name:
            said += content["text"]
        if kind == "status" and content["execution_state"] == "restarting":
            return said
    raise TimeoutError(said)


def goes_on(reader: Browser) -> None:
    """A kernel of another page has noticed nothing."""
    other = Kernel(reader)
    assert other.run("print(6 * 7)") == "42"
    other.socket.close()
    reader.api("DELETE", f"/api/sessions/{other.session['id']}")


FORKS = """
import os, time
if __name__ == "__main__":
    print("pid", os.getpid(), flush=True)
    for _ in range(7):            # 2^7 processes, if nobody stops them
        os.fork()
        time.sleep(0.2)
    time.sleep(20)
"""


@pytest.mark.slow
def test_a_cell_that_forks_without_end_is_ended_with_all_its_processes(
    kernel: Kernel, reader: Browser
) -> None:
    said = end_of(kernel, FORKS)
    assert "processes, and 12 are allowed" in said
    leader = int(said.split()[1])
    assert soon(lambda: has_ended(leader))
    left = Families().look([leader])[leader]
    assert soon(lambda: all(has_ended(pid) for pid in left))
    goes_on(reader)


WAIT = """
import os, subprocess
many = "while [ ! -e {go} ]; do sleep 0.1; done; for i in $(seq 14); do sleep 60 & done; wait"
subprocess.Popen(["sh", "-c", many])
print(os.getpid())
"""


def test_the_reason_stands_in_a_cell_that_the_kernel_has_not_yet_begun(
    kernel: Kernel, reader: Browser, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    os.kill(int(kernel.run(WAIT.format(go=go))), signal.SIGSTOP)
    said = end_of(kernel, "print('never begun')", when_sent=go.touch)
    assert "processes, and 12 are allowed" in said
    goes_on(reader)


HOG = """
import time
hog = []
for _ in range(40):               # 4 GB, if nobody stops it
    hog.append(b"x" * 100_000_000)
    time.sleep(0.02)
"""


def test_a_cell_that_fills_the_memory_is_ended(kernel: Kernel, reader: Browser) -> None:
    said = end_of(kernel, HOG)
    assert "GB of memory, and one kernel may use 1.2 GB" in said
    goes_on(reader)


def test_a_cell_that_loops_for_ever_leaves_the_others_alone_and_can_be_stopped(
    kernel: Kernel, reader: Browser
) -> None:
    name = kernel.send("print('on', flush=True)\nwhile True: pass")
    kernel.wait_for_output("(on)")
    goes_on(reader)
    assert reader.api("POST", f"/api/kernels/{kernel.id}/interrupt")[0] == 204
    assert kernel.wait(name)["status"] == "KeyboardInterrupt"
    assert kernel.run("print(6 * 7)") == "42"


def test_a_cell_that_prints_for_ever_is_stopped_and_its_kernel_goes_on(
    kernel: Kernel, reader: Browser
) -> None:
    kernel.run("x = 41")
    said = kernel.wait(kernel.send("while True: print('again ' * 20)"))
    assert said["status"] == "KeyboardInterrupt"
    assert "This run was stopped: it printed more than 0.1 MB." in said["stderr"]
    assert len(said["stdout"]) < 0.3 * MB
    assert kernel.run("print(x + 1)") == "42"  # the next run may print again


def test_what_is_printed_after_the_cut_does_not_come_however_stubborn_the_loop(
    kernel: Kernel, reader: Browser
) -> None:
    stubborn = """
for _ in range(30):
    try:
        for _ in range(2000):
            print('again ' * 20)
    except KeyboardInterrupt:
        pass
"""
    said = kernel.wait(kernel.send(stubborn))
    assert len(said["stdout"]) < 0.3 * MB
    goes_on(reader)


def bytes_of(kernel: Kernel, code: str) -> tuple[int, dict]:
    """How much a page gets of a run, and the content of the reply."""
    name = kernel.send(code)
    size, idle, reply = 0, False, {}
    while not (idle and reply):
        received = kernel.socket.recv()
        size += len(received)
        if not isinstance(received, str):
            continue
        message = json.loads(received)
        if message["parent_header"].get("msg_id") == name:
            content, kind = message["content"], message["header"]["msg_type"]
            idle = idle or (kind == "status" and content["execution_state"] == "idle")
            reply = content if kind == "execute_reply" else reply
    return size, reply


def test_an_error_of_any_length_is_shown_by_its_ends(kernel: Kernel) -> None:
    size, reply = bytes_of(kernel, "raise ValueError('begin' + 'x' * 3_000_000 + 'end')")
    assert size < 0.2 * MB
    assert reply["status"] == "error"
    assert reply["ename"] == "ValueError"
    assert reply["evalue"].startswith("beginxxx")
    assert reply["evalue"].endswith("xxxend")
    assert "characters are left out" in reply["traceback"][-1]
    assert kernel.run("print(6 * 7)") == "42"


@pytest.mark.parametrize("kind", ["stream", "display_data"])
def test_what_earlier_runs_put_out_does_not_count(kind: str) -> None:
    channels = SimpleNamespace(
        limits=Limits(memory=1, text=1000, shown=1000),
        get_part=lambda _, value, parts: value,
        text=0, shown=0, is_cut=False, has_failed=False, run=None,
    )  # fmt: skip

    def is_dropped(kind: str, size: int) -> bool:
        message = {"header": {"msg_type": kind}, "parent_header": {}}
        return BookChannels._limit_rate(channels, "iopub", message, [b"x" * size])

    for _ in range(5):
        assert not is_dropped("execute_input", 10)
        assert not is_dropped(kind, 900)
    assert channels.text + channels.shown == 900


def test_a_long_traceback_keeps_its_last_lines_where_the_error_is() -> None:
    lines = [f"frame {number} {'x' * 100}" for number in range(40)] + ["ValueError: the reason"]
    content = {"ename": "ValueError", "evalue": "the reason", "traceback": lines}
    channels = SimpleNamespace(
        limits=Limits(memory=1, text=2000),
        get_part=lambda *_: content,
        session=SimpleNamespace(pack=lambda part: json.dumps(part).encode()),
    )
    message, parts = {"content": content}, [b"", b"", b"", json.dumps(content).encode()]
    BookChannels._shorten(channels, message, parts)
    shown = json.loads(parts[3])["traceback"]
    assert len(shown) == 10
    assert shown[0].startswith("frame 31")
    assert shown[-1].startswith("ValueError")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("comm_open", "dict(comm_id=str(i), target_name='none', data='x' * 2**20)"),
        ("error", "dict(ename='E', evalue='', traceback=['x' * 90_000])"),
        ("made_up", "dict(text='x' * 2**20)"),
    ],
)
def test_what_is_neither_printed_nor_shown_counts_too(
    kernel: Kernel, kind: str, content: str
) -> None:
    times = 400 if kind == "error" else 40  # 36 or 40 MB, and 20 are allowed
    code = f"k = get_ipython().kernel\nfor i in range({times}): "
    code += f"k.session.send(k.iopub_socket, {kind!r}, {content}, parent=k.get_parent())"
    size, _ = bytes_of(kernel, code)
    assert 15 * MB < size < 25 * MB
    assert kernel.run("print(6 * 7)") == "42"


@pytest.mark.parametrize(
    ("state", "minutes", "pages", "ends"),
    [
        ("idle", 30, 0, True),
        ("idle", 30, 1, False),
        ("idle", 300, 1, True),  # the tab was forgotten
        ("busy", 300, 1, False),
        ("starting", 300, 1, False),
        ("idle", 10, 0, False),
    ],
)
def test_an_idle_kernel_ends_later_if_its_page_is_open(
    state: str, minutes: float, pages: int, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, ended = FewKernels(cull_idle_timeout=20 * 60), []
    kernel = SimpleNamespace(
        execution_state=state,
        last_activity=datetime.now(UTC) - timedelta(minutes=minutes),
        kernel_name="python3",
        kernel_spec=SimpleNamespace(metadata={}),
    )
    manager._kernels["a"], manager._kernel_connections["a"] = kernel, pages

    async def shutdown(name: str) -> None:
        ended.append(name)

    monkeypatch.setattr(manager, "shutdown_kernel", shutdown)
    run(manager.cull_kernel_if_idle("a"))
    assert ended == ["a"] * ends
    manager._kernels.clear()


def test_a_kernel_that_was_ended_comes_back_empty(kernel: Kernel) -> None:
    kernel.run("x = 1")
    end_of(kernel, HOG)
    kernel.reconnect()
    assert kernel.run("print('x' in globals())") == "False"


def test_a_kernel_confines_itself(kernel: Kernel) -> None:
    code = "import resource as r; print([r.getrlimit(w) for w in "
    code += "(r.RLIMIT_NOFILE, r.RLIMIT_CORE, r.RLIMIT_FSIZE)])"
    files, core, size = json.loads(kernel.run(code).translate(str.maketrans("()", "[]")))
    assert files[0] == files[1] <= 4096
    assert core == [0, 0]
    assert size == [1_200_000_000] * 2
    assert kernel.run("print(sorted(k for k in globals() if 'confine' in k))") == "[]"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="only Linux asks whom to end first")
def test_a_kernel_goes_first_when_memory_runs_out(kernel: Kernel) -> None:
    assert kernel.run("print(open('/proc/self/oom_score_adj').read())") == "700"


def test_open_files_end_at_their_limit_and_not_at_the_machines(kernel: Kernel) -> None:
    said = kernel.wait(kernel.send("files = [open('/dev/null') for _ in range(5000)]"))
    assert said["status"] == "OSError"
    assert kernel.run("files = None; print('on')") == "on"


# --- whose process is it -------------------------------------------------------------------------

CHILDREN = """
import subprocess, sys, time
own = subprocess.Popen(["sleep", "20"], start_new_session=True)
same = subprocess.Popen(["sleep", "20"])
print(own.pid, same.pid, flush=True)
time.sleep(20)
"""


@pytest.fixture
def leader() -> Iterator[tuple[int, list[int]]]:
    """A process as a kernel is one: first of its session, with a child that left the session."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILDREN], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    children = [int(pid) for pid in process.stdout.readline().split()]
    yield process.pid, children
    Watch(Limits(memory=1)).end(process.pid)
    process.wait()
    process.stdout.close()


def test_a_child_in_a_session_of_its_own_is_found_and_stays_found(leader) -> None:
    pid, children = leader
    families = Families()
    assert sorted(families.look([pid])[pid]) == sorted([pid, *children])
    assert sorted(families.look([pid])[pid]) == sorted([pid, *children])


class Processes(dict[int, tuple[int, int]]):
    """A system's processes, pid → its parent and its session, in place of psutil and os."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self[10] = (1, 10)  # a kernel
        monkeypatch.setattr(psutil, "pids", lambda: sorted(self))
        monkeypatch.setattr(os, "getsid", lambda pid: self[pid][1])
        monkeypatch.setattr(
            psutil, "Process", lambda pid: SimpleNamespace(ppid=lambda: self[pid][0])
        )


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    return Processes(monkeypatch)


def test_a_grandchild_in_a_third_session_is_the_kernels(processes: Processes) -> None:
    processes |= {11: (10, 11), 12: (11, 12)}
    assert sorted(Families().look([10])[10]) == [10, 11, 12]


def test_a_grandchild_whose_parent_was_found_before_is_the_kernels(processes: Processes) -> None:
    families = Families()
    processes[11] = (10, 11)
    families.look([10])
    processes[12] = (11, 12)
    assert sorted(families.look([10])[10]) == [10, 11, 12]


def test_a_grandchild_with_a_smaller_id_than_its_parent_is_found_by_the_next_look(
    processes: Processes,
) -> None:
    """Ids begin again from the smallest once the system has used the largest."""
    families = Families()
    processes |= {90: (10, 90), 5: (90, 5)}
    families.look([10])
    assert sorted(families.look([10])[10]) == [5, 10, 90]


def test_an_id_that_was_a_strangers_can_be_the_kernels_later(processes: Processes) -> None:
    families = Families()
    for parent, found in ((1, [10]), (10, [10, 20])):
        processes[20] = (parent, 20)
        assert sorted(families.look([10])[10]) == found
        del processes[20]
        assert families.look([10])[10] == [10]


def test_an_id_that_was_the_kernels_can_be_a_strangers_later(processes: Processes) -> None:
    families = Families()
    for parent, found in ((10, [10, 20]), (1, [10])):
        processes[20] = (parent, 20)
        assert sorted(families.look([10])[10]) == found
        del processes[20]
        assert families.look([10])[10] == [10]


def test_the_end_of_a_kernel_ends_those_that_left_its_session(leader) -> None:
    pid, children = leader
    watch = Watch(Limits(memory=1e9))
    watch.families.look([pid])
    watch.end(pid)
    assert soon(lambda: all(has_ended(child) for child in children))


BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""


@pytest.mark.slow
def test_a_bomb_that_forks_at_full_speed_is_ended_whole() -> None:
    with control_group("pids", 100) as group:
        bomb = in_group(group, sys.executable, "-c", BOMB)
        process = subprocess.Popen(bomb, start_new_session=True)
        watch, ends = Watch(Limits(memory=1e12, processes=50)), dict[int, str]()
        assert soon(lambda: bool(ends.update(watch.look([process.pid])) or ends))
        assert "processes, and 50 are allowed" in ends[process.pid]
        watch.end(process.pid)
        process.wait()
        assert soon(lambda: (group / "cgroup.procs").read_text() == "")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="only Linux says who shares memory")
def test_memory_that_is_shared_counts_once() -> None:
    code = "import os, time; x = b'x' * 200_000_000; [os.fork() for _ in range(2)]; print(flush=1)"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{code}; time.sleep(20)"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    for _ in range(4):
        process.stdout.readline()
    pids = Families().look([process.pid])[process.pid]
    assert len(pids) == 4
    assert 200 * MB < memory_used(pids, enough=1) < 300 * MB
    assert memory_used(pids, enough=1e12) > 600 * MB
    Watch(Limits(memory=1)).end(process.pid)
    process.wait()
    process.stdout.close()


def test_the_greediest_kernel_is_the_one_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    used = {1: 3e9, 2: 5e9, 3: 1e9}
    watch = Watch(Limits(memory=8e9))
    monkeypatch.setattr(watch.families, "look", lambda kernels: {k: [k] for k in kernels})
    monkeypatch.setattr("playground.server.limits.memory_used", lambda pids, enough: used[pids[0]])
    ends = watch.look(used)
    assert list(ends) == [2]
    assert "used 5.0 GB of memory, and all kernels together may use 8.0 GB" in ends[2]
    assert watch.look([1, 2]) == {}, "just what all may use"


def test_a_kernel_has_a_limit_of_its_own_and_an_innocent_one_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used = {1: 3e9, 2: 4e9, 3: 6e9}  # the second takes all that it may
    watch = Watch(Limits(memory=8e9, kernel=4e9))
    monkeypatch.setattr(watch.families, "look", lambda kernels: {k: [k] for k in kernels})
    monkeypatch.setattr("playground.server.limits.memory_used", lambda pids, enough: used[pids[0]])
    assert watch.look(used) == {3: "used 6.0 GB of memory, and one kernel may use 4.0 GB"}


def test_memory_that_kernels_only_seem_to_use_ends_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quick count has what processes share in it more than once."""
    watch = Watch(Limits(memory=8e9))
    monkeypatch.setattr(watch.families, "look", lambda kernels: {k: [k] for k in kernels})
    monkeypatch.setattr(
        "playground.server.limits.memory_used", lambda pids, enough: 5e9 if enough > 5e9 else 2e9
    )
    assert watch.look([1, 2]) == {}


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({"memory.max": "max", "memory.current": "5", "memory.stat": "inactive_file 1"}, None),
        (
            {
                "memory.max": "9000",
                "memory.current": "5000",
                "memory.stat": "anon 7\ninactive_file 300\nactive_file 9",
            },
            4300.0,
        ),
        (
            {
                "memory/memory.limit_in_bytes": "9000",
                "memory/memory.usage_in_bytes": "8500",
                "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 100",
            },
            600.0,
        ),
        ({"memory.max": "90", "memory.current": "95", "memory.stat": "inactive_file 0"}, 0.0),
    ],
)
def test_a_container_has_free_what_it_may_take_and_has_not_taken(
    files: dict[str, str], free: float | None, tmp_path: Path
) -> None:
    (tmp_path / "memory").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = memory_of_machine(tmp_path)
    assert found > 1e6 if free is None else found == free


def test_a_kernel_that_is_on_its_way_has_its_place_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two readers press Run at once, and there is room for one."""
    manager, answers = FewKernels(), list[Any]()
    manager.limit = 1

    async def start(_: Any) -> str:
        await asyncio.sleep(0)  # the other one asks meanwhile
        return "a"

    async def ask_twice() -> None:
        both = (manager.start_kernel() for _ in range(2))
        answers.extend(await asyncio.gather(*both, return_exceptions=True))

    monkeypatch.setattr(AsyncMappingKernelManager, "start_kernel", start)
    run(ask_twice())
    assert answers[0] == "a"
    assert answers[1].status_code == 503
    assert manager.has_room(), "what has started counts no longer as on its way"


def test_a_kernel_that_fails_to_start_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = FewKernels()
    manager.limit = 1

    async def fail(_: Any) -> str:
        raise OSError("no memory")

    monkeypatch.setattr(AsyncMappingKernelManager, "start_kernel", fail)
    for _ in range(2):
        with pytest.raises(OSError, match="no memory"):
            run(manager.start_kernel())
    assert manager.has_room()


def test_a_kernel_that_has_only_just_come_is_not_listed_yet() -> None:
    """Jupyter lists it before it gives it the marks that its list shows."""
    manager = FewKernels()
    manager._kernels["new"] = new = ServerKernelManager(kernel_name="python3")
    assert manager.list_kernels() == []
    run(manager.cull_kernel_if_idle("new"))
    new.execution_state, new.last_activity = "starting", datetime.now(UTC)
    assert [kernel["id"] for kernel in manager.list_kernels()] == ["new"]
