"""What the book's server must do for its reader, and must refuse to everybody else."""

import asyncio
import errno
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote_plus, urlsplit

import psutil
import pytest
import websocket
from ports import free_port
from rights import SUDO, as_root
from serving import Server, running_server
from tornado.httpclient import AsyncHTTPClient
from tornado.httputil import HTTPHeaders
from tornado.netutil import bind_sockets
from tornado.web import Application, RedirectHandler
from visitor import Browser, Kernel, Reply, logged_in, open_channels, refused, request
from waiting import soon

from playground.server import address, app, peers
from playground.server.address import NotSecret, bind, kept_secret
from playground.server.app import BookLogin
from playground.server.limits import has_ended
from playground.server.pages import BookPages
from playground.server.start import transport

PAGE = "<!doctype html><html data-content_root='../'><title>Data parallelism</title>SECRET PAGE"
EVIL = {"Origin": "http://evil.example"}


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A book of a few files, with things beside and inside it that are nobody's business."""
    outside = tmp_path_factory.mktemp("site")
    outside.joinpath("private.txt").write_text("OUTSIDE")
    outside.joinpath("html-other").mkdir()
    outside.joinpath("html-other", "index.html").write_text("OUTSIDE")
    html = outside / "html"
    for folder in ("book/first_steps", "_static/empty", ".hidden"):
        html.joinpath(folder).mkdir(parents=True)
    html.joinpath("index.html").write_text("SECRET ROOT")
    html.joinpath("book/index.html").write_text("SECRET BOOK")
    html.joinpath("book/first_steps/data_parallelism.html").write_text(PAGE)
    html.joinpath("book/cells.html").write_text("<div class=cell data-live=0>SECRET CELL</div>")
    html.joinpath("_static/app.js").write_text("let secret = 1")
    html.joinpath("_static/any-worker.js").write_text("let secret = 1")
    html.joinpath("_static/style.css").write_text("body {}")
    html.joinpath("_static/plot.svg").write_text("<svg/>")
    html.joinpath(".buildinfo").write_text("OUTSIDE")
    html.joinpath(".hidden/page.html").write_text("OUTSIDE")
    html.joinpath("_static/link.txt").symlink_to(outside / "private.txt")
    html.joinpath("_static/folder").symlink_to(outside)
    return html


@pytest.fixture(scope="module")
def server(html: Path) -> Iterator[Server]:
    with running_server(html) as server:
        yield server


@pytest.fixture(scope="module")
def reader(server: Server) -> Browser:
    return logged_in(server)


@pytest.fixture
def stranger(server: Server) -> Browser:
    return Browser(server)


@pytest.fixture(scope="module")
def kernel(reader: Browser) -> Iterator[Kernel]:
    kernel = Kernel(reader)
    yield kernel
    kernel.socket.close()


# --- pages ---------------------------------------------------------------------------------------


def test_a_reader_gets_the_pages_of_the_book(reader: Browser) -> None:
    assert reader.get("/")[2] == "SECRET ROOT"
    assert reader.get("/book/")[2] == "SECRET BOOK"
    assert reader.get("/book/first_steps/data_parallelism.html?x=1")[2] == PAGE
    status, headers, _ = reader.get("/book")
    assert (status, headers["Location"]) == (301, f"{reader.server.prefix}/book/")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/index.html", "text/html; charset=utf-8"),
        ("/_static/app.js", "application/javascript"),
        ("/_static/any-worker.js", "application/javascript"),
        ("/_static/style.css", "text/css; charset=utf-8"),
        ("/_static/plot.svg", "image/svg+xml"),
    ],
)
def test_files_have_their_type_and_the_headers_that_confine_them(
    reader: Browser, path: str, kind: str
) -> None:
    status, headers, _ = reader.get(path)
    assert status == 200
    assert headers["Content-Type"] == kind
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "same-origin"
    policy = headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in policy
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "'unsafe-eval'" not in policy
    assert ("'wasm-unsafe-eval'" in policy) == path.endswith("-worker.js")
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Cache-Control"] == "no-cache"
    assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize("path", ["/index.html", "/nothing", "/login"])
def test_a_page_may_not_move_where_its_addresses_lead(reader: Browser, path: str) -> None:
    """What doesn't fall back to default-src: a <base>, which every relative address is taken from,
    and where a form is sent to."""
    policy = reader.get(path)[1]["Content-Security-Policy"]
    assert {"base-uri 'none'", "form-action 'self'"} <= {*policy.split("; ")}


@pytest.mark.parametrize("path", ["/nothing", "/nothing/at/all"])
def test_a_page_that_is_missing_leads_home_from_any_depth(reader: Browser, path: str) -> None:
    status, _, page = reader.get(path)
    assert status == 404
    assert f'<a href="{reader.server.prefix}/">To the book</a>' in page


def test_head_has_no_body_and_other_methods_are_refused(reader: Browser) -> None:
    status, headers, body = reader.ask("HEAD", "/book/index.html")
    assert (status, headers["Content-Length"], body) == (200, str(len("SECRET BOOK")), "")
    xsrf = {"X-XSRFToken": reader.cookies["_xsrf"]}
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        assert reader.ask(method, "/book/index.html", headers=xsrf)[0] == 405


def test_a_rebuilt_page_shows_at_once_and_an_unchanged_one_is_not_sent_again(
    reader: Browser, html: Path
) -> None:
    page = html / "rebuilt.html"
    page.write_text("first")
    _, headers, _ = reader.get("/rebuilt.html")
    seen = {"If-None-Match": headers["Etag"]}
    assert reader.get("/rebuilt.html", seen)[0] == 304
    page.write_text("again")
    status, _, body = reader.get("/rebuilt.html", seen)
    assert (status, body) == (200, "again")


