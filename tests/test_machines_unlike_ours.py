"""Machines, settings and folders that ours have not: what a reader's may have."""

import itertools
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from serving import running_server
from test_setup import clone, make, said  # noqa: F401
from test_setup_torch import Machine, machine  # noqa: F401
from visitor import Kernel, logged_in, request

from distributed import launch
from distributed.runtime.report import Output, Screen
from playground.build.digest import cells_of
from playground.build.toc import pages_in_order
from playground.server import app

ROOT = Path(__file__).parents[1]


def python(code, tmp_path, custom="", **env):
    (tmp_path / "custom").mkdir(exist_ok=True)
    (tmp_path / "custom/sitecustomize.py").write_text(custom)
    path = f"{tmp_path / 'custom'}:{ROOT / 'code'}"
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120,
        env=os.environ | {"PYTHONPATH": path} | env,
    )  # fmt: skip


ARM = "import platform\nplatform.machine = lambda: 'aarch64'\n"
MAC = f"{ARM}import os\nif hasattr(os, 'memfd_create'): del os.memfd_create\n"


def test_where_nobody_says_whose_a_connection_is_the_reader_is_heard(tmp_path):
    html = tmp_path / "site/html"
    html.mkdir(parents=True)
    (html / "index.html").write_text("The book")
    code = f"""
    from pathlib import Path
    from playground.server import app, peers

    peers.TABLES = (Path("/nowhere/tcp"), Path("/nowhere/tcp6"))  # as on macOS
    app.main(["--html", {str(html)!r}, "--port", "0", "--no-browser"])
    """
    server = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    try:
        url = urlsplit(server.stdout.readline().removeprefix("Open ").strip())
        status, _, _ = request(url.port, "GET", f"{url.path}?{url.query}")
        assert status == 302
    finally:
        server.terminate()
        server.communicate()


@pytest.mark.parametrize(
    "custom", [pytest.param(ARM, id="arm"), pytest.param(MAC, id="mac", marks=pytest.mark.slow)]
)
def test_the_module_of_shared_memory_shows_itself_on_other_machines(custom, tmp_path):
    done = python("from distributed import shared_memory as s; s.main(2, 100)", tmp_path, custom)
    assert done.returncode == 0, done.stderr[-300:]


@pytest.mark.slow
def test_memory_can_be_shared_on_a_mac(tmp_path):
    code = """
    from distributed import launch
    from distributed.runtime.shared_buffers import Shared, SharedBarrier

    def f(group):
        shared, barrier = Shared(group, 8), SharedBarrier(group)
        shared.mine[:] = group.rank + 1
        barrier.wait()
        return [int(buffer[0]) for buffer in shared.buffers]

    print(launch(f, ranks=2))
    """
    done = python(code, tmp_path, MAC, TMPDIR=str(tmp_path))
    assert done.stdout.endswith("[[1, 2], [1, 2]]\n"), done.stderr[-300:]
    assert not [*tmp_path.glob("shared-*")]


def test_no_page_needs_shared_memory_for_something_else():
    pages = [ROOT / f"{page}.md" for page in pages_in_order(ROOT) if "shared_memory" not in page]
    assert not [p.stem for p in pages if "SharedGroup(" in cells_of(p)]


def test_a_machine_with_little_memory_free_runs_every_page(tmp_path, monkeypatch):
    (tmp_path / "index.html").touch()
    asked = []

    def stop(html, sockets, browser, kernels, limits, *rest):
        asked.append(limits)
        [one.close() for one in sockets]
        raise SystemExit

    monkeypatch.setattr(app, "make_server", stop)
    monkeypatch.setattr(app, "on_stop", lambda do: None)
    monkeypatch.setenv("IPYTHONDIR", "")  # `main` sets its own, for its process
    for free in (2.4e9, 24e9):
        monkeypatch.setattr(app, "memory_of_machine", lambda free=free: free)
        with pytest.raises(SystemExit):
            app.main(["--html", str(tmp_path), "--port", "0", "--no-browser"])
    assert [limits.kernel for limits in asked] == [pytest.approx(1.5e9), pytest.approx(9e9)]


def environment_of(clone, code):  # noqa: F811
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", clone / ".venv"], check=True)
    (packages,) = (clone / ".venv").glob("lib/python*/site-packages")
    (packages / "book.pth").write_text(f"{code}\n")
    (clone / ".venv/.installed").touch()


