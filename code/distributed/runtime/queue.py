"""The order of a group's collectives: that of the program, on every rank and on every back end."""

import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any

import torch


class Handle:
    """A collective under way. `wait()` before you read or change its array; it returns the array.

    `finish` is what is left to do when the result has come: divide, copy back. An error of the
    collective is raised by `wait`.
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
    """`work` that another thread does, on `stream`, after what the caller's stream has by now.

    A thread begins on device 0 and on that device's default stream, whatever its caller was on. So
    the arrays could be read before they are written, and the caller could read the result before
    it is there.
    """

    def __init__(self, work: Callable[[], Any], stream: torch.cuda.Stream):
        self.work, self.stream = work, stream
        self.filled, self.done = torch.cuda.Event(), torch.cuda.Event()
        self.filled.record()

    def __call__(self) -> Any:
        """In the thread: the device and the stream are set until the end of the block."""
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(self.filled)
            try:
                return self.work()
            finally:
                self.done.record()

    def let_caller_wait(self) -> None:
        """What the caller's stream does from here on begins when the work is done on the GPU."""
        torch.cuda.current_stream().wait_event(self.done)


class Queue:
    """Starts the collectives of a group one after the other, as the program calls them.

    All ranks call them in the same order, so each meets its own counterpart, however long another
    one takes somewhere. What blocks (algorithms on messages or on shared memory) runs in the
    caller, after `wait_turn`, or in one thread beside it. What a back end runs by itself is only
    begun in its turn: gloo and NCCL keep the order of what they have been given.

    One queue, one thread, and one wire on which that thread sends, for all groups on the same ranks
    of which one was made from the other.
    """

    def __init__(self, beside: Any = None) -> None:
        self.beside = beside  # a wire whose messages are not mixed with those of the caller
        self._thread: futures.ThreadPoolExecutor | None = None
        self._number: int | None = None  # of the thread, as it says itself
        self._last: futures.Future[Any] | None = None  # the youngest that is not the caller's
        self._stream: torch.cuda.Stream | None = None  # of the thread, where there is a GPU
        self._last_on_gpu: OnGPU | None = None  # what the GPU has to do for it, if there is one

    def wait_turn(self, wire: Any = None) -> Any:
        """Wait until all is done that was called before; the wire that the caller then works on.

        That is `wire`, or inside the thread its own: what a collective is made of is a part of its
        turn, and waits for nothing. An error of what was before is for its own handle to raise.
        """
        if self.in_thread():
            return self.beside
        if self._last:
            futures.wait([self._last])
            if self._last_on_gpu:
                self._last_on_gpu.let_caller_wait()
        return wire

    def is_free(self) -> bool:
        """Whether what does not block can begin here and now, because all before it is done."""
        return self._last is None or self._last.done() or self.in_thread()

    def submit(self, work: Callable[[], Any]) -> Callable[[], Any]:
        """Do `work()` beside the caller, when all before it is done; what waits for its result."""
        if self.in_thread():  # a part of the collective that is under way there
            result = work()
            return lambda: result
        if self._thread is None:
            self._thread = futures.ThreadPoolExecutor(1, "collectives", self._enter_thread)
        on_gpu = None
        if torch.cuda.is_initialized():
            # One for all: what they do follows on each other there, too.
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
        """End the thread when all is done; a later collective has a new one."""
        if self._thread:
            self._thread.shutdown()
        self._thread = self._number = self._last = self._last_on_gpu = None

    def in_thread(self) -> bool:
        """Whether the caller is the thread of this queue."""
        return threading.get_ident() == self._number

    def _enter_thread(self) -> None:
        self._number = threading.get_ident()
