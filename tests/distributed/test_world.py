"""`launch` and `world`: results, output, failures, and that nothing is left behind."""

import contextlib
import functools
import gc
import importlib
import io
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from unittest import mock

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from leftovers import shared_memory
from pools import launch_with_clock
from rights import as_root, control_group
from threadpoolctl import ThreadpoolController
from waiting import soon

from distributed.launching import launch, world
from distributed.runtime.board import Board
from distributed.runtime.caller import World
from distributed.runtime.group import timeout_of
from distributed.runtime.rank import RankSpec, choose_backend, join
from distributed.runtime.report import Output, RankError, Screen
from playground.server.limits import has_ended


def process_ids(group):
    return os.getpid()


def run_script(tmp_path: Path, text: str) -> subprocess.Popen:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text))
    return subprocess.Popen(
        [sys.executable, "-u", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_results_come_in_rank_order(ranks):
    assert launch(lambda group: (group.rank, group.size), ranks=ranks) == [
        (rank, ranks) for rank in range(ranks)
    ]


def test_every_rank_is_a_process_of_its_own_and_none_is_left():
    pids = launch(process_ids, ranks=4)
    assert len({*pids, os.getpid()}) == 5
    assert all(has_ended(pid) for pid in pids)


def test_the_first_line_says_how_many_ranks_over_what_on_which_device(capsys):
    launch(process_ids, ranks=3, device="cpu")
    assert capsys.readouterr().out == "3 ranks · gloo · CPU\n"


def test_output_is_labelled_and_comes_in_whole_lines(capfd):
    def talk(group):
        for i in range(50):
            sys.stdout.write(f"line {i} ")
            sys.stdout.flush()
            print(f"of rank {group.rank}")
        print("to stderr", file=sys.stderr)
        os.write(1, "from below Python: é".encode())

    launch(talk, ranks=3, device="cpu")
    lines = capfd.readouterr().out.splitlines()[1:]
    for rank in range(3):
        mine = [line.removeprefix(f"[rank {rank}] ") for line in lines if f"[rank {rank}]" in line]
        talked = [f"line {i} of rank {rank}" for i in range(50)]
        assert mine == [*talked, "to stderr", "from below Python: é"]
    assert len(lines) == 3 * 52


def test_output_is_streamed_while_the_ranks_still_run(tmp_path):
    process = run_script(
        tmp_path,
        """
        import time
        from distributed.launching import launch

        def talk(group):
            print("now")
            time.sleep(60)

        launch(talk, ranks=1)
        """,
    )
    try:
        assert process.stdout.readline() == "1 rank · gloo · CPU\n"
        assert process.stdout.readline() == "[rank 0] now\n"
    finally:
        process.kill()
        process.communicate()


def test_an_error_names_its_rank_and_its_line_and_ends_the_others_at_once():
    def stumble(group):
        if group.rank == 2:
            raise KeyError("no such thing")
        group.all_reduce(torch.ones(1))

    started = time.monotonic()
    with pytest.raises(RankError) as caught:
        launch(stumble, ranks=4)
    assert time.monotonic() - started < 30, "the others waited in a collective"
    assert caught.value.rank == 2
    assert "rank 2 raised KeyError: 'no such thing'" in str(caught.value)
    assert 'in stumble: raise KeyError("no such thing")' in str(caught.value)
    assert "test_world.py, line" in str(caught.value)


@pytest.mark.parametrize(
    ("way", "said"),
    [
        (lambda: os._exit(3), r"rank 1 exited \(3\) before it returned"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "rank 1 was killed by SIGKILL"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "rank 1 was killed by SIGSEGV"),
        (lambda: sys.exit(0), "rank 1 raised SystemExit: 0"),
    ],
)
def test_a_rank_that_dies_is_named_not_its_peers_who_lost_it(way, said):
    def die(group):
        if group.rank == 1:
            way()
        group.all_reduce(torch.ones(1))

    with pytest.raises(RankError, match=said):
        launch(die, ranks=3)


def test_a_hang_is_reported_with_the_line_of_each_rank_and_killed(capsys):
    def skip(group):
        print(os.getpid())
        if group.rank == 0:
            return
        group.all_reduce(torch.ones(1))

    with pytest.raises(TimeoutError) as caught:
        launch_with_clock(skip, ranks=3, timeout=4)
    report = str(caught.value)
    assert "3 ranks, not done after 4 s" in report
    assert "rank 0 is done" in report
    for rank in (1, 2):
        assert re.search(rf"rank {rank} waits in all_reduce at .*test_world.py, line \d+", report)
    assert "group.all_reduce(torch.ones(1))" in report
    pids = [int(pid) for pid in re.findall(r"\] (\d+)$", capsys.readouterr().out, re.MULTILINE)]
    assert len(pids) == 3
    assert all(has_ended(pid) for pid in pids)


def test_a_rank_that_computes_for_ever_is_found_and_killed():
    def spin(group):
        while True:
            pass

    with pytest.raises(TimeoutError, match=r"rank 0 stands at .*in spin"):
        launch_with_clock(spin, ranks=1, timeout=3)


def test_a_clock_of_the_tests_starts_when_the_ranks_have(monkeypatch):
    """Ranks that start slowly, as on a machine with other work, don't use up a test's time."""

    class Slow(World):
        def __init__(self, *args):
            super().__init__(*args)
            started = [psutil.Process(process.pid) for process in self.processes]
            for process in started:
                process.suspend()
                threading.Timer(4, go_on, [process]).start()

    def go_on(process):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()

    monkeypatch.setattr("distributed.launching.World", Slow)
    with pytest.raises(TimeoutError):
        launch(process_ids, ranks=2, device="cpu", timeout=3)
    assert len(launch_with_clock(process_ids, ranks=2, timeout=3)) == 2


def test_a_world_keeps_its_ranks_between_calls_and_ends_them_after():
    with world(3) as run:
        first, second = run(process_ids), run(process_ids)
        assert first == second
        assert not any(has_ended(pid) for pid in first)
    assert all(has_ended(pid) for pid in first)


def test_a_world_that_failed_has_ended_and_says_so():
    with world(2) as run:
        pids = run(process_ids)
        with pytest.raises(RankError):
            run(lambda group: 1 / 0)
        assert all(has_ended(pid) for pid in pids)
        with pytest.raises(RuntimeError, match="these ranks have ended"):
            run(process_ids)


def never(group, *args):
    raise AssertionError("no rank may start")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranks": 0}, "ranks=0: a world has 1 rank or more"),
        ({"ranks": -1}, "ranks=-1: a world has 1 rank or more"),
        ({"ranks": 2.0}, "ranks=2.0"),
        ({"ranks": True}, "ranks=True: a world has 1 rank or more"),
        ({"device": "tpu"}, "device='tpu': choose 'auto', 'cpu' or 'cuda'"),
        ({"threads": 0}, "threads=0"),
        ({"threads": 1.5}, "threads=1.5"),
        ({"threads": True}, "threads=True"),
        ({"timeout": 0}, "timeout=0"),
        ({"timeout": -3}, "timeout=-3"),
        ({"timeout": float("nan")}, "timeout=nan: give more than 0 seconds"),
        ({"timeout": float("inf")}, "timeout=inf: give more than 0 seconds, at most 365 days, or"),
    ],
)
def test_a_wrong_option_is_named_before_a_rank_starts(options, message, capsys):
    with pytest.raises(ValueError, match=re.escape(message)):
        launch(never, **options)
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_asking_for_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="no CUDA GPU; choose 'auto' or 'cpu'"):
        launch(never, device="cuda")