def test_an_environment_that_was_copied_or_moved_here_is_made_anew(clone, tmp_path):  # noqa: F811
    environment_of(clone, clone / "code")
    assert "install.py" not in make(clone, "-n", "outputs").stdout
    shutil.rmtree(clone / ".venv")
    environment_of(clone, ROOT / "code")
    assert "python requirements/install.py" in make(clone, "-n", "outputs").stdout


def test_an_environment_whose_python_is_gone_is_made_anew(clone):  # noqa: F811
    environment_of(clone, clone / "code")
    for name in (clone / ".venv/bin").glob("python*"):
        name.unlink()
        name.symlink_to("/nowhere/python")
    assert "python requirements/install.py" in make(clone, "-n", "outputs").stdout


def test_a_copy_with_a_blank_in_its_name_is_no_matter(clone):  # noqa: F811
    for name in ("code/distributed/dp copy.py", "book/my notes.md", "exercises/my try/a.py"):
        (clone / name).parent.mkdir(exist_ok=True)
        (clone / name).touch()
    done = make(clone, "-n", "serve")
    assert done.returncode == 0, done.stderr


def test_without_a_screen_no_browser_takes_the_terminal(tmp_path):
    html = tmp_path / "site/html"
    html.mkdir(parents=True)
    (html / "index.html").touch()
    (tmp_path / "w3m").write_text(f"#!/bin/sh\necho $1 >{tmp_path}/opened\n")
    (tmp_path / "w3m").chmod(0o755)
    none = dict.fromkeys(("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"), "")
    env = none | {"TERM": "xterm", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with running_server(html, ("--browser", "--no-spare"), env):
        time.sleep(2)
    assert not (tmp_path / "opened").exists()


def test_pip_installs_here_whatever_the_reader_has_set(machine):  # noqa: F811
    done = machine.install("Linux x86_64", PIP_USER="1")
    assert done.returncode == 0, done.stderr


def test_no_other_pythons_packages_come_first(clone, monkeypatch):  # noqa: F811
    monkeypatch.setenv("PYTHONPATH", "/opt/modules/numpy")
    monkeypatch.setenv("PYTHONHOME", "/usr")
    (clone / "more.mk").write_text('show:\n\t@echo "[$$PYTHONPATH$$PYTHONHOME]"\n')
    assert make(clone, "-f", "Makefile", "-f", "more.mk", "show").stdout == "[]\n"


def test_what_the_reader_has_set_for_ipython_is_for_other_kernels(tmp_path):
    html = tmp_path / "site/html"
    html.mkdir(parents=True)
    (html / "index.html").touch()
    profile = tmp_path / ".ipython/profile_default"
    (profile / "startup").mkdir(parents=True)
    (profile / "startup/mine.py").write_text("from numpy import *")
    (profile / "ipython_config.py").write_text("c.InteractiveShell.ast_node_interactivity = 'all'")
    with running_server(html, ("--no-browser",), {"HOME": str(tmp_path)}) as server:
        kernel = Kernel(logged_in(server))
        said = kernel.run("print(sum.__module__, get_ipython().ast_node_interactivity)")
        kernel.socket.close()
    assert said == "builtins last_expr"


def test_a_trace_in_a_cell_prints_no_lines_of_pytorchs_own_log(tmp_path):
    html = tmp_path / "site/html"
    html.mkdir(parents=True)
    (html / "index.html").touch()
    with running_server(html, ("--no-browser",)) as server:
        kernel = Kernel(logged_in(server))
        said = kernel.run("import os; print(int(os.environ['KINETO_LOG_LEVEL']) > 5)")
        kernel.socket.close()
    assert said == "True"


def test_where_the_machines_npm_cannot_another_one_comes(clone, tmp_path):  # noqa: F811
    (clone / ".venv/bin").mkdir(parents=True)
    for path, line in (
        ("npm", "exit 1"),
        (clone / ".venv/bin/python", f"echo $@ >>{tmp_path}/log"),
    ):
        (tmp_path / path).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / path).chmod(0o755)
    (clone / ".venv/.installed").touch()
    (clone / "book/web/node_modules").mkdir()
    done = make(clone, "book/web/node_modules/.installed", path=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert "install.py requirements/node.txt" in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_a_long_folder_for_temporary_files_is_no_matter(tmp_path):
    long = tmp_path / ("x" * 80)
    long.mkdir()
    code = "from distributed import launch; print(launch(lambda g: g.rank, ranks=2))"
    done = python(code, tmp_path, TMPDIR=str(long))
    assert done.stdout.endswith("[0, 1]\n"), done.stderr[-300:]
    assert not [*long.glob("pymp-*")]


def test_pages_run_in_the_kernel_of_this_python(tmp_path):
    spec = tmp_path / "kernels/python3/kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text('{"argv": ["/opt/other/python"], "display_name": "mine", "language": "python"}')
    page = tmp_path / "book/page.md"
    page.parent.mkdir()
    page.write_text("# Page\n\n```{code-cell} python\n1\n```\n")
    (tmp_path / "_toc.yml").write_text("format: jb-book\nroot: book/page\n")
    shutil.copy(ROOT / "_config.yml", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "playground.build.execute", "--root", tmp_path],
        env=os.environ | {"JUPYTER_PATH": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-300:]


def test_an_error_without_end_is_shown_by_its_ends():
    def calls_itself(group):
        return calls_itself(group)

    with pytest.raises(RuntimeError) as error:
        launch(calls_itself, ranks=1)
    assert str(error.value).count("\n") < 30


@pytest.mark.slow
def test_a_fork_server_that_was_killed_is_started_anew(tmp_path):
    code = """
    import os, signal, time
    from multiprocessing import forkserver
    from distributed import launch
    launch(lambda group: 1, ranks=1)
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
    time.sleep(0.5)
    print(launch(lambda group: group.rank, ranks=1))
    """
    done = python(code, tmp_path)
    assert done.stdout.endswith("[0]\n"), done.stderr[-300:]


@pytest.mark.skipif(not shutil.which("node"), reason="needs node")
def test_a_browser_that_keeps_nothing_runs_cells_all_the_same():
    code = """
    const get = () => { throw new DOMException("Access is denied.", "SecurityError"); };
    Object.defineProperty(globalThis, "sessionStorage", { get });
    const { pressed } = await import(process.argv[1]);
    if (pressed !== null) process.exit(1);
    """
    file = ROOT / "book/_static/live-again.js"
    subprocess.run(["node", "--input-type=module", "-e", code, file], check=True)


def test_what_is_installed_needs_no_room(machine):  # noqa: F811
    assert machine.install("Linux x86_64").returncode == 0
    (machine.folder / "packages/sitecustomize.py").write_text(
        "import shutil\nfull = shutil.disk_usage('/')._replace(free=2e9)\n"
        "shutil.disk_usage = lambda path: full\n"
    )
    assert machine.install("Linux x86_64").returncode == 0
    assert "Less than" in machine.install("Linux x86_64", TORCH="cuda").stderr


def test_who_writes_without_end_is_not_read_for_ever():
    ours, theirs = os.pipe()
    with open(ours, "rb", buffering=0) as source:
        output, reads = Output(0, source, Screen()), itertools.count()
        output.show = lambda: next(reads) < 10_000
        output.end_call()
    os.close(theirs)
    assert next(reads) < 100


LIMITED = """
import threading
from playground.server import confine
confine.tasks_of_user = lambda: -confine.SPARE_TASKS - 10 * 200  # so that none more is allowed
confine.confine(200, 10**9)
thread = threading.Thread(target=print, args=["started"])
thread.start()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="others count what runs in a container")
def test_where_tasks_outside_of_a_container_count_a_kernel_can_start_some(tmp_path):
    """The limit is of a user, on the whole machine; and in a container nobody can count that."""
    user = [] if os.geteuid() else ["setpriv", "--reuid=65534", "--clear-groups"]
    done = subprocess.run([*user, sys.executable, "-c", LIMITED], capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": str(ROOT / "code")})  # fmt: skip
    assert done.stdout == "started\n", done.stderr


def test_a_build_that_was_stopped_begins_anew(clone):  # noqa: F811
    """Without its index of words Sphinx goes on with a warning, and here a warning is an error."""
    (clone / ".venv/bin").mkdir(parents=True)
    python = clone / ".venv/bin/python"
    python.write_text("#!/bin/sh\nmkdir -p _build/html\necho Built: all\n")
    python.chmod(0o755)
    for name in ("_build/.doctrees/environment.pickle", "_build/html/half.html"):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).touch()
    (clone / "_build/.machinery").touch()
    done = make(clone, "book", "-o", "_build/.machinery")
    assert done.returncode == 0, done.stderr
    assert not (clone / "_build/.doctrees").exists()
    assert not (clone / "_build/html/half.html").exists()