@pytest.mark.parametrize(
    "path",
    [
        "/../private.txt",
        "/book/../../private.txt",
        "/%2e%2e/private.txt",
        "/%2E%2E/private.txt",
        "/book/%2e%2e/%2e%2e/private.txt",
        "/..%2fprivate.txt",
        "/book/..%2f..%2fprivate.txt",
        "/%2e%2e%2fprivate.txt",
        "/..%5cprivate.txt",
        "/..\\private.txt",
        "/%252e%252e/private.txt",
        "/%252e%252e%252fprivate.txt",
        "/..%252fprivate.txt",
        "/../html-other/index.html",
        "/%2e%2e/html-other/",
        "//etc/passwd",
        "/%2fetc/passwd",
        "///etc/passwd",
        "/etc/passwd",
        "/book//etc/passwd",
        "/file:///etc/passwd",
        "/./.buildinfo",
        "/.buildinfo",
        "/%2ebuildinfo",
        "/.hidden/page.html",
        "/book/./index.html",
        "/_static/link.txt",
        "/_static/folder/private.txt",
        "/_static/folder/",
        "/_static/folder/html-other/index.html",
        "/_static/",
        "/_static/empty/",
        "/index.html%00",
        "/%00",
        "/index.html%00.js",
        "/..%c0%afprivate.txt",
        "/%ff",
        "/" + "a/" * 2000,
        "/" + "a" * 5000,
        "http://127.0.0.1/private.txt",
        "http://evil.example/",
    ],
)
def test_nothing_outside_the_book_is_served(reader: Browser, path: str) -> None:
    port = reader.server.port
    host = path.split("/")[2] if path.startswith("http:") else "127.0.0.1"
    headers = {"Cookie": reader.cookie_header, "Host": f"{host}:{port}"}
    target = path if path.startswith("http:") else reader.server.prefix + path
    status, _, body = request(port, "GET", target, headers=headers)
    assert status in (400, 403, 404)
    assert not re.search("OUTSIDE|SECRET|root:|private", body)


@pytest.mark.parametrize(
    "path",
    [
        *("/files/", "/files/x", "/view/x", "/nbconvert/html/x", "/static/favicon.ico", "/metrics"),
        *("/custom/custom.js", "/tree", "/lab", "/logout", "/terminals/1", "/favicon.ico"),
        *("/api/contents", "/api/contents/etc", "/api/config/x", "/api/terminals", "/api/shutdown"),
    ],
)
def test_what_a_book_does_not_need_is_not_there(reader: Browser, path: str) -> None:
    assert reader.get(path)[0] == 404


# --- who may ask ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/index.html", "/book/", "/book", "/book/first_steps/data_parallelism.html"),
        *("/nothing", "/_static/app.js", "/_static/", "/../private.txt"),
        *("/?token=wrong", "/?token=", "/?ticket="),
    ],
)
def test_a_stranger_sees_nothing_of_the_book(stranger: Browser, path: str) -> None:
    for method in ("GET", "HEAD"):
        status, headers, body = stranger.ask(method, path)
        assert status == 302
        assert headers["Location"].startswith(f"{stranger.server.prefix}/login?next=")
        assert "secret" not in body.lower()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/status"),
        ("GET", "/api/me"),
        ("GET", "/api/resolvePath?path=/etc/passwd"),
        ("GET", "/api/kernels"),
        ("GET", "/api/sessions"),
        ("GET", "/api/kernelspecs"),
        ("POST", "/api/kernels"),
        ("POST", "/api/sessions"),
        ("DELETE", "/api/sessions/x"),
        ("POST", "/api/events"),
        ("POST", "/index.html"),
        ("PUT", "/index.html"),
    ],
)
def test_a_stranger_reads_and_starts_nothing(stranger: Browser, method: str, path: str) -> None:
    stranger.get("/login")
    xsrf = {"X-XSRFToken": stranger.cookies["_xsrf"]}
    for headers in ({}, xsrf, xsrf | {"Authorization": "token wrong"}):
        assert stranger.ask(method, path, {}, headers)[0] == 403


def test_it_says_that_it_runs_cells_also_to_a_stranger(stranger: Browser, reader: Browser) -> None:
    for visitor in (stranger, reader):
        status, headers, said = visitor.get("/_static/server.json")
        assert (status, json.loads(said)) == (200, {"runsCells": True})
        assert headers["Cache-Control"] == "no-store"
    assert stranger.ask("GET", "/_static/server.json", headers={"Host": "evil.example"})[0] == 403


def test_the_token_becomes_a_cookie_and_leaves_the_address(server: Server) -> None:
    browser = Browser(server)
    status, headers, body = browser.get(f"/book/index.html?a=1&token={server.token}&b=")
    assert (status, headers["Location"]) == (302, f"{server.prefix}/book/index.html?a=1&b=")
    assert server.token not in body + str(headers)
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert f"Path={server.prefix}/" in cookie
    assert browser.get("/book/index.html")[2] == "SECRET BOOK"
    # the clean address is one of this server, however the path was written
    for path in ("//evil.example/", "/%2fevil.example/", "/%5cevil.example", "/\\evil.example"):
        assert browser.get(f"{path}?token={server.token}")[0] == 404