@pytest.mark.parametrize(
    ("fn", "args", "message"),
    [
        (lambda: None, (), r"is called as fn\(group, \*args\)"),
        (lambda group, x: None, (), "missing a required argument: 'x'"),
        (functools.partial(lambda group, x: None, x=1), (2, 3), r"<lambda> is called as fn\(group"),
        (World, (1, 2, 3), r"World is called as fn\(group, \*args\): too many positional"),
        (never, (1, threading.Lock()), "argument 1 cannot be sent to the ranks"),
    ],
)
def test_a_call_that_cannot_be_made_is_refused_before_a_rank_starts(fn, args, message, capsys):
    with pytest.raises(TypeError, match=message):
        launch(fn, *args)
    assert capsys.readouterr().out == ""


def test_a_result_that_cannot_be_sent_back_is_named():
    with pytest.raises(RankError, match="the result, of type lock, cannot be sent back"):
        launch(lambda group: threading.Lock(), ranks=2)


class Unreadable:
    def __reduce__(self):
        return int, ("not a number",)


def test_a_result_that_cannot_be_read_names_its_rank():
    with pytest.raises(RankError, match="rank 1 returned what cannot be read here: ValueError"):
        launch(lambda group: Unreadable() if group.rank == 1 else None, ranks=2)


def test_a_rank_that_stops_in_the_middle_of_its_reply_does_not_stop_the_caller():
    def reply_half(group):
        def half(write):
            def stop(self, data):
                if len(data) > 100_000:
                    write(self, data[:50_000])
                    os.kill(os.getpid(), signal.SIGSTOP)
                return write(self, data)

            return stop

        # By a pipe or by a file, however it is sent.
        Connection._send, Path.write_bytes = half(Connection._send), half(Path.write_bytes)
        return bytes(200_000)

    with pytest.raises(TimeoutError, match="not done after 3 s"):
        launch_with_clock(reply_half, ranks=1, timeout=3)


