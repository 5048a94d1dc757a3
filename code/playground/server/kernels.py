"""Kernels of the book's server: which kinds exist, how many may run, and what ends them."""

import asyncio
import json
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_server.services.kernels.connection.base import (
    deserialize_binary_message,
    deserialize_msg_from_ws_v1,
)
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from jupyter_server.services.kernels.handlers import KernelActionHandler, MainKernelHandler
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
from jupyter_server.services.sessions.handlers import SessionRootHandler
from tornado import web
from tornado.ioloop import IOLoop, PeriodicCallback
from tornado.log import gen_log
from traitlets import Dict

from playground.server.limits import Limits, Watch, memory_of_machine
from playground.server.start import at_start, importing

LOOK = 250  # ms between two checks of the kernels

# A kernel may still send something while its streams close, which is no concern of the reader.
gen_log.addFilter(lambda record: not record.getMessage().startswith("Got events for closed"))

KERNEL = "python3"  # the only one


class OwnKernel(KernelSpecManager):
    """The only kernel is `python3` with this interpreter, whatever kernels the user has installed.

    It limits its own resources and ends as soon as it is asked to. Unless `warm` is false, it also
    imports torch while it starts, so that a reader's first run doesn't wait for torch twice.
    """

    limits = Limits(memory=memory_of_machine())
    warm = True

    def _kernel_dirs_default(self) -> list[str]:
        return []

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        spec = super().get_kernel_spec(kernel_name)
        most = f"{self.limits.processes}, {int(min(self.limits.memory, self.limits.kernel))}"
        confine = f"__import__('playground.server.confine', fromlist=['confine']).confine({most})"
        modules = ["shutdown"] + ["warm"] * self.warm
        spec.argv.extend(at_start(confine, *map(importing, modules)))
        return spec


class FewKernels(AsyncMappingKernelManager):
    """At most `limit` kernels at a time, because each holds torch in memory and may start ranks.

    A watch ends a kernel that exceeds a limit. The server then starts an empty one to replace it.
    """

    limit = 8
    idle_open = timedelta(hours=4)  # until an idle kernel is ended although its page is open
    starting = 0  # kernels that have been requested and that Jupyter doesn't list yet
    spare: asyncio.Task[str] | None = None  # a kernel started before a reader presses Run
    watch: Watch

    def start_watch(self, limits: Limits) -> None:
        self.watch = Watch(limits)
        self.endings: dict[str, tuple[int, str]] = {}  # kernel → its process id, why we ended it
        PeriodicCallback(self.look, LOOK).start()

    def look(self) -> None:
        """End the kernels that exceed a limit."""
        by_process = {}
        for name in self.list_kernel_ids():
            kernel = self.get_kernel(name)
            pid = getattr(kernel.provisioner, "pid", None)
            if pid and self.endings.get(name, (0,))[0] != pid:
                by_process[pid] = name
        if not by_process:
            return
        for pid, why in self.watch.look(by_process).items():
            name = by_process[pid]
            self.endings[name] = (pid, f"This kernel was ended: it {why}.")
            self.log.warning("kernel %s was ended: it %s", name, why)
            self.watch.end(pid)

    def why_ended(self, name: str) -> str | None:
        """Message to the reader if it was we who ended this kernel; None otherwise."""
        pid, why = self.endings.get(name, (None, ""))
        return why if pid == getattr(self.get_kernel(name).provisioner, "pid", None) else None

    def has_marks(self, name: str) -> bool:
        """Whether its state is set. Before that, asking for its last activity is an error."""
        return getattr(self._kernels.get(name), "execution_state", None) is not None

    def kernel_model(self, kernel_id: str) -> dict[str, Any]:
        """Like Jupyter's, which crashes for a kernel whose state isn't set yet."""
        if not self.has_marks(kernel_id):
            raise web.HTTPError(404, f"no kernel {kernel_id} has started")
        return dict(super().kernel_model(kernel_id))

    async def cull_kernel_if_idle(self, kernel_id: str) -> None:
        """Like Jupyter's, but also ends a kernel with an open page, after a longer time."""
        if not self.has_marks(kernel_id):
            return
        kernel: Any = self.get_kernel(kernel_id)
        last, is_idle = kernel.last_activity, kernel.execution_state == "idle"
        if is_idle and datetime.now(UTC) - last > self.idle_open:
            self.log.warning("kernel %s was idle for %s: ended", kernel_id, self.idle_open)
            await self.shutdown_kernel(kernel_id)
        else:
            await super().cull_kernel_if_idle(kernel_id)

    def has_room(self) -> bool:
        return len(self.list_kernel_ids()) + self.starting < self.limit

    def make_sure_of_room(self) -> None:
        if not self.has_spare() and not self.has_room():
            raise web.HTTPError(
                503,
                f"This server runs {self.limit} kernels at a time, and all are in use. Close a "
                "page of the book whose cells you ran, then press Run again.",
            )

    def has_spare(self) -> bool:
        """Whether an unused kernel is running or starting. An idle one is culled eventually."""
        if self.spare is None or not self.spare.done():
            return self.spare is not None
        return not self.spare.exception() and self.spare.result() in self.list_kernel_ids()

    def prewarm(self) -> None:
        """Start a kernel for a reader who has opened a page with cells, before Run is pressed."""
        if not self.has_spare() and self.has_room():
            self.spare = asyncio.ensure_future(self.start_another(path=""))

    async def start_kernel(self, **kwargs: Any) -> str:  # type: ignore[override]
        if self.has_spare():
            spare, self.spare = cast(asyncio.Task[str], self.spare), None
            return await spare
        self.make_sure_of_room()
        return await self.start_another(**kwargs)

    async def start_another(self, **kwargs: Any) -> str:
        self.starting += 1
        try:
            return await super().start_kernel(**kwargs)
        finally:
            self.starting -= 1


