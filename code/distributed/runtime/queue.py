"""Queue of a group's collectives: they run in program order, on every rank and backend."""

import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any

import torch


class Handle:
    """A collective in progress. `wait()` before you read or change its array; it returns the array.

    `finish` does what is left when the result has arrived: divide, copy back. `wait` raises the
    errors of the collective.
    """

    def __init__(self, array: Any, wait: Callable[[], Any], finish: Callable[[], Any]):
        self.array, self._wait, self._finish = array, wait, finish
        self.done = False

    def wait(self) -> Any:
        if not self.done:
            self._wait()
            self._finish()
            self.done = True
        return self.array


class OnGPU:
    """`work` for a second thread, on `stream`, after the work now on the caller's stream.

    A thread begins on device 0 and on that device's default stream, whatever its caller used. So
    without this class it could read arrays before they are written, and the caller could read a
    result that isn't ready.
    """

    def __init__(self, work: Callable[[], Any], stream: torch.cuda.Stream):
        self.work, self.stream = work, stream
        self.filled, self.done = torch.cuda.Event(), torch.cuda.Event()
        self.filled.record()

    def __call__(self) -> Any:
        """Called in the thread; the device and the stream are set until the end of the block."""
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(self.filled)
            try:
                return self.work()
            finally:
                self.done.record()

    def let_caller_wait(self) -> None:
        """Make the caller's stream wait until the work is done on the GPU."""
        torch.cuda.current_stream().wait_event(self.done)


class Queue:
    """Starts the collectives of a group one after the other, in the order of the program.

    All ranks call them in the same order, so each collective meets its counterpart, however long a
    different one takes on some rank. Algorithms on messages or on shared memory block, so they run
    in the caller after `wait_turn`, or in one thread beside it. A backend's own collectives are
    only started in their turn, because gloo and NCCL keep the order.

    If one group is made from another, on the same ranks, both share one queue, one thread, and one
    wire on which that thread sends.
    """

    def __init__(self, beside: Any = None) -> None:
        self.beside = beside  # a wire whose messages don't mix with the caller's
        self._thread: futures.ThreadPoolExecutor | None = None
        self._number: int | None = None  # identifier of the thread
        self._last: futures.Future[Any] | None = None  # the newest work of the thread
        self._stream: torch.cuda.Stream | None = None  # of the thread, if there is a GPU
        self._last_on_gpu: OnGPU | None = None  # the GPU's part of _last, if any

    def wait_turn(self, wire: Any = None) -> Any:
        """Wait until all earlier collectives are done; returns the wire for the caller to use.

        That is `wire`, except in the thread, which has its own wire and doesn't wait: the steps of
        a collective are part of its turn. Errors of earlier collectives are left to their handles.
        """
        if self.in_thread():
            return self.beside
        if self._last:
            futures.wait([self._last])
            if self._last_on_gpu:
                self._last_on_gpu.let_caller_wait()
        return wire

    def is_free(self) -> bool:
        """Whether a non-blocking collective can start now, because all earlier ones are done."""
        return self._last is None or self._last.done() or self.in_thread()

    def submit(self, work: Callable[[], Any]) -> Callable[[], Any]:
        """Run `work()` in the thread after all earlier work; returns what waits for its result."""
        if self.in_thread():  # a step of the collective that runs in it
            result = work()
            return lambda: result
        if self._thread is None:
            self._thread = futures.ThreadPoolExecutor(1, "collectives", self._enter_thread)
        on_gpu = None
        if torch.cuda.is_initialized():
            # One stream for all work, so that it also runs in order on the GPU.
            self._stream = self._stream or torch.cuda.Stream()  # on the caller's device
            on_gpu = OnGPU(work, self._stream)
        self._last = self._thread.submit(on_gpu or work)
        self._last_on_gpu = on_gpu
        last = self._last

        def wait() -> Any:
            result = last.result()
            if on_gpu:
                on_gpu.let_caller_wait()
            return result

        return wait

    def close(self) -> None:
        """End the thread when all is done; a later collective starts a new one."""
        if self._thread:
            self._thread.shutdown()
        self._thread = self._number = self._last = self._last_on_gpu = None

    def in_thread(self) -> bool:
        """Whether the caller is the thread of this queue."""
        return threading.get_ident() == self._number

    def _enter_thread(self) -> None:
        self._number = threading.get_ident()