def test_the_login_page_takes_the_token_and_only_with_its_own_form(server: Server) -> None:
    browser = Browser(server)
    status, headers, page = browser.get("/login?next=%2Fbook%2F%22%3E%3Cscript%3E")
    assert status == 200
    assert headers["Content-Type"].startswith("text/html")
    assert "<script>" not in page
    assert "://" not in page
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    xsrf = {"X-XSRFToken": browser.cookies["_xsrf"]}

    def log_in(token: str, extra: dict[str, str], target: str) -> Reply:
        headers = form | extra | {"Cookie": browser.cookie_header}
        path = f"{server.prefix}/login?next={target}"
        status, said, body = request(server.port, "POST", path, f"password={token}", headers)
        return status, dict(said), body

    assert log_in(server.token, {}, "/")[0] == 403
    assert log_in(server.token, xsrf | EVIL, "/")[0] == 404
    status, _, page = log_in("wrong", xsrf, "/")
    assert status == 401
    assert "Invalid credentials" in page
    for elsewhere in ("http://evil.example/", "//evil.example/", "/book/"):
        assert log_in(server.token, xsrf, elsewhere)[1]["Location"] == f"{server.prefix}/"
    status, headers, _ = log_in(server.token, xsrf, f"{server.prefix}/book/")
    assert (status, headers["Location"]) == (302, f"{server.prefix}/book/")


def test_no_page_and_no_log_line_holds_the_token(reader: Browser, server: Server) -> None:
    for path in ("/", "/nothing", "/login", "/api/kernels/x", "/api/x", "/logout"):
        _, headers, body = reader.get(path)
        assert server.token not in body + str(headers)
    reader.get(f"/nothing?token={server.token}")
    assert f"404 GET {server.prefix}/nothing" in server.stderr
    assert server.token not in server.stderr


@pytest.mark.parametrize("query", ["token={}", "%74oken={}", "token={}&token=x", "a=1&ticket={}"])
def test_a_secret_in_an_address_is_repeated_nowhere(server: Server, query: str) -> None:
    """A refusal quotes the address in the log, and the login page is told where to lead to."""
    asked = query.format(secrets.token_hex(24))
    secret = re.findall("[0-9a-f]{48}", asked)[0]
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"):
        for path in ("/", "/nothing", "/login", "/api/kernels", "/api/sessions", "/%2e%2e/x"):
            for headers in ({}, EVIL, {"Host": "evil.example"}):
                _, said, body = Browser(server).ask(method, f"{path}?{asked}", {}, headers)
                assert secret not in body + str(said)
                outside(server, f"{path}?{asked}", method, headers)
                assert secret not in server.stderr, (method, path, headers)


def test_what_else_an_address_asks_stays_in_it(server: Server) -> None:
    _, headers, _ = Browser(server).get("/book/index.html?a=1&token=wrong&b=%26")
    wanted = quote_plus(f"{server.prefix}/book/index.html?a=1&b=%26")
    assert headers["Location"] == f"{server.prefix}/login?next={wanted}"


def outside(
    server: Server, path: str, method: str = "GET", headers: dict[str, str] | None = None
) -> Reply:
    """The answer to a request for a path that is not the book's."""
    status, said, body = request(server.port, method, path, headers=headers)
    return status, dict(said), body


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/index.html", "/book/", "/login", "/api", "/api/kernels", "/api/status", "/b-"),
        *("/?token=wrong", "/?ticket=", "/?ticket=wrong", "//", "/../", "/static/favicon.ico"),
    ],
)
def test_nothing_outside_says_where_the_book_is(server: Server, path: str) -> None:
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"):
        for headers in ({}, EVIL, {"Host": "evil.example"}):
            status, said, body = outside(server, path, method, headers)
            assert "book-" not in str(said) + body  # its name
            assert status in (403, 404, 405)
            assert "Set-Cookie" not in said
            assert server.prefix not in str(said) + body
            assert said["Cross-Origin-Resource-Policy"] == "same-origin"


def test_the_cookies_of_the_book_are_for_its_path_alone(server: Server) -> None:
    browser = Browser(server)
    for path in (f"/?token={server.token}", "/", "/login", "/nothing"):
        _, headers, _ = browser.get(path)
        for cookie in headers.get("Set-Cookie", "").split(", _xsrf"):
            assert not cookie or f"Path={server.prefix}/" in cookie
    assert len(server.prefix) > 30
    assert len(browser.cookies) == 2


def test_the_address_stays_the_same_for_bookmarks(html: Path, server: Server) -> None:
    with running_server(html) as later:
        assert later.prefix == server.prefix
        assert later.token != server.token


def test_an_address_that_others_may_know_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    html, kept = tmp_path / "html", tmp_path / "address"
    html.mkdir()
    html.joinpath("index.html").touch()
    secret = kept_secret(kept)
    assert kept.stat().st_mode & 0o777 == 0o600
    assert kept_secret(kept) == secret
    start = ("--html", str(html), "--port", "0")
    for mode in (0o640, 0o604, 0o620, 0o602):
        kept.chmod(mode)
        status, said = refused(capsys, *start)
        assert status == 1
        assert said.startswith(f"other users can read or change {kept}: remove it")
    kept.write_text("short")
    kept.chmod(0o600)
    assert refused(capsys, *start) == (
        1,
        f"{kept} doesn't contain what the server wrote: remove it\n",
    )
    kept.rename(tmp_path / "other")
    kept.symlink_to(tmp_path / "other")
    status, said = refused(capsys, *start)
    assert status == 1
    assert said.endswith("remove it\n")


def test_an_address_behind_a_link_is_refused_whatever_the_link_leads_to(tmp_path: Path) -> None:
    """Whoever can put a link there can choose whose file is read."""
    there, kept = tmp_path / "there", tmp_path / "address"
    kept_secret(there)
    for target in (there, tmp_path / "nowhere"):
        kept.symlink_to(target)
        with pytest.raises(NotSecret, match=r"can't be used .*: remove it"):
            kept_secret(kept)
        kept.unlink()