def check_asked(kernel: Any, path: Any) -> None:
    """HTTPError for a kernel of another name, or a path outside of the kernels' folder."""
    name = kernel.get("name") if isinstance(kernel, dict) else kernel
    if name not in (None, KERNEL):
        raise web.HTTPError(404, f"name={name!r}: this server has only the kernel {KERNEL!r}")
    parts = path.split("/") if isinstance(path, str) else [".."]
    if path is not None and (".." in parts or str(path).startswith(("/", "~"))):
        raise web.HTTPError(400, f"path={path!r}: give a name inside of the kernels' folder")


class BookSessions(SessionRootHandler):
    """Like Jupyter's, which would report a full server as an internal error."""

    kernel_manager: FewKernels

    @web.authenticated
    async def post(self) -> None:
        asked = self.get_json_body() or {}
        check_asked(asked.get("kernel"), asked.get("path"))
        self.kernel_manager.make_sure_of_room()
        await cast(Awaitable[None], super().post())


class BookKernels(MainKernelHandler):
    """Like Jupyter's, which would report an unknown kernel as an internal error."""

    @web.authenticated
    async def post(self) -> None:
        asked = self.get_json_body() or {}
        check_asked(asked.get("name"), asked.get("path"))
        await cast(Awaitable[None], super().post())


class BookActions(KernelActionHandler):
    """Like Jupyter's, which would report a kernel that isn't there as an internal error."""

    @web.authenticated
    async def post(self, kernel_id: str, action: str) -> None:
        if kernel_id not in self.kernel_manager.list_kernel_ids():
            raise web.HTTPError(404, f"no kernel {kernel_id} is running")
        await cast(Awaitable[None], super().post(kernel_id, action))