def test_a_timeout_may_be_long():
    assert launch(lambda group: group.rank, ranks=1, timeout=86_400 * 365) == [0]


def test_under_torchrun_each_launch_has_the_timeout_and_the_threads_that_it_is_given(pools):
    def launch_twice(group):
        """As if torchrun had started this rank, and another engine had made its world."""
        place = {"RANK": group.rank, "LOCAL_RANK": group.rank, "WORLD_SIZE": 2, "MASTER_ADDR": ""}

        def look(group):
            waits = timeout_of(group.backend, group.device).total_seconds()
            return waits, torch.get_num_threads(), group.all_reduce(torch.ones(1)).item()

        with mock.patch.dict(os.environ, {name: str(value) for name, value in place.items()}):
            found = launch(look, timeout=7, threads=3), launch(look, timeout=8)
            torch.set_num_threads(1)
            try:
                launch(look, threads=0)
            except ValueError as error:
                return *found, str(error).split(":")[0]

    expected = [(7.0, 3, 2.0)] * 2, [(8.0, 3, 2.0)] * 2, "threads=0"
    assert pools[2](launch_twice) == [expected] * 2


def test_where_nccl_joins_the_gpus_arrays_on_the_cpu_are_reduced_by_gloo(tmp_path):
    def join_by_a_fake_nccl(group, folder):
        importlib.import_module("torch.testing._internal.distributed.fake_pg")
        dist.GroupMember.WORLD = None  # not destroyed: a group made right after that may fail
        init = dist.init_process_group
        torch.cuda.device_count, RankSpec.device = lambda: 2, torch.device("cpu")
        dist.init_process_group = lambda name, **given: init(name.replace("nccl", "fake"), **given)
        backend, shares, how = choose_backend(2, "auto")
        joined = join(RankSpec(group.rank, 2, backend, shares, 1, folder))
        return how, joined.all_reduce(np.ones(1)).item()

    Board.create(tmp_path / "board", 2)
    found = launch(join_by_a_fake_nccl, tmp_path, ranks=2, device="cpu")
    assert found == [("nccl · a GPU each", 2.0)] * 2


def test_a_rank_cannot_launch_ranks():
    with pytest.raises(RankError, match="a rank cannot launch ranks of its own"):
        launch(lambda group: launch(process_ids), ranks=2)


def test_large_arguments_and_results_arrive_whole():
    x = torch.arange(3_000_000)
    for result in launch(lambda group, x: x + group.rank, x, ranks=2):
        assert result.shape == x.shape
    assert result[-1] == x[-1] + 1


@pytest.mark.slow
def test_a_script_without_a_main_guard_is_not_run_again_in_the_ranks(tmp_path):
    process = run_script(
        tmp_path,
        """
        from distributed.launching import launch
        print("once")
        print(launch(lambda group: group.rank, ranks=2))
        """,
    )
    out, errors = process.communicate(timeout=60)
    assert out == "once\n2 ranks · gloo · CPU\n[0, 1]\n", errors


LONG = """
import time
from distributed.launching import launch

def sleep(group):
    import os
    print("pid", os.getpid())
    time.sleep(600)

launch(sleep, ranks=3, timeout=None)
"""


def pids_of_ranks(process) -> list[int]:
    pids: list[int] = []
    while len(pids) < 3:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        pids += [int(pid) for pid in re.findall(r"pid (\d+)", line)]
    return pids