def test_an_address_that_another_user_made_is_refused(tmp_path: Path) -> None:
    kept = tmp_path / "address"
    kept_secret(kept)
    as_root("chown", "65534", str(kept))
    reason = "other users can read or change" if os.geteuid() == 0 else "Permission denied"
    with pytest.raises(NotSecret, match=reason):  # root can open what is not its own
        kept_secret(kept)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk on which a file can be made, and nothing written into it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    as_root("mount", "-t", "tmpfs", "-o", "size=4k,mode=777", "tmpfs", str(disk))
    (disk / "filler").write_bytes(bytes(4096))
    yield disk
    as_root("umount", str(disk))


def test_a_disk_that_was_full_is_no_reason_to_refuse_the_next_start(
    full_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = full_disk / "address"
    kept_secret(kept)
    assert not kept.exists()
    assert "can't be written: No space left on device" in capsys.readouterr().err
    (full_disk / "filler").unlink()
    assert kept_secret(kept) == kept_secret(kept)


def test_an_address_that_a_full_disk_left_empty_is_made_again(tmp_path: Path) -> None:
    kept = tmp_path / "address"
    kept.touch(0o600)
    assert kept_secret(kept) == kept_secret(kept) != ""


def test_what_a_killed_server_left_is_removed_at_the_next_start(html: Path, tmp_path: Path) -> None:
    def folders() -> set[str]:
        return {path.name for path in tmp_path.glob("book-server-*")}

    env = {"TMPDIR": str(tmp_path)}
    with running_server(html, env=env) as first, running_server(html, env=env) as killed:
        both = folders()
        killed.process.kill()
        killed.process.wait()
        assert folders() == both
        with running_server(html, env=env):
            (left,) = both & folders()
            assert len(folders()) == 2, "its own, and that of the one that runs"
        assert outside(first, f"{first.prefix}/login")[0] == 200
    assert folders() == set(), left


NOWHERE = f"/api/kernels/{uuid.UUID(int=7)}"
UNKNOWN = [
    ("GET", NOWHERE, None, 404),
    ("DELETE", NOWHERE, None, 404),
    ("POST", f"{NOWHERE}/restart", {}, 404),
    ("POST", f"{NOWHERE}/interrupt", {}, 404),
    ("DELETE", f"/api/sessions/{uuid.UUID(int=7)}", None, 404),
    ("POST", "/api/kernels", {"name": "julia"}, 404),
    ("POST", "/api/kernels", {"name": "python3", "path": "../../etc"}, 400),
    ("POST", "/api/kernels", {"path": "/etc"}, 400),
    ("POST", "/api/kernels", {"path": 5}, 400),
    ("POST", "/api/sessions", {"path": "../x", "type": "page", "kernel": {"name": "python3"}}, 400),
    ("POST", "/api/sessions", {"path": "x", "type": "page", "kernel": {"name": "julia"}}, 404),
]


@pytest.mark.parametrize(("method", "path", "body", "expected"), UNKNOWN)
def test_what_is_not_there_or_leads_outside_is_refused_in_one_line(
    server: Server, reader: Browser, method: str, path: str, body: Any, expected: int
) -> None:
    before = server.stderr.count("Traceback")
    status, said = reader.api(method, path, body)
    assert (status, server.stderr.count("Traceback")) == (expected, before), said
    assert "\n" not in said["message"]


def test_an_address_that_cannot_be_kept_is_new_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "nowhere/address"
    assert kept_secret(missing) != kept_secret(missing)
    monkeypatch.setattr(address, "is_private", lambda opened: False)  # modes mean nothing here
    kept = tmp_path / "address"
    assert kept_secret(kept) != kept_secret(kept)
    assert not kept.exists()
    assert capsys.readouterr().err.count("The book has a new address this time, because ") == 4


def test_a_page_of_another_origin_reads_nothing(reader: Browser, server: Server) -> None:
    bearer = {"Authorization": f"token {server.token}"}
    for headers in (EVIL, EVIL | bearer):
        for path in ("/api/kernels", "/api/sessions", "/api/kernelspecs"):
            assert reader.get(path, headers)[0] == 404
        for path in ("/", f"/?token={server.token}", "/api", "/login"):
            assert "Access-Control-Allow-Origin" not in reader.get(path, headers)[1]
    preflight = EVIL | {"Access-Control-Request-Method": "POST"}
    for path in ("/api/kernels", "/book/index.html"):
        assert (
            "Access-Control-Allow-Origin" not in reader.ask("OPTIONS", path, headers=preflight)[1]
        )


def test_a_page_of_another_origin_starts_nothing(reader: Browser, server: Server) -> None:
    xsrf = {"X-XSRFToken": reader.cookies["_xsrf"]}
    bearer = {"Authorization": f"token {server.token}"}
    before = reader.api("GET", "/api/kernels")
    for path in ("/api/kernels", "/api/sessions"):
        for headers in ({}, EVIL, EVIL | xsrf, EVIL | xsrf | bearer, {"Origin": "null"} | xsrf):
            assert reader.ask("POST", path, {"name": "python3"}, headers)[0] in (403, 404)
    assert reader.api("GET", "/api/kernels") == before


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "192.0.2.1", "127.0.0.1.nip.io"]
)
def test_a_name_that_was_pointed_at_this_machine_opens_nothing(reader: Browser, host: str) -> None:
    for path in ("/", "/index.html", "/api/kernels", "/login", f"/?token={reader.server.token}"):
        status, _, body = reader.get(path, {"Host": host})
        assert status == 403
        assert "SECRET" not in body


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "http://127.0.0.1.evil.example"]
)
def test_the_channels_refuse_other_origins(kernel: Kernel, reader: Browser, origin: str) -> None:
    for extra in ({}, {"Authorization": f"token {reader.server.token}"}):
        with pytest.raises(websocket.WebSocketBadStatusException) as refused:
            open_channels(reader, kernel.id, {"Origin": origin} | extra)
        assert refused.value.status_code == 403


