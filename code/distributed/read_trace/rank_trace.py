"""What is kept of one rank's trace: who was busy when, with what, and who asked for it.

A GPU's kernels and copies, the steps, what Python waited for; and for a job without a GPU, its
operators and gloo's collectives. Times are microseconds on that rank's clock.
"""

import math
import re
from array import array
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from distributed.read_trace.events import Event, Events, TraceError, args_of, integer
from distributed.read_trace.families import COMMUNICATION, family
from distributed.read_trace.intervals import Stretches, union
from distributed.read_trace.messages import Collective, called

STEP = re.compile(r"ProfilerStep#(\d+)$")
LOADER = re.compile(r"enumerate\(DataLoader\)|load_batch|wait_for_batch|next_batch|get_batch", re.I)
SYNCHRONIZE = re.compile(r"(cuda|hip|cu)(Device|Stream|Event|Ctx)Synchronize")
WAITING = ("aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero")
GRADIENT = "torch::autograd::AccumulateGrad"
SHARDED = ("FSDP::", "FullyShardedDataParallel")  # FSDP2, FSDP1
OTHER_DEVICES = ("mtia", "xpu", "hpu", "privateuse1")


class Kernel(NamedTuple):
    """Something that a GPU did: `kind` is compute, communication or copy."""

    start: float
    end: float
    name: str
    kind: str
    stream: int
    correlation: int
    device: int = 0  # which GPU of the process


class ProfilerStep(NamedTuple):
    number: int
    start: float
    end: float


