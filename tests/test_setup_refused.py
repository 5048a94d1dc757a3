"""What installing says while it downloads, when it is stopped, and when an index refuses it."""

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from plain import Quiet, QuietPages, serving
from requirements import install
from rights import as_root
from waiting import soon
from wheels import write_wheel

ROOT = Path(install.__file__).parents[1]
LOG = "_build/pip.log"


def always(status: int) -> type[BaseHTTPRequestHandler]:
    class Refuses(Quiet):
        def do_GET(self):
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_CONNECT = do_GET

    return Refuses


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with the set-up alone, whose requirements are one package, `asked`."""
    folder = tmp_path / "clone/requirements"
    folder.mkdir(parents=True)
    (folder / "install.py").write_bytes((ROOT / "requirements/install.py").read_bytes())
    (folder / "these.txt").write_text("asked\n")
    (folder / "constraints.txt").touch()
    (tmp_path / "clone/requirements.txt").write_bytes((ROOT / "requirements.txt").read_bytes())
    return tmp_path / "clone"


INSTALL = [sys.executable, "requirements/install.py", "requirements/these.txt"]


def environ(clone: Path, **more: str) -> dict[str, str]:
    """Of someone whose pip has no settings but these, and installs into a folder of the test."""
    mine = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().endswith(("_PROXY", "CA_BUNDLE")) and not name.startswith("PIP_")
    }
    target = {"PIP_TARGET": str(clone.parent / "installed"), "PIP_NO_CACHE_DIR": "1"}
    fixed = {"PIP_CONFIG_FILE": os.devnull, "PYTHONPATH": "", "PIP_RETRIES": "0"}
    return mine | target | fixed | more


def installing(clone: Path, **more: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        INSTALL, cwd=clone, env=environ(clone, **more), capture_output=True, text=True, timeout=60
    )


BEGIN, END = "pip could not install requirements/these.txt: ", f" (details: {LOG})\n"
COPY = "set PIP_INDEX_URL (for PyTorch, TORCH_INDEX) to a copy of the index"
REFUSALS = {
    401: "{host} asks for a name and a password (401): "
    f"{COPY} that contains them, as in https://name:password@host/path",
    403: f"{{host}} refuses this machine (403): {COPY} that you can reach",
}
PROXY = (
    "the proxy asks for a name and a password (407). Put them into its address: "
    "HTTPS_PROXY=http://name:password@host:port"
)


@pytest.mark.parametrize("status", REFUSALS)
def test_an_index_that_refuses_is_named_with_the_way_out(clone: Path, status: int) -> None:
    with serving(always(status)) as url:
        done = installing(clone, PIP_INDEX_URL=f"{url}/simple")
    assert done.returncode == 1
    host = url.removeprefix("http://")
    assert done.stderr == BEGIN + REFUSALS[status].format(host=host) + END
    assert f"{status} Client Error" in (clone / LOG).read_text()


def test_a_proxy_that_asks_for_a_password_is_named_with_the_way_out(clone: Path) -> None:
    with serving(always(407)) as url:
        done = installing(clone, PIP_INDEX_URL="https://index.invalid/simple", HTTPS_PROXY=url)
    assert done.stderr == BEGIN + PROXY + END


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    if not shutil.which("openssl"):
        (pytest.fail if os.environ.get("CI") else pytest.skip)("openssl isn't installed")
    path = tmp_path / "own.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", path, "-out", tmp_path / "cert"],
        check=True, capture_output=True,
    )  # fmt: skip
    path.write_text(path.read_text() + (tmp_path / "cert").read_text())
    return path


def test_a_certificate_of_ones_own_network_is_named_with_the_way_out(
    clone: Path, certificate: Path
) -> None:
    index = clone.parent / "index"
    (index / "asked").mkdir(parents=True)
    write_wheel(index / "asked", "asked")
    files = partial(QuietPages, directory=index)
    with serving(files, certificate) as url:
        done = installing(clone, PIP_INDEX_URL=url)
        assert done.stderr == (
            f"{BEGIN}pip can't verify the certificate of {url.removeprefix('https://')} "
            "(self-signed certificate). If your network inspects TLS, set PIP_CERT to the file "
            f"with its root certificate, or {COPY} that needs none{END}"
        )
        done = installing(clone, PIP_INDEX_URL=url, PIP_CERT=str(certificate))
        assert done.returncode == 0, done.stderr


def index_with_large_wheel(clone: Path) -> Path:
    """An index whose only package, which the clone asks for, has 8 MB."""
    index = clone.parent / "index"
    (index / "asked").mkdir(parents=True)
    with zipfile.ZipFile(write_wheel(index / "asked", "asked"), "a") as archive:
        archive.writestr("asked/data", os.urandom(8_000_000))
    return index


def test_a_full_folder_for_temporary_files_is_named_with_the_way_out(clone: Path) -> None:
    index, small = index_with_large_wheel(clone), clone.parent / "small"
    small.mkdir()
    as_root("mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(small))
    try:
        with serving(partial(QuietPages, directory=index)) as url:
            done = installing(clone, PIP_INDEX_URL=url, TMPDIR=str(small))
    finally:
        as_root("umount", str(small))
    begin = f"{BEGIN}a disk is full. For temporary files, {small} has 0.0 GB free (set TMPDIR to"
    assert done.stderr.startswith(begin)
    assert done.stderr.count("\n") == 1


def test_too_small_a_folder_for_temporary_files_is_found_before_the_download(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usage = install.shutil.disk_usage(ROOT)
    free = {tmp_path: 1e9, ROOT: 1e12}
    monkeypatch.setattr(install.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(
        install.shutil, "disk_usage", lambda path: usage._replace(free=free[Path(path)])
    )
    install.check_room("cpu")
    needed = f"{install.size_of('cuda').download / 1e9:.1f} GB"
    with pytest.raises(SystemExit, match=f"Less than {needed} free in {tmp_path}, .* set TMPDIR"):
        install.check_room("cuda")


class Slow(QuietPages):
    """Sends the first half of a wheel, and the rest when it `may_end`, or after a second."""

    may_end, patience = threading.Event(), 1

    def copyfile(self, source, outputfile):
        data = source.read()
        outputfile.write(data[: len(data) // 2])
        outputfile.flush()
        if self.path.endswith(".whl"):
            self.may_end.wait(self.patience)
        with suppress(ConnectionError):
            outputfile.write(data[len(data) // 2 :])


def test_a_download_shows_how_far_it_is(clone: Path) -> None:
    index = index_with_large_wheel(clone)
    reader, terminal = pty.openpty()
    with serving(partial(Slow, directory=index)) as url:
        process = subprocess.Popen(
            INSTALL, cwd=clone, env=environ(clone, PIP_INDEX_URL=url), stdout=terminal
        )
        os.close(terminal)
        shown = b""
        while True:
            try:
                shown += os.read(reader, 1 << 16)
            except OSError:  # all of the terminal's writers are gone
                break
        assert process.wait(20) == 0
    os.close(reader)
    states = re.findall(rb"\r\x1b\[K  asked-1\S+: (\d) of 8 MB \((\d) MB so far\)", shown)
    assert (b"4", b"4") in states
    assert states[-1] == (b"8", b"8")
    assert shown.endswith(b"\r\x1b[K"), "the line is gone at the end"
    assert b"Progress" not in (clone / LOG).read_bytes()


def test_ctrl_c_ends_in_one_line_and_keeps_the_log(clone: Path) -> None:
    index = index_with_large_wheel(clone)

    class Endless(Slow):
        may_end, patience = threading.Event(), 60

    def log() -> str:
        return (clone / LOG).read_text() if (clone / LOG).exists() else ""

    with serving(partial(Endless, directory=index)) as url:
        process = subprocess.Popen(
            INSTALL, cwd=clone, env=environ(clone, PIP_INDEX_URL=url), start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert soon(lambda: "Downloading asked-1" in log())
            os.killpg(process.pid, signal.SIGINT)
            _, said = process.communicate(timeout=15)
        finally:
            process.kill()
            Endless.may_end.set()
    assert said == (
        f"Stopped: the same command goes on with the downloads that pip has kept ({LOG})\n"
    )
    assert process.returncode != 0
    assert "Downloading asked-1" in log()


@pytest.mark.parametrize(
    ("given", "cache", "certificates"),
    [
        ({"HOME": str(ROOT)}, "", ""),
        ({"HOME": "/proc/none"}, f"{ROOT}/_build/npm", ""),
        ({"HOME": "/proc/none", "npm_config_cache": "/a/cache"}, "/a/cache", ""),
        ({"HOME": str(ROOT), "PIP_CERT": "/ours.pem"}, "", "/ours.pem"),
    ],
)
def test_npm_takes_a_cache_that_can_be_written_and_pips_certificates(
    tmp_path: Path, given: dict[str, str], cache: str, certificates: str
) -> None:
    npm = tmp_path / "npm"
    npm.write_text('#!/bin/sh\necho "cache=$npm_config_cache from=$NODE_EXTRA_CA_CERTS"\n')
    npm.chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", npm_recipe()], cwd=ROOT, capture_output=True, text=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"} | given,
    )  # fmt: skip
    assert f"cache={cache} from={certificates}\n" in done.stdout, done.stderr


def npm_recipe() -> str:
    """What `make` runs to install the web parts."""
    target = "book/web/node_modules/.installed"
    command = ["make", "-n", "-W", "book/web/package.json", "-o", ".venv/.installed", target]
    mine = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=mine, check=True)
    (body,) = re.findall(r"\{ (.*?if command.*?fi;) \}", done.stdout, re.DOTALL)
    return body
