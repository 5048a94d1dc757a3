"""A running book server for tests: `with running_server(html) as server:` … `server.open_url`."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import parse_qs, urlsplit

# Runs a module as `python -m` does, and ends when its standard input does. The other end of that
# pipe belongs to the tests, so it is closed even if they are killed.
WITH_THE_TESTS = """
import os, runpy, signal, sys, threading

def end_with_them():
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=end_with_them, daemon=True).start()
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@dataclass
class Server:
    """The server as a reader meets it; its first line has been read, so it answers."""

    printed_url: str  # with the token, and with a host name that a browser knows, if not Python
    process: subprocess.Popen[str]
    log: IO[str]

    @property
    def open_url(self) -> str:
        """The printed address, by the number of this machine."""
        parts = urlsplit(self.printed_url)
        return parts._replace(netloc=f"127.0.0.1:{parts.port}").geturl()

    @property
    def origin(self) -> str:
        parts = urlsplit(self.open_url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def prefix(self) -> str:
        """What all paths of the book begin with, without the last slash."""
        return urlsplit(self.open_url).path.rstrip("/")

    @property
    def url(self) -> str:
        return self.origin + self.prefix

    @property
    def port(self) -> int:
        port = urlsplit(self.open_url).port
        assert port is not None
        return port

    @property
    def token(self) -> str:
        return parse_qs(urlsplit(self.open_url).query)["token"][0]

    @property
    def stderr(self) -> str:
        self.log.seek(0)
        return self.log.read()


@contextmanager
def running_server(
    html: Path,
    options: Sequence[str] = ("--no-browser", "--kernels", "99"),  # pages of earlier tests linger
    env: Mapping[str, str] | None = None,
    port: int = 0,
    warm: bool = False,  # few tests need torch, and importing it takes most of a kernel's start
) -> Iterator[Server]:
    """Serve `html`, by default on a free port; at the end the server is stopped, or killed.

    `env` is added to the environment.
    """
    # ipykernel looks for pytest's mark and then no longer shows what child processes print
    inherited = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
    command = [sys.executable, "-c", WITH_THE_TESTS, "playground.server", "--html", str(html)]
    command += ["--port", str(port), "--warm" if warm else "--no-warm"]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*command, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=inherited | dict(env or {}),
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            server = Server(line.removeprefix("Open ").strip(), process, log)
            assert line.startswith("Open http://"), f"said {line!r}: {server.stderr}"
            yield server
        finally:
            process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            process.stdout.close()