@pytest.mark.parametrize(
    "how",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_no_rank_outlives_a_caller_that_is_interrupted_or_killed(tmp_path, how):
    process = run_script(tmp_path, LONG)
    try:
        pids = pids_of_ranks(process)
        process.send_signal(how)
        process.wait(timeout=60)
        assert soon(lambda: all(has_ended(pid) for pid in pids))
        if how == signal.SIGINT:
            assert "KeyboardInterrupt" in process.stderr.read()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_caller_that_is_killed_leaves_no_file(tmp_path, monkeypatch, request, how):
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # short: else the socket would stand elsewhere
    request.addfinalizer(lambda: shutil.rmtree(folder))
    monkeypatch.setenv("TMPDIR", str(folder))

    def files():
        return [*folder.glob("world-*"), *folder.glob("pymp-*")]

    process = run_script(tmp_path, LONG)
    try:
        pids_of_ranks(process)
        assert len(files()) == 2
        process.send_signal(how)
        process.wait(timeout=60)
        assert soon(lambda: not files())
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_process_that_was_forked_after_a_launch_launches_too(tmp_path):
    process = run_script(
        tmp_path,
        """
        import os
        from distributed.launching import launch

        def add(group):
            return group.all_reduce(__import__("torch").ones(1)).item()

        print(launch(add, ranks=2))
        child = os.fork()
        print("child" if child == 0 else "parent", launch(add, ranks=2), flush=True)
        if child:
            assert os.waitpid(child, 0)[1] == 0
        print(launch(add, ranks=1))
        """,
    )
    out, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    lines = out.splitlines()
    assert "child [2.0, 2.0]" in lines
    assert "parent [2.0, 2.0]" in lines
    assert lines.count("[1.0]") == 2


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="children are looked for by waitid")
def test_what_was_started_is_ended_and_who_started_it_still_gets_all_exit_codes(tmp_path):
    process = run_script(
        tmp_path,
        """
        import os, subprocess
        from distributed.runtime.processes import end_children

        end_children()  # there is none
        fails, runs = subprocess.Popen(["false"]), subprocess.Popen(["sleep", "600"])
        os.waitid(os.P_PID, fails.pid, os.WEXITED | os.WNOWAIT)
        end_children()
        print(fails.wait(), runs.wait())
        """,
    )
    out, errors = process.communicate(timeout=100)
    assert out == f"1 {-signal.SIGKILL}\n", errors


def test_a_process_that_a_rank_has_started_ends_with_the_call():
    def start_a_process(group, fails):
        child = subprocess.Popen(["sleep", "600"])
        print("pid", child.pid)
        assert not fails
        return child.pid

    def started(fails):
        with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(RankError):
            launch(start_a_process, fails, ranks=1, device="cpu")
        return int(re.search(r"pid (\d+)", said.getvalue())[1])

    for fails in (False, True):
        child = started(fails)
        assert soon(lambda child=child: has_ended(child))


def test_what_that_process_has_started_in_turn_ends_too():
    def start_two_generations(group):
        script = "sleep 600 & sleep 601 & echo $!; wait"
        shell = subprocess.Popen(["sh", "-c", f"({script}) & wait"], stdout=subprocess.PIPE)
        return shell.pid, int(shell.stdout.readline())

    pids = launch(start_two_generations, ranks=1, device="cpu")[0]
    assert soon(lambda: all(has_ended(pid) for pid in pids))


def test_a_flood_of_output_is_capped_and_counted(capfd):
    def flood(group):
        if group.rank == 1:
            for i in range(100_000):
                print(i)
        print("still heard")

    launch(flood, ranks=2, device="cpu")
    lines = capfd.readouterr().out.splitlines()
    assert "[rank 0] still heard" in lines
    shown = [line for line in lines if line.startswith("[rank 1]")]
    hidden = int(
        re.fullmatch(r"\[rank 1\] … and ([\d,]+) more lines", shown[-1])[1].replace(",", "")
    )
    assert len(shown) - 1 + hidden == 100_001
    assert len(shown) < 30_000


def test_ranks_that_print_without_end_are_stopped_and_the_line_is_named(capfd):
    def flood(group):
        while True:
            print("again and again")

    with pytest.raises(RankError) as caught:
        launch(flood, ranks=4, device="cpu", timeout=50)
    begin = r"rank \d printed more than 5 MB in \d+ s, so all ranks were stopped:\n  rank 0 "
    assert re.match(begin, str(caught.value))
    assert str(caught.value).count('in flood: print("again and again")') >= 1
    assert len(capfd.readouterr().out) < 4 * 300_000