class BookChannels(ZMQChannelsWebsocketConnection):
    """Messages between a page and its kernel; stops a run that prints too much.

    Jupyter limits the rate of the output but not its amount, and continues when the rate falls.
    """

    limits = OwnKernel.limits
    asked = Dict()  # headers of the messages that request runs, until each run is over
    run: Any = None  # the header for the run that began last
    text = shown = 0  # bytes of output of that run
    is_cut = has_failed = False

    def handle_incoming_message(self, incoming_msg: str | bytes) -> None:
        """Like Jupyter's, but records each request: a kernel may end before it begins the run."""
        if self.subprotocol:
            _, parts = deserialize_msg_from_ws_v1(incoming_msg)
            header = self.session.unpack(parts[0])
        else:
            is_text = isinstance(incoming_msg, str)
            header = (json.loads if is_text else deserialize_binary_message)(incoming_msg)["header"]
        if header["msg_type"] == "execute_request":
            self.asked[header["msg_id"]] = header
        super().handle_incoming_message(cast(str, incoming_msg))

    def _limit_rate(self, channel: str, msg: dict[str, Any], msg_list: list[Any]) -> bool:
        """Whether to drop this message."""
        msg["header"] = self.get_part("header", msg["header"], msg_list)
        kind = msg["header"]["msg_type"]
        if kind in ("error", "execute_reply"):
            self._shorten(msg, msg_list)
        if kind == "status":
            self._note_end(msg, msg_list)
        if channel != "iopub" or kind == "status":
            return False
        if kind == "execute_input":
            msg["parent_header"] = self.get_part("parent_header", msg["parent_header"], msg_list)
            self.run, self.text, self.shown = msg["parent_header"], 0, 0
            self.is_cut = self.has_failed = False
            return False
        size = sum(map(len, msg_list))
        if kind == "error" and not self.has_failed:
            self.has_failed = True  # a page needs it: why the run ended, or that it was stopped
            return False
        if kind == "stream":
            self.text += size
        else:
            self.shown += size
        if not self.is_cut and (self.text > self.limits.text or self.shown > self.limits.shown):
            self.is_cut = True
            what, most = "printed", self.limits.text
            if self.text <= most:
                what, most = "showed", self.limits.shown
            self.write_stderr(
                f"\nThis run was stopped: it {what} more than {most / 1e6:g} MB.", self.run
            )
            interrupt = self.multi_kernel_manager.interrupt_kernel
            IOLoop.current().add_callback(interrupt, self.kernel_id)
        return self.is_cut

    def _note_end(self, msg: dict[str, Any], msg_list: list[Any]) -> None:
        """A run is over when its kernel is idle; a run that is interrupted may get no reply."""
        content = self.get_part("content", msg["content"], msg_list)
        if content["execution_state"] == "idle":
            parent = self.get_part("parent_header", msg["parent_header"], msg_list)
            self.asked.pop(parent.get("msg_id"), None)

    def _shorten(self, msg: dict[str, Any], msg_list: list[Any]) -> None:
        """Shorten an error message: it can have any length, and a page needs its two ends."""
        most = self.limits.text
        if sum(map(len, msg_list)) <= most:
            return
        content = self.get_part("content", msg["content"], msg_list)
        short = {name: content[name] for name in ("status", "execution_count") if name in content}
        for name in ("ename", "evalue"):
            if name in content:
                short[name] = cut(content[name], int(most / 10))
        if "traceback" in content:
            lines = content["traceback"][-10:]
            short["traceback"] = [cut(line, int(most / 10 / len(lines))) for line in lines]
        msg["content"], msg_list[3] = short, self.session.pack(short)

    def on_kernel_restarted(self) -> None:
        """The kernel's process has ended. If we ended it, show the reason in the run's output."""
        why = cast(FewKernels, self.multi_kernel_manager).why_ended(self.kernel_id)
        run = next(iter(self.asked.values()), self.run)
        if why and run:
            self.write_stderr(why, run)
        self.asked.clear()
        super().on_kernel_restarted()


def cut(text: str, most: int) -> str:
    """The beginning and the end of a text with more than `most` characters."""
    if len(text) <= most:
        return text
    end = len(text) - most // 2
    return f"{text[: most // 2]}\n… {len(text) - most:,} characters are left out …\n{text[end:]}"
