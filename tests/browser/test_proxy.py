"""The server behind a reverse proxy that shows it below a path, as *Hosting the book* says."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from live_page import LivePage
from ports import free_port
from serving import Server, running_server

BELOW = "/user/me/"


class Proxy:
    """Passes on what is below a path as it came, `Host` and WebSockets included; nothing else."""

    def __init__(self, listening: socket.socket, target: int):
        self.listening, self.target = listening, target
        self.refused: list[str] = []

    async def serve(self) -> None:
        server = await asyncio.start_server(self.pass_on, sock=self.listening)
        async with server:
            await server.serve_forever()

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        line, _, fields = head.partition(b"\r\n")
        path = line.split()[1].decode()
        if not path.startswith(BELOW):
            self.refused.append(path)
            writer.write(
                b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
            return writer.close()
        if b"upgrade: websocket" not in fields.lower():  # one request for each connection
            fields = fields.replace(b"Connection: keep-alive\r\n", b"Connection: close\r\n")
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self.target)
        to_server.write(line + b"\r\nX-Forwarded-For: 192.0.2.7\r\n" + fields)
        await asyncio.gather(copy(reader, to_server), copy(from_server, writer))


async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    except ConnectionError:
        pass
    target.close()


@pytest.fixture
def proxied(small_book: Path) -> Iterator[tuple[Server, Proxy]]:
    """A server that only the proxy speaks to, as readers see it."""
    listening = socket.create_server(("127.0.0.1", 0))
    proxy = Proxy(listening, free_port())
    loop = asyncio.new_event_loop()
    serving = loop.create_task(proxy.serve())

    def run() -> None:
        with closing(loop), pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(serving)

    thread = threading.Thread(target=run)
    thread.start()
    shown = f"http://127.0.0.1:{listening.getsockname()[1]}{BELOW}"
    try:
        options = ("--no-browser", "--proxy", shown)
        with running_server(small_book, options, port=proxy.target) as server:
            yield server, proxy
    finally:
        loop.call_soon_threadsafe(serving.cancel)
        thread.join()


@pytest.mark.slow
def test_cells_run_behind_a_proxy_that_shows_the_server_below_a_path(
    proxied: tuple[Server, Proxy], visit: Callable[..., LivePage]
) -> None:
    server, proxy = proxied
    assert server.prefix.startswith(f"{BELOW}b-")
    live = visit(server).open("cells.html")
    live.edit(0, '"factor", Base.factor', '"computed:", Base.factor * 21')
    assert "computed: 42" in live.run_and_wait(0)
    live.open("cells.html")
    assert "computed:" in live.code(0)  # an edit is kept
    stranger = visit(server, log_in=False).open("cells.html")
    stranger.page.get_by_label("Token").fill(server.token)
    stranger.page.get_by_role("button", name="Open").click()
    stranger.page.wait_for_url("**/cells.html")
    assert "A page with cells" in stranger.page.title()
    assert proxy.refused == []  # no address forgets the path