def test_a_long_training_may_print_more_than_one_that_has_just_begun():
    source, sink = multiprocessing.Pipe(duplex=False)
    with source, sink:
        output = Output(0, source, Screen())
        output.size = Output.FLOOD
        assert not output.is_flood(1)
        output.size += 1
        assert output.is_flood(1)
        assert not output.is_flood(3600)


def test_what_earlier_calls_printed_does_not_count_against_the_limit(capfd):
    def chat(group):
        for i in range(200):
            print("x" * 200, i)

    with world(ranks=1, device="cpu") as run:
        for _ in range(4):
            run(chat)
    assert "more lines" not in capfd.readouterr().out


def test_a_line_without_end_is_cut_and_capped(capfd):
    def never_end_the_line(group):
        while True:
            print("x" * 100, end="")

    with pytest.raises(RankError, match="printed more than 5 MB"):
        launch(never_end_the_line, ranks=1, timeout=50)
    assert len(capfd.readouterr().out) < 200_000


def test_a_line_is_shown_when_it_ends_or_is_long_or_its_rank_ends(capfd):
    def shown(text):
        os.write(sink.fileno(), text.encode())
        output.show()
        return capfd.readouterr().out

    source, sink = multiprocessing.Pipe(duplex=False)
    with source:
        output = Output(3, source, Screen())
        assert shown("begun") == ""
        assert shown(", ended\nlast words") == "[rank 3] begun, ended\n"
        rest = "!" * (Output.LONGEST - len("last words"))
        assert shown(rest) == f"[rank 3] last words{rest}\n"
        assert shown("!" * (Output.LONGEST - 1)) == ""
        sink.close()
        assert not output.show()
        assert capfd.readouterr().out == f"[rank 3] {'!' * (Output.LONGEST - 1)}\n"
        assert output.ended


def test_a_progress_bar_of_rank_0_is_drawn_in_place_and_lines_stand_above_it(capfd):
    def work(group):
        from tqdm import tqdm

        for i in tqdm(range(4), disable=group.rank != 0, mininterval=0):
            if i == 2 and group.rank == 0:
                sys.stderr.flush()
                group.barrier()
            elif i == 2:
                group.barrier()
                print("a line")
            time.sleep(0.05)

    launch(work, ranks=2, device="cpu")
    out = capfd.readouterr().out
    states = re.split(r"[\r\n]", out)
    assert any("2/4" in state for state in states), "it was seen on the way"
    looks = [line.rsplit("\r", 1)[-1] for line in out.split("\n")]  # as a terminal shows it
    assert "[rank 1] a line" in looks
    assert sum("4/4" in line for line in looks) == 1
    assert not any("2/4" in line for line in looks)


def test_what_a_call_leaves_without_newline_is_shown_when_the_call_ends(capfd):
    with world(1, device="cpu") as run:
        run(lambda group: print("no newline", end=""))
        assert capfd.readouterr().out.endswith("[rank 0] no newline\n")


def out_of_memory(group, limits):
    """Fill a memory control group that only this rank is in, until the kernel kills it."""
    if group.rank == 1:
        as_root("sh", "-c", f"echo {os.getpid()} >{limits}/cgroup.procs")
        hoard = []
        while True:
            hoard.append(bytearray(os.urandom(1 << 20)) * 8)
    group.all_reduce(torch.ones(1))


def test_a_rank_that_the_kernel_kills_for_its_memory_is_named():
    with (
        control_group("memory", 64 << 20) as limits,
        pytest.raises(RankError, match=r"rank 1 was killed by SIGKILL .*out of memory"),
    ):
        launch(out_of_memory, limits, ranks=2, device="cpu")


def test_a_result_that_is_too_large_is_refused_with_its_size(monkeypatch):
    def return_much(group):
        import distributed.runtime.rank

        distributed.runtime.rank.LARGEST_RESULT = 1000
        return torch.zeros(1000)

    with pytest.raises(RankError, match=r"the result, of type Tensor, has \d+ bytes, more than"):
        launch(return_much, ranks=1, device="cpu")