@dataclass
class RankTrace:
    """One rank's trace, as far as it is needed."""

    name: str
    rank: int = -1  # −1: the file does not say
    ranks: int = 0  # 0: the file does not say
    backend: str = ""
    device: str = ""
    events: int = 0
    begin: float = 0.0  # µs of the first event that is kept, on a clock that recordings share
    steps: list[ProfilerStep] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    launched: dict[int, float] = field(default_factory=dict)  # correlation → when Python asked
    loading: Stretches = field(default_factory=list)
    synchronizing: Stretches = field(default_factory=list)
    waiting: list[tuple[float, float, str]] = field(default_factory=list)  # .item() and the like
    asking: Stretches = field(default_factory=list)  # Python starts a collective
    gradients: list[float] = field(default_factory=list)  # when each parameter's became complete
    backward: list[float] = field(default_factory=list)  # when each of its operations began
    is_forward_only: bool = False  # operators were recorded, but none of a backward pass
    sharded: bool = False  # FSDP annotated its hooks
    operators: array = field(default_factory=lambda: array("d"))  # start, end, start, end, …
    notes: list[str] = field(default_factory=list)

    @property
    def is_gpu(self) -> bool:
        return bool(self.kernels)

    def note(self, text: str) -> None:
        """Say this of the trace, once."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def whole(self) -> ProfilerStep:
        """From the first kernel or operator to the end of the last one, as a step."""
        starts = [k.start for k in self.kernels] or self.operators[::2]
        ends = [k.end for k in self.kernels] or self.operators[1::2]
        return ProfilerStep(0, min(starts), max(ends))

    @property
    def numbers(self) -> list[int]:
        """The numbers of the steps, as the profiler counts them."""
        return [step.number for step in self.steps]

    def busy(self, kind: str) -> Stretches:
        """When at least one kernel (without a GPU, operator or collective) of a kind ran."""
        if self.is_gpu:
            return union((k.start, k.end) for k in self.kernels if k.kind == kind)
        if kind == "compute":
            return union(zip(self.operators[::2], self.operators[1::2], strict=True))
        return union((c.start, c.end) for c in self.collectives) if kind != "copy" else []


class Collector:
    """Takes the events of one file; `finish` gives what was kept of them."""

    def __init__(self, name: str) -> None:
        self.trace = RankTrace(name)
        self.names: dict[str, str] = {}  # one string for each name, however often it comes
        self.others: set[str] = set()
        self.takers: dict[str, Callable[[str, float, float, Event], None]] = {
            "kernel": self.take_kernel,
            "gpu_memcpy": self.take_copy,
            "memcpy": self.take_copy,
            "gpu_memset": self.take_copy,
            "memset": self.take_copy,
            "cuda_runtime": self.take_call,
            "cuda_driver": self.take_call,
            "runtime": self.take_call,
            "user_annotation": self.take_annotation,
            "cpu_op": self.take_operator,
            "operator": self.take_operator,
        }

    def take(self, event: Event) -> None:
        """Keep what is needed of an event."""
        if event.get("ph") != "X":
            return
        category = str(event.get("cat", "")).lower()
        taker = self.takers.get(category)
        if taker is None:
            if category.startswith(OTHER_DEVICES):
                self.others.add(category.split("_")[0])
            return
        try:
            start = float(event["ts"])
            end = start + float(event.get("dur", 0))
        except (KeyError, TypeError, ValueError, OverflowError):
            return
        if not (math.isfinite(start) and math.isfinite(end)):
            return
        name = str(event.get("name", ""))
        taker(self.names.setdefault(name, name), start, max(start, end), event)

    def take_kernel(self, name: str, start: float, end: float, event: Event) -> None:
        is_message = family(name) == COMMUNICATION
        kind = "communication" if is_message else "compute"
        self.keep(name, start, end, kind, event)
        if is_message:
            self.trace.collectives.append(called(name, start, end, args_of(event)))

    def take_copy(self, name: str, start: float, end: float, event: Event) -> None:
        self.keep(name, start, end, "copy", event)

    def keep(self, name: str, start: float, end: float, kind: str, event: Event) -> None:
        args = args_of(event)
        device = integer(args.get("device", event.get("pid")))
        stream, correlation = integer(args.get("stream")), integer(args.get("correlation"))
        self.trace.kernels.append(Kernel(start, end, name, kind, stream, correlation, device))

    def take_call(self, name: str, start: float, end: float, event: Event) -> None:
        if SYNCHRONIZE.match(name):
            self.trace.synchronizing.append((start, end))
        if correlation := integer(args_of(event).get("correlation")):
            self.trace.launched[correlation] = start

    def take_annotation(self, name: str, start: float, end: float, event: Event) -> None:
        if step := STEP.match(name):
            self.trace.steps.append(ProfilerStep(int(step[1]), start, end))
        elif LOADER.search(name):
            self.trace.loading.append((start, end))
        elif name.startswith("nccl:"):
            self.trace.asking.append((start, end))
        elif name.startswith("gloo:"):
            self.trace.collectives.append(called(name, start, end, args_of(event)))
        elif name.startswith(SHARDED):
            self.trace.sharded = True

    def take_operator(self, name: str, start: float, end: float, event: Event) -> None:
        if STEP.match(name):  # PyTorch before 1.10
            self.take_annotation(name, start, end, event)
            return
        if name == GRADIENT:
            self.trace.gradients.append(end)
        elif "Backward" in name:
            self.trace.backward.append(start)
        elif name in WAITING:
            self.trace.waiting.append((start, end, name))
        elif LOADER.search(name):
            self.trace.loading.append((start, end))
        if name.startswith(("c10d::", "record_param_comms")):
            self.trace.asking.append((start, end))
        else:
            self.trace.operators.extend((start, end))

    def finish(self, events: Events) -> RankTrace:
        """The trace, in order. Raises TraceError where it has nothing that we know."""
        trace, header = self.trace, events.header
        trace.events = events.count
        trace.notes += events.notes
        told = header.get("distributedInfo")
        if isinstance(told, dict):
            trace.rank = max(-1, integer(told.get("rank"), -1))
            trace.ranks = integer(told.get("world_size"))
            trace.backend = str(told.get("backend", ""))
        if trace.rank < 0 and (named := re.search(r"rank[-_ ]?(\d+)", trace.name, re.I)):
            trace.rank = int(named[1])
        devices = header.get("deviceProperties")
        first = devices[0] if isinstance(devices, list) and devices else None
        trace.device = str(first.get("name", "")) if isinstance(first, dict) else ""
        if self.others and not trace.kernels:
            names = ", ".join(sorted(self.others)).upper()
            raise TraceError(
                f"{trace.name} was recorded on {names}: only GPUs and CPUs can be read so far"
            )
        if not (trace.kernels or trace.operators) or trace.whole.start == trace.whole.end:
            raise TraceError(f"{trace.name} has neither kernels nor operators: was anything run?")
        self.keep_one_device()
        trace.kernels.sort()
        trace.collectives.sort()
        trace.gradients.sort()
        trace.backward.sort()
        trace.is_forward_only = bool(trace.operators) and not (trace.backward or trace.gradients)
        trace.steps = sorted(
            (step for step in trace.steps if step.end > step.start), key=lambda step: step.start
        )
        begin = min([trace.whole.start, *(step.start for step in trace.steps[:1])])
        trace.begin = begin + integer(header.get("baseTimeNanoseconds")) / 1e3
        trace.loading = union(trace.loading)
        trace.asking = union(trace.asking)
        trace.synchronizing = union(trace.synchronizing)
        if trace.is_gpu:
            trace.operators = array("d")
        else:
            trace.notes.append(
                "No GPU events: what counts here are operators on the CPU and gloo's collectives."
            )
        self.check_steps()
        return trace

    def keep_one_device(self) -> None:
        """Of several GPUs of one process: the one that computes longest, and a note."""
        times: dict[int, float] = defaultdict(float)
        for kernel in self.trace.kernels:
            computed = kernel.end - kernel.start if kernel.kind == "compute" else 0.0
            times[kernel.device] += computed
        if len(times) < 2:
            return
        first, *others = sorted(times, key=lambda device: (-times[device], device))
        shares = [
            f"GPU {device} computed {times[device] / times[first]:.0%} as long"
            for device in others
            if times[device]
        ]
        if shares:
            self.trace.notes.append(
                f"This process used {len(shares) + 1} GPUs. The bars are of GPU {first}, which "
                f"computed longest; {', '.join(shares)}."
            )
        kept = [kernel for kernel in self.trace.kernels if kernel.device == first]
        times_kept = {(kernel.start, kernel.end) for kernel in kept}
        self.trace.collectives = [c for c in self.trace.collectives if c[:2] in times_kept]
        self.trace.kernels = kept

    def check_steps(self) -> None:
        trace = self.trace
        pairs = zip(trace.steps, trace.steps[1:], strict=False)
        crossing = [(a, b) for a, b in pairs if b.start < a.end - 0.05 * (a.end - a.start)]
        if crossing:
            a, b = crossing[0]
            trace.notes.append(
                f"Steps {a.number} and {b.number} overlap, so the whole trace is read as one step."
            )
            trace.steps = []
        elif not trace.steps:
            trace.notes.append(
                "No ProfilerStep#: call profiler.step() after each step. "
                "The whole trace is read as one."
            )