def test_the_channels_refuse_a_stranger(kernel: Kernel, stranger: Browser) -> None:
    with pytest.raises(websocket.WebSocketBadStatusException) as refused:
        open_channels(stranger, kernel.id, {"Origin": stranger.server.url})
    assert refused.value.status_code == 403


# Connects, sends a request by a socket that stays open or is closed at once, prints the answer.
CONNECT = r"""
import contextlib, socket, sys
name, port, target, closes = sys.argv[1:]
family = socket.AF_INET6 if ":" in name else socket.AF_INET
with socket.socket(family) as connection, contextlib.suppress(ConnectionError):
    connection.connect((name, int(port)))
    connection.sendall(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    if closes == "no":
        print(connection.recv(4096).decode(), end="")
"""


def as_another_user(name: str, port: int, target: str, closes: str = "no") -> str:
    """What the server says to user 65534."""
    command = ["/usr/bin/env", "python3", "-c", CONNECT, name, str(port), target, closes]
    user = {"user": 65534, "group": 65534} if os.geteuid() == 0 else {}
    if not user:
        as_root("true")
        command = [*SUDO, "-u", "#65534", *command]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False, **user)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


only_linux_tells = pytest.mark.skipif(
    not Path("/proc/net/tcp").exists(), reason="only Linux says whose a connection is"
)


@only_linux_tells
@pytest.mark.parametrize("name", ["127.0.0.1", "::ffff:127.0.0.1", "::1"])
def test_another_user_of_this_machine_is_not_heard(html: Path, tmp_path: Path, name: str) -> None:
    """Not even with what all can read on the browser's command line, sent before the browser is."""
    if ":" in name and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    with running_server(html, options=(), env=opener(tmp_path)) as server:
        ticket = opened_ticket(tmp_path)
        for closes in ("no", "at once"):
            for target in (ticket, server.prefix + ticket, f"{server.prefix}/login"):
                said = as_another_user(name, server.port, target, closes)
                assert closes != "no" or said.startswith("HTTP/1.1 403 Forbidden")
                assert "only the user who started it" in said or closes != "no"
                assert server.prefix not in said
        assert outside(server, ticket)[0] == 302  # it is ours still
        assert Browser(server).get(ticket)[1]["Location"] == f"{server.prefix}/"


@only_linux_tells
def test_behind_a_proxy_that_runs_as_another_user_readers_are_heard(html: Path) -> None:
    port = free_port()
    options = ("--no-browser", "--proxy", f"http://127.0.0.1:{port}/")
    with running_server(html, options, port=port) as server:
        answer = as_another_user("127.0.0.1", server.port, f"{server.prefix}/login")
    assert answer.startswith("HTTP/1.1 200 OK")