def test_two_launches_at_once_do_not_meet():
    answers = {}

    def one(name, ranks):
        answers[name] = launch(
            lambda group: group.all_reduce(torch.ones(1)).item(), ranks=ranks, device="cpu"
        )

    threads = [threading.Thread(target=one, args=(n, n)) for n in (2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {n: [float(n)] * n for n in (2, 3, 4)}


@pytest.mark.parametrize("ranks", [16, pytest.param(32, marks=pytest.mark.slow)])
def test_many_more_ranks_than_cores(ranks):
    sums = launch(lambda g: g.all_reduce(torch.ones(1)).item(), ranks=ranks, device="cpu")
    assert sums == [float(ranks)] * ranks


def children() -> set[int]:
    """All living descendants of this process."""
    found = psutil.Process().children(recursive=True)
    return {child.pid for child in found if not has_ended(child.pid)}


@pytest.mark.parametrize("launches", [21, pytest.param(200, marks=pytest.mark.slow)])
def test_launches_leak_no_process_no_descriptor_no_file_no_shared_memory(
    tmp_path, monkeypatch, launches
):
    quick = lambda group: os.getpid()  # noqa: E731  by value: no rank imports this module
    launch(quick, ranks=2, device="cpu")  # the fork server and its pipes stay, once
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = psutil.Process().num_fds(), children(), threading.active_count()
    named = shared_memory()
    for i in range(launches):
        if i % 20:
            launch(quick, ranks=2, device="cpu")
        else:
            with pytest.raises(RankError):
                launch(lambda group: 1 / 0, ranks=2, device="cpu")
    assert shared_memory() <= named, "what was let go of meanwhile may be gone"
    after = psutil.Process().num_fds(), children(), threading.active_count()
    assert after == before
    assert not [*tmp_path.iterdir()]


def test_a_rank_looks_for_garbage_but_not_among_what_was_imported_before_it():
    def counted(group):
        return gc.isenabled(), gc.get_freeze_count(), len(gc.get_objects())

    for looks, kept, own in launch(counted, ranks=2, device="cpu"):
        assert looks
        assert kept > 10 * own


def test_a_rank_computes_with_one_thread_unless_told_otherwise():
    def of_torch_and_numpy(group):
        blas = ThreadpoolController().select(user_api="blas").info()  # none: Apple's, on macOS
        return {torch.get_num_threads(), *(library["num_threads"] for library in blas)}

    assert launch(of_torch_and_numpy, ranks=2) == [{1}, {1}]
    assert launch(of_torch_and_numpy, ranks=2, threads=3) == [{3}, {3}]


def test_ranks_have_the_folder_and_the_environment_that_the_caller_has_now(tmp_path, monkeypatch):
    launch(process_ids, ranks=1)  # the fork server is older than what follows
    monkeypatch.setenv("SET_LATER", "yes")
    monkeypatch.delenv("HOME")
    monkeypatch.chdir(tmp_path)

    def look(group):
        return os.environ.get("SET_LATER"), os.environ.get("HOME"), os.getcwd()

    assert launch(look, ranks=1) == [("yes", None, str(tmp_path))]


def listening_addresses(group) -> set[str]:
    """The addresses on which this rank's sockets listen, from the kernel's own table."""
    sockets = psutil.Process().net_connections("tcp")
    return {one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN}


def test_ranks_listen_on_the_loopback_interface_only():
    def look(group):
        group.all_reduce(torch.ones(1))
        return listening_addresses(group)

    loopback = {"127.0.0.1", "::1"}
    found = set().union(*launch(look, ranks=3, device="cpu"))
    assert found
    assert found <= loopback


def test_a_rank_that_is_stopped_for_good_does_not_stop_the_caller():
    def stop(group):
        if group.rank == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        group.all_reduce(torch.ones(1))

    with pytest.raises(TimeoutError, match="rank 1 waits in all_reduce"):
        launch_with_clock(stop, ranks=2, timeout=4)


def test_work_that_a_rank_left_in_a_thread_is_finished(tmp_path):
    def write_later(group, file):
        def write():
            time.sleep(0.3)
            file.write_text("written")

        threading.Thread(target=write).start()

    launch(write_later, tmp_path / "file", ranks=1, device="cpu")
    assert (tmp_path / "file").read_text() == "written"


@pytest.mark.slow
def test_a_thread_that_never_ends_is_told_of_and_killed(capsys):
    def leave_a_thread(group):
        threading.Thread(target=time.sleep, args=[600]).start()
        return os.getpid()

    (pid,) = launch(leave_a_thread, ranks=1, device="cpu")
    assert "rank 0 returned, but a thread of it did not end: killed" in capsys.readouterr().out
    assert has_ended(pid)
