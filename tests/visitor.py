"""A reader of the book without a browser: cookies, the page's requests, a kernel's channels."""

import http.client
import json
import re
import time
import uuid
from contextlib import closing, suppress
from typing import Any

import pytest
import websocket
from serving import Server

from playground.server.app import main

PATIENCE = 60  # s; long, because a slow machine is not a failure
ON_ITS_WAY = 5  # s for a reply whose kernel is idle already
Reply = tuple[int, dict[str, str], str]


def request(
    port: int, method: str, target: str, body: str | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, http.client.HTTPMessage, str]:  # fmt: skip
    """What a server on this machine answers. The target goes out exactly as given."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    with closing(connection):
        connection.request(method, target, body, headers or {})
        reply = connection.getresponse()
        return reply.status, reply.headers, reply.read().decode(errors="replace")


class Browser:
    """What of a browser matters here: it keeps cookies, and a page can send the XSRF token back.

    Paths are those below the book's own address.
    """

    def __init__(self, server: Server, cookies: dict[str, str] | None = None) -> None:
        self.server = server
        self.cookies = dict(cookies or {})

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Reply:
        sent = {"Cookie": self.cookie_header} | (headers or {})
        data = None if body is None else json.dumps(body)
        target = self.server.prefix + path
        status, said, text = request(self.server.port, method, target, data, sent)
        for cookie in said.get_all("Set-Cookie") or []:
            name, value = cookie.split(";")[0].split("=", 1)
            self.cookies[name] = value
        return status, dict(said), text

    def get(self, path: str, headers: dict[str, str] | None = None) -> Reply:
        return self.ask("GET", path, headers=headers)

    def api(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """A request of the page's own script."""
        headers = {"X-XSRFToken": self.cookies.get("_xsrf", ""), "Origin": self.server.origin}
        status, _, text = self.ask(method, path, body, headers)
        return status, json.loads(text) if text else None

    @property
    def cookie_header(self) -> str:
        return "; ".join(f"{name}={value}" for name, value in self.cookies.items())


def logged_in(server: Server) -> Browser:
    browser = Browser(server)
    assert browser.get(f"/?token={server.token}")[0] == 302
    assert browser.get("/")[0] == 200
    return browser


class Kernel:
    """A session as the page holds it: made through REST, spoken to through the WebSocket."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        path = f"data_parallelism-{uuid.uuid4().hex}"
        kernel = {"name": "python3"}
        body = {"path": path, "name": path, "type": "notebook", "kernel": kernel}
        status, self.session = browser.api("POST", "/api/sessions", body)
        assert status == 201, self.session
        self.id: str = self.session["kernel"]["id"]
        self.socket = self.connect()

    def connect(self) -> websocket.WebSocket:
        return open_channels(self.browser, self.id, {"Origin": self.browser.server.origin})

    def reconnect(self) -> None:
        """After a restart, as a page does it: ask until the new kernel is heard on its channels.

        Until then a run may start before anybody listens to what it says.
        """
        self.socket.close()
        self.socket = self.connect()
        self.socket.settimeout(1)
        deadline = time.monotonic() + PATIENCE
        asked: set[str] = set()
        while time.monotonic() < deadline:
            asked.add(self.ask("kernel_info_request", {}))
            with suppress(websocket.WebSocketTimeoutException):
                while True:
                    message = json.loads(self.socket.recv())
                    is_ours = message["parent_header"].get("msg_id") in asked
                    if is_ours and message["channel"] == "iopub":
                        self.socket.settimeout(PATIENCE)
                        return
        raise TimeoutError("no kernel came back")

    def ask(self, kind: str, content: dict[str, Any]) -> str:
        name = uuid.uuid4().hex
        header = {"msg_id": name, "msg_type": kind, "session": name, "version": "5.3"}
        message = {"header": header, "content": content, "parent_header": {}, "metadata": {}}
        self.socket.send(json.dumps(message | {"channel": "shell", "buffers": []}))
        return name

    def send(self, code: str) -> str:
        content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False}
        return self.ask("execute_request", content)

    def wait(self, name: str) -> dict[str, str]:
        """What the cell printed, and its reply's status: "none" if an interrupt dropped that."""
        said = {"stdout": "", "stderr": "", "status": ""}
        idle = False
        deadline = time.monotonic() + PATIENCE
        while not (idle and said["status"]):
            if time.monotonic() > deadline:
                raise TimeoutError(said)
            try:
                self.socket.settimeout(ON_ITS_WAY if idle else PATIENCE)
                message = json.loads(self.socket.recv())
            except websocket.WebSocketTimeoutException:
                if not idle:
                    raise
                return said | {"status": "none"}
            finally:
                self.socket.settimeout(PATIENCE)
            if message["parent_header"].get("msg_id") != name:
                continue
            content, kind = message["content"], message["header"]["msg_type"]
            if kind == "stream":
                said[content["name"]] += content["text"]
            elif kind == "execute_reply":
                said["status"] = content.get("ename") or content["status"]
            elif kind == "status":
                idle = content["execution_state"] == "idle"
        return said

    def wait_for_output(self, pattern: str) -> str:
        text = ""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            message = json.loads(self.socket.recv())
            if message["header"]["msg_type"] == "stream":
                text += message["content"]["text"]
            if found := re.search(pattern, text):
                return found[1]
        raise TimeoutError(text)

    def run(self, code: str) -> str:
        said = self.wait(self.send(code))
        assert said["status"] == "ok", said
        return said["stdout"].strip()


def open_channels(browser: Browser, kernel: str, headers: dict[str, str]) -> websocket.WebSocket:
    url = f"{browser.server.url}/api/kernels/{kernel}/channels".replace("http:", "ws:")
    return websocket.create_connection(
        f"{url}?session_id={uuid.uuid4()}",
        header=[f"{name}: {value}" for name, value in headers.items()],
        cookie=browser.cookie_header,
        suppress_origin=True,
        timeout=PATIENCE,
    )


def refused(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int | str | None, str]:
    """Exit status and message of a server that cannot start."""
    with pytest.raises(SystemExit) as end:
        main(["--no-browser", *options])
    out, err = capsys.readouterr()
    assert out == ""
    return end.value.code, err