@pytest.mark.parametrize("system_tells", [True, False])
def test_where_nobody_says_whose_a_connection_is_no_ticket_is_shown(
    html: Path, system_tells: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stop(Exception):
        """The server would start now."""

    def make_server(html: Path, sockets: list[socket.socket], browser: bool, *_: Any) -> None:
        raise Stop(browser)

    monkeypatch.setattr(app, "make_server", make_server)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("IPYTHONDIR", "")  # `main` sets its own, for its process
    if not system_tells:
        monkeypatch.setattr(peers, "TABLES", (Path("/nowhere"),))
    with pytest.raises(Stop, match=str(system_tells and Path("/proc/net/tcp").exists())):
        app.main(["--html", str(html), "--port", "0"])


@pytest.mark.parametrize("any_user", [False, True])
def test_a_connection_that_the_system_does_not_list_is_refused_with_the_way_out(
    any_user: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """As under WSL's mirrored network: the table is there, and has no line of the client."""
    table = tmp_path / "tcp"
    table.write_text("  sl  local_address rem_address   st\n")
    monkeypatch.setattr(peers, "TABLES", (table,))

    async def answers() -> list[tuple[int, str]]:
        server = peers.OwnUsersServer(Application([("/", RedirectHandler, {"url": "/there"})]))
        server.any_user = any_user
        (listening,) = bind_sockets(0, "127.0.0.1")
        server.add_sockets([listening])
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        client = AsyncHTTPClient(force_instance=True)
        got = [await client.fetch(url, raise_error=False, follow_redirects=False) for _ in range(2)]
        server.stop()
        return [(one.code, one.body.decode()) for one in got]

    (code, said), second = asyncio.run(answers())
    printed = capfd.readouterr().err
    if any_user:
        assert (code, printed) == (301, "")
    else:
        assert (code, said) == (403, second[1])
        assert "start with: make serve ANY_USER=1" in said
        assert printed.count("Refused a connection: ") == 1, "the terminal says it once"


def test_a_connection_whose_other_end_is_gone_is_not_ours() -> None:
    with socket.socket() as alone:
        assert peers.owner(alone) == peers.CLOSED


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux lists who listens")
def test_it_listens_on_this_machine_only(server: Server) -> None:
    listening = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:] if Path(table).exists() else []:
            local, state = line.split()[1], line.split()[3]
            if state == "0A" and int(local.rpartition(":")[2], 16) == server.port:
                listening.append(local.rpartition(":")[0])
    both = {"0100007F", "00000000000000000000000001000000"}  # 127.0.0.1 and ::1
    assert set(listening) == (both if has_ipv6() else {"0100007F"})


# --- kernels -------------------------------------------------------------------------------------


def test_a_cell_runs(kernel: Kernel) -> None:
    assert kernel.run("print(6*7)") == "42"


@pytest.mark.skipif(sys.platform == "darwin", reason="a socket's path is too long: it has ports")
def test_a_reader_waits_for_no_port_that_another_program_could_take(kernel: Kernel) -> None:
    code = "import ipykernel.connect as c; print(c.get_connection_info(unpack=True)['transport'])"
    assert kernel.run(code) == "ipc"


def test_where_the_path_of_a_socket_would_be_too_long_a_kernel_has_ports() -> None:
    assert transport(Path("/tmp/book-01234567/run")) == "ipc"
    assert transport(Path("/" + 80 * "a")) == "tcp"


def test_no_more_kernels_than_the_server_may_have(html: Path) -> None:
    with running_server(html, ("--no-browser", "--kernels", "1")) as server:
        browser = logged_in(server)
        first = Kernel(browser)
        path = uuid.uuid4().hex
        body = {"path": path, "name": path, "type": "notebook", "kernel": {"name": "python3"}}
        status, answer = browser.api("POST", "/api/sessions", body)
        assert status == 503
        assert "Close a page of the book" in answer["message"]
        assert browser.api("POST", "/api/kernels", {"name": "python3"})[0] == 503
        assert first.run("print(6 * 7)") == "42"
        first.socket.close()
        browser.api("DELETE", f"/api/sessions/{first.session['id']}")
        second = Kernel(browser)  # there is room again
        second.socket.close()


def kernels_warmed(page: Path, headers: dict[str, str]) -> int:
    """How many kernels start when a browser asks for this page with these headers."""
    warmed: list[Path] = []
    pages = SimpleNamespace(
        settings={"spare": True},
        request=SimpleNamespace(headers=HTTPHeaders(headers)),
        file=lambda: (page, page.stat().st_mtime_ns),
        kernel_manager=SimpleNamespace(prewarm=lambda: warmed.append(page)),
    )
    BookPages.prewarm_for_reader(pages)
    return len(warmed)


@pytest.mark.parametrize(
    ("opened_from", "kernels"),
    [("none", 1), ("same-origin", 1), ("same-site", 0), ("cross-site", 0)],
)
def test_a_kernel_is_warmed_for_a_reader_and_for_no_other_site(
    html: Path, opened_from: str, kernels: int
) -> None:
    headers = {"Sec-Fetch-Site": opened_from}
    assert kernels_warmed(html / "book/cells.html", headers) == kernels
    assert kernels_warmed(html / "book/index.html", headers) == 0, "it has no cells"
    assert kernels_warmed(html / "book/cells.html", {}) == 0, "a program asks, not a browser"


def test_a_kernel_is_up_before_the_reader_of_cells_presses_run(html: Path) -> None:
    with running_server(html) as server:
        browser = logged_in(server)

        def kernels_after(page: str, opened_from: str) -> list[str]:
            assert browser.get(page, {"Sec-Fetch-Site": opened_from})[0] == 200
            return [kernel["id"] for kernel in browser.api("GET", "/api/kernels")[1]]

        assert soon(lambda: kernels_after("/book/cells.html", "none") != [])
        (spare,) = kernels_after("/book/cells.html", "same-origin")
        first = Kernel(browser)
        assert first.id == spare
        assert first.run("print(6 * 7)") == "42"
        second = Kernel(browser)  # nobody opened a page since
        assert second.id != spare
        for kernel in (first, second):
            kernel.socket.close()


@pytest.mark.skipif(not peers.are_told(), reason="no browser is opened here")
def test_a_kernel_is_on_its_way_before_the_browser_that_we_open_shows_a_page(html: Path) -> None:
    with running_server(html, options=(), env={"BROWSER": "true %s"}) as server:
        browser = logged_in(server)
        assert soon(lambda: browser.api("GET", "/api/kernels")[1])
        (spare,) = browser.api("GET", "/api/kernels")[1]
        kernel = Kernel(browser)
        assert kernel.id == spare["id"]
        kernel.socket.close()


def test_the_last_kernel_is_for_who_runs_and_not_for_who_may(html: Path) -> None:
    with running_server(html, ("--no-browser", "--kernels", "1")) as server:
        browser = logged_in(server)
        for _ in range(2):
            browser.get("/book/cells.html", {"Sec-Fetch-Site": "none"})
            kernel = Kernel(browser)  # the spare one itself
            kernel.socket.close()
            assert browser.api("DELETE", f"/api/kernels/{kernel.id}")[0] == 204


def test_only_this_interpreter_is_offered(reader: Browser, kernel: Kernel) -> None:
    _, specs = reader.api("GET", "/api/kernelspecs")
    assert list(specs["kernelspecs"]) == [specs["default"]] == ["python3"]
    assert kernel.run("import sys; print(sys.executable)") == sys.executable


def test_a_kernel_has_an_empty_folder_of_its_own_and_not_the_token(
    kernel: Kernel, server: Server
) -> None:
    code = "import os, json; print(json.dumps([os.getcwd(), os.listdir()]))"
    folder, content = json.loads(kernel.run(code))
    assert Path(folder).is_dir()
    assert not Path(folder).is_relative_to(Path.cwd())
    assert content == []
    environment = kernel.run("import psutil; print(psutil.Process().environ(), dict(os.environ))")
    command = " ".join(psutil.Process(server.process.pid).cmdline())
    for secret in (server.token, server.prefix.strip("/")):
        assert secret not in environment + command
    for file in Path(folder).parent.rglob("*"):
        assert not file.is_file() or server.token not in file.read_text(errors="replace")


def test_a_running_cell_is_interrupted_and_the_kernel_restarted(
    kernel: Kernel, reader: Browser
) -> None:
    first = kernel.run("import os; x = 1; print(os.getpid())")
    name = kernel.send("import time; print('on', flush=True)\nfor _ in range(200): time.sleep(.1)")
    kernel.wait_for_output("(on)")
    assert reader.api("POST", f"/api/kernels/{kernel.id}/interrupt")[0] == 204
    assert kernel.wait(name)["status"] == "KeyboardInterrupt"
    assert kernel.run("print(x)") == "1"
    assert reader.api("POST", f"/api/kernels/{kernel.id}/restart")[0] == 200
    kernel.reconnect()
    assert kernel.run("import os; print('x' in globals())") == "False"
    assert kernel.run("print(os.getpid())") != first
    assert has_ended(int(first))


def test_a_deleted_session_ends_its_kernel(reader: Browser) -> None:
    kernel = Kernel(reader)
    pid = int(kernel.run("import os; print(os.getpid())"))
    assert reader.api("DELETE", f"/api/sessions/{kernel.session['id']}")[0] == 204
    kernel.socket.close()
    assert soon(lambda: has_ended(pid))
    assert kernel.id not in [k["id"] for k in reader.api("GET", "/api/kernels")[1]]


# --- start and end -------------------------------------------------------------------------------


# A process that takes no notice of signals, and a cell that takes none of an interrupt.
CHILD = """
import os, subprocess
child = subprocess.Popen(["sh", "-c", "trap '' INT TERM; echo loud; exec sleep 60"])
print(f"pids {os.getpid()} {child.pid}.", flush=True)
"""
STUBBORN = """
while True:
    try:
        while True:
            pass
    except KeyboardInterrupt:
        pass
"""


def test_ctrl_c_ends_the_server_and_all_that_it_started(html: Path) -> None:
    with running_server(html) as server:
        reader = logged_in(server)
        idle, busy = Kernel(reader), Kernel(reader)
        home = Path(idle.run("import os; print(os.getcwd())")).parent
        pids: list[int] = []
        for kernel, code in ((idle, CHILD), (busy, CHILD + STUBBORN)):
            kernel.send(code)
            pids += map(int, kernel.wait_for_output(r"pids (\d+ \d+)\.").split())
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(timeout=20) == 0
        assert soon(lambda: all(has_ended(pid) for pid in pids))
        assert not home.exists()
        # The kernel shows it here as well as on the page.
        assert {*server.stderr.split()} <= {"loud"}  # as often as it is asked before it is killed
        assert server.process.stdout is not None
        assert server.process.stdout.read() == ""
        idle.socket.close()
        busy.socket.close()


def test_an_event_that_comes_after_a_stream_was_closed_is_no_news() -> None:
    code = """
import asyncio
import zmq
from zmq.eventloop.zmqstream import ZMQStream
from playground.server.app import BookServer

async def close_too_early():
    stream = ZMQStream(zmq.Context.instance().socket(zmq.SUB))
    stream.close()
    stream._handle_events(0, 0)

server = BookServer(log_level="WARN")
server.init_logging()
server.log.warning("something else")
asyncio.run(close_too_early())
"""
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "something else" in said
    assert len(said.splitlines()) == 1, said


def test_kernels_do_not_outlive_a_server_that_was_killed(html: Path) -> None:
    with running_server(html) as server:
        kernel = Kernel(logged_in(server))
        pid = int(kernel.run("import os; print(os.getpid())"))
        home = Path(kernel.run("print(os.getcwd())")).parent
        server.process.kill()
        assert soon(lambda: has_ended(pid))
        kernel.socket.close()
    assert home.name.startswith("book-")
    shutil.rmtree(home)


CHOOSE = "choose a different port, such as make serve PORT=9000"


def test_a_taken_port_is_said_in_one_line(html: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        said = refused(capsys, "--html", str(html), "--port", str(port))
    assert said == (1, f"--port {port}: in use; {CHOOSE}\n")


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_a_port_that_another_user_has_by_ipv6_is_taken(
    html: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A browser that looks for a name below `localhost` would ask there first."""
    with closing(socket.create_server(("::1", 0), family=socket.AF_INET6)) as taken:
        port = taken.getsockname()[1]
        said = refused(capsys, "--html", str(html), "--port", str(port))
    assert said == (1, f"--port {port}: in use; {CHOOSE}\n")


def test_a_refused_usual_port_is_named(
    html: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(port: int | None) -> list[socket.socket]:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("playground.server.app.bind", refuse)
    said = refused(capsys, "--html", str(html))
    assert said == (1, f"--port 8123: refused (Permission denied); {CHOOSE}\n")


def test_the_usual_port_moves_when_it_is_taken_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    monkeypatch.setattr(address, "USUAL_PORT", port)
    at_home = bind(None)
    assert {listening.getsockname()[1] for listening in at_home} == {port}
    assert capsys.readouterr().err == ""
    moved = bind(None)
    assert port not in {listening.getsockname()[1] for listening in moved}
    assert len({listening.getsockname()[1] for listening in moved}) == 1
    said = f"Port {port} is in use, so the book takes a free one\n"
    assert capsys.readouterr().err == said
    with pytest.raises(OSError, match="in use"):
        bind(port)
    for listening in at_home + moved:
        listening.close()


def test_a_missing_book_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "--html", str(tmp_path), "--port", "0")
    assert said == (1, f"--html {tmp_path}: no built book there; run make book\n")


PROXIES = ["", "books", "/a/b", "https://", "ftp://x/", "http://x/a//b", "http://x/a b", "http:x"]
LIMITS = ["memory", "kernel-memory", "processes", "text", "idle", "idle-open"]
NONSENSE = {
    "kernels=0": "--kernels 0: must be at least 1, for live cells",
    **{f"{limit}=0": f"--{limit} 0: must be more than 0" for limit in LIMITS},
    **{
        f"port={port}": f"--port {port!r}: must be a number from 0 to 65535"
        for port in ["eighty", "-1", "65536", "8123.0", "", "1" * 5000]
    },
    **{
        f"proxy={proxy}": f"--proxy {proxy!r}: must be an address such as "
        "https://books.example/user/me/"
        for proxy in PROXIES
    },
}


@pytest.mark.parametrize(("option", "said"), NONSENSE.items())
def test_an_option_that_makes_no_sense_is_refused_in_one_line(
    html: Path, option: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, "--html", str(html), f"--{option}") == (2, f"{said}\n")


def test_where_names_below_localhost_are_not_known_the_address_has_a_number(html: Path) -> None:
    with running_server(html, env={"BOOK_HOST": "127.0.0.1"}) as server:
        assert server.printed_url.startswith(f"http://127.0.0.1:{server.port}{server.prefix}/?")


def test_another_machine_as_host_is_refused_in_one_line(
    html: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BOOK_HOST", "books.example")
    said = refused(capsys, "--html", str(html), "--port", "0")
    assert said == (2, "BOOK_HOST=books.example: must be 127.0.0.1 or localhost, or not be set\n")


def test_a_ticket_is_spent_once_and_ends_after_a_minute() -> None:
    now = 0.0
    login = BookLogin()
    login.clock = lambda: now
    first = login.make_ticket()
    now = 59.9
    assert not login.spend("")
    assert not login.spend("wrong")
    assert login.spend(first)
    assert not login.spend(first)
    second = login.make_ticket()
    now += 60
    assert not login.spend(second)
    now -= 0.1
    assert login.spend(second)


def opener(folder: Path) -> dict[str, str]:
    """An environment in which the browser is a script that writes down what it is to open."""
    seen, script = folder / "address", folder / "browser"
    script.write_text(f'#!/bin/sh\necho "$1" > {seen}.new; mv {seen}.new {seen}; echo loud\n')
    script.chmod(0o755)
    return {"BROWSER": f"{script} %s"}


def opened_ticket(folder: Path) -> str:
    """The path and query that this browser was to open."""
    assert soon((folder / "address").exists)
    opened = urlsplit((folder / "address").read_text().strip())
    return f"{opened.path}?{opened.query}"


@pytest.mark.skipif(not peers.are_told(), reason="no browser is opened here")
def test_the_browser_gets_a_ticket_that_opens_the_book_once(html: Path, tmp_path: Path) -> None:
    env = opener(tmp_path) | {"JUPYTER_TOKEN": "guessed"}
    env |= {"JUPYTER_CONFIG_DIR": str(tmp_path), "JUPYTER_PATH": str(tmp_path)}
    # a configuration that would open the doors, and a kernel that is not this interpreter
    config = "c.ServerApp.allow_origin = '*'; c.ServerApp.port = 1; c.IdentityProvider.token = ''"
    tmp_path.joinpath("jupyter_server_config.py").write_text(config)
    spec = tmp_path / "kernels/python3"
    spec.mkdir(parents=True)
    spec.joinpath("kernel.json").write_text('{"argv": ["false"], "display_name": "Other"}')
    with running_server(html, options=(), env=env) as server:
        assert server.token != "guessed"
        ticket = opened_ticket(tmp_path)
        opened = (tmp_path / "address").read_text().strip()
        # All users of the machine can read it, and have been at all names that were used before.
        name, printed = urlsplit(opened).hostname, urlsplit(server.printed_url).hostname
        if sys.platform != "darwin":  # where Safari does not know such names
            assert re.fullmatch(r"[0-9a-f]{16}\.localhost", name or "")
            assert re.fullmatch(r"book-[0-9a-f]{16}\.localhost", printed or "")
            assert name.partition(".")[0] not in server.printed_url
        assert server.token not in opened
        assert server.prefix not in opened
        browser = Browser(server)
        status, headers, _ = outside(server, ticket)
        book = server.printed_url.partition("?")[0]
        assert (status, headers["Location"]) == (302, book + ticket.removeprefix("/"))
        status, headers, _ = browser.get(ticket, EVIL)
        assert (status, headers["Location"]) == (302, f"{server.prefix}/")
        assert "Access-Control-Allow-Origin" not in headers
        assert browser.get("/")[2] == "SECRET ROOT"
        _, specs = browser.api("GET", "/api/kernelspecs")
        assert specs["kernelspecs"]["python3"]["spec"]["argv"][0] == sys.executable
        late = Browser(server).get(ticket)
        assert late[0] == 302
        assert late[1]["Location"].startswith(f"{server.prefix}/login")
        assert outside(server, ticket)[0] == 404
        server.process.terminate()
        assert server.process.wait(timeout=20) == 0
        assert server.process.stdout is not None
        assert server.process.stdout.read() == ""


COLLECTS = """
import gc, time, torch
for _ in range(100):  # another thread may be at the end of this import
    if not gc.isenabled(): time.sleep(0.05)
print(gc.isenabled())
"""


@pytest.mark.parametrize("warm", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_kernel_has_torch_before_a_cell_asks_for_it_unless_told_otherwise(
    html: Path, warm: bool
) -> None:
    with running_server(html, warm=warm) as server:
        kernel = Kernel(logged_in(server))
        loaded = kernel.run("import sys; print('playground.server.warm' in sys.modules)")
        collects = kernel.run(COLLECTS)
        kernel.socket.close()
    assert loaded == str(warm)
    assert collects == "True"
