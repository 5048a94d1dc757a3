"""A step as production systems schedule it: what each library does, in the order it asks for it.

A schedule says what is gathered, computed and reduced, and after what; when that happens follows
from `streams`.
"""

import math
from collections.abc import Callable, Sequence

from distributed.cost import Cluster, all_reduce, reduce_scatter_time
from distributed.planner.streams import Schedule, Streams, Work, simulate, wire
from distributed.runtime.script import run_script


def passes(
    work: Work, streams: Streams, arrived: Sequence[float], leave: Callable[[int, float], None]
) -> None:
    """One micro-batch: unit i is computed when it has arrived, and its gradients `leave`."""
    for i in work.units:
        streams.compute(f"forward {i}", work.forward * work.shares[i], arrived[i])
    for i in reversed(work.units):
        leave(i, streams.compute(f"backward {i}", work.backward * work.shares[i]))


def reduced_in_backward(
    work: Work, streams: Streams, seconds: Sequence[float], every: bool, arrived: Sequence[float]
) -> None:
    """All micro-batches; gradients leave beside the last one's backward pass, or every one's."""
    for micro in range(work.micro_batches):
        last = micro == work.micro_batches - 1

        def leave(i: int, ready: float, leaves: bool = every or last) -> None:
            if leaves:
                streams.run("reduce", f"reduce {i}", seconds[i], ready, wire=wire(work.cluster))

        passes(work, streams, arrived, leave)


def nothing(work: Work) -> list[float]:
    return [0.0] * len(work.shares)


def ddp(work: Work, streams: Streams) -> None:
    """PyTorch's DDP: all-reduce beside the last backward pass (`no_sync` before)."""
    both = [all_reduce(work.cluster, size) for size in work.gradients]
    reduced_in_backward(work, streams, both, False, nothing(work))


def zero1(work: Work, streams: Streams) -> None:
    """Megatron's: reduces in the last backward pass, gathers in the next forward."""
    arrived = []
    for i, size in enumerate(work.parameters):
        seconds = reduce_scatter_time(work.cluster, size)
        end = streams.run("gather", f"gather {i}", seconds, wire=wire(work.cluster))
        arrived.append(end)
    halves = [reduce_scatter_time(work.cluster, size) for size in work.gradients]
    reduced_in_backward(work, streams, halves, False, arrived)


def broadcast_time(cluster: Cluster, size: float) -> float:
    """Time of a broadcast of `size` bytes to all ranks (s): all of them go over each link."""
    return reduce_scatter_time(cluster, size * cluster.ranks / max(1, cluster.ranks - 1))


def gather_after(
    work: Work,
    streams: Streams,
    seconds: Callable[[Cluster, float], float] = reduce_scatter_time,
) -> None:
    """Parameters are gathered, or broadcast, when the step is over, beside nothing."""
    over, hold = streams.end, wire(work.cluster)
    for i, size in enumerate(work.parameters):
        streams.run("gather", f"gather {i}", seconds(work.cluster, size), over, wire=hold)


def zero1_pytorch(work: Work, streams: Streams) -> None:
    """DDP's all-reduce, then ZeroRedundancyOptimizer, which broadcasts after the step."""
    ddp(work, streams)
    gather_after(work, streams, broadcast_time)


def zero1_deepspeed(work: Work, streams: Streams) -> None:
    """DeepSpeed's stage 1: all-reduced beside the last backward pass, gathered after the step.

    Without `use_multi_rank_bucket_allreduce: false` it all-reduces a bucket that is of several
    ranks, and each of them keeps its part (`allreduce_and_scatter` in `stage_1_and_2.py`).
    """
    ddp(work, streams)
    gather_after(work, streams)


def zero2_deepspeed(work: Work, streams: Streams) -> None:
    """DeepSpeed's stage 2: as stage 1, in every backward pass: there is no place for the whole."""
    both = [all_reduce(work.cluster, size) for size in work.gradients]
    reduced_in_backward(work, streams, both, True, nothing(work))
    gather_after(work, streams)


def fsdp(
    work: Work,
    streams: Streams,
    reshard: bool = True,
    between: Callable[[int, float], None] = lambda i, ready: None,
) -> None:
    """FSDP2: every unit is gathered one ahead, in the backward pass again if it was resharded.

    Without `reshard`, units stay until the last micro-batch, so that a step gathers them once.
    A backward pass ends when its gradients are reduced (`finalize_backward` of FSDPParamGroup).
    `between` is called with every unit whose last gradients were reduced, and when.
    """
    gathers = [reduce_scatter_time(work.cluster, size) for size in work.parameters]
    scatters = [reduce_scatter_time(work.cluster, size) for size in work.gradients]
    hold = wire(work.cluster)

    def gather(i: int, freed: float) -> float:
        if micro > 0 and not reshard:
            return freed
        return streams.run("gather", f"gather {i}", gathers[i], freed, wire=hold)

    reduced = 0.0
    for micro in range(work.micro_batches):
        begun = max(streams.free.get("compute", 0.0), reduced)
        freed = [begun] * 2  # two units may be there at a time
        arrived = gather(0, freed[0])
        for i in work.units:
            here, freed = arrived, freed[1:]
            if i + 1 < len(work.units):
                arrived = gather(i + 1, freed[0])
            freed.append(streams.compute(f"forward {i}", work.forward * work.shares[i], here))
        # The last unit goes, too, and comes back beside the loss and the head's backward pass
        if reshard and len(work.units) > 1:
            gather(len(work.units) - 1, freed[0])
        arrived = 0.0
        for i in reversed(work.units):
            here, freed = arrived, freed[1:]
            if reshard and i > 1:  # the first unit is the root: it stays
                arrived = gather(i - 1, freed[0])
            freed.append(streams.compute(f"backward {i}", work.backward * work.shares[i], here))
            reduced = streams.run("reduce", f"reduce {i}", scatters[i], freed[-1], wire=hold)
            if micro == work.micro_batches - 1:
                between(i, reduced)


def zero2(work: Work, streams: Streams) -> None:
    """FSDP2 with `reshard_after_forward=False`, and resharded after the last backward pass only."""
    fsdp(work, streams, reshard=False)


def zero3(work: Work, streams: Streams) -> None:
    """FSDP2 as it is."""
    fsdp(work, streams)


def hsdp(work: Work, streams: Streams) -> None:
    """FSDP2 on a mesh of hosts × ranks: one all-reduce between hosts, on a stream of its own."""
    inside, hosts = hosts_apart(work.cluster)

    def leave(i: int, ready: float) -> None:
        seconds = all_reduce(hosts, work.gradients[i])
        streams.run("reduce between hosts", f"all-reduce {i}", seconds, ready, wire="network")

    fsdp(work._replace(cluster=inside), streams, between=leave)


def hosts_apart(cluster: Cluster) -> tuple[Cluster, Cluster]:
    """One host alone, and the hosts, as if each were one rank."""
    local = min(cluster.ranks, cluster.per_host)
    hosts = cluster._replace(ranks=math.ceil(cluster.ranks / local), per_host=1)
    return cluster._replace(ranks=local), hosts


def zero1_book(work: Work, streams: Streams) -> None:
    """This book's `Zero1`: reduces and gathers when the backward pass has ended."""
    reduced_in_backward(
        work._replace(gradients=nothing(work)), streams, nothing(work), False, nothing(work)
    )
    over = streams.end
    for i, size in enumerate(work.gradients):
        streams.run(
            "reduce",
            f"reduce {i}",
            reduce_scatter_time(work.cluster, size),
            over,
            wire=wire(work.cluster),
        )
    gather_after(work, streams)


def zero2_book(work: Work, streams: Streams) -> None:
    """This book's `Zero2`: reduces in every backward pass, gathers after the step."""
    halves = [reduce_scatter_time(work.cluster, size) for size in work.gradients]
    reduced_in_backward(work, streams, halves, True, nothing(work))
    gather_after(work, streams)


def hsdp_book(work: Work, streams: Streams) -> None:
    """This book's `HSDP`: all-reduces between hosts when the backward pass has ended."""
    inside, hosts = hosts_apart(work.cluster)
    fsdp(work._replace(cluster=inside), streams)
    over = streams.end
    for i, size in enumerate(work.gradients):
        seconds = all_reduce(hosts, size)
        streams.run("reduce between hosts", f"all-reduce {i}", seconds, over, wire="network")


STACKS: dict[str, dict[str, Schedule]] = {
    "pytorch": {"DDP": ddp, "ZeRO-1": zero1_pytorch, "ZeRO-2": zero2, "HSDP": hsdp,
                "ZeRO-3": zero3},
    "megatron": {"DDP": ddp, "ZeRO-1": zero1, "ZeRO-3": zero3},
    "deepspeed": {"DDP": ddp, "ZeRO-1": zero1_deepspeed, "ZeRO-2": zero2_deepspeed,
                  "HSDP": hsdp, "ZeRO-3": zero3},
    "book": {"DDP": ddp, "ZeRO-1": zero1_book, "ZeRO-2": zero2_book, "HSDP": hsdp_book,
             "ZeRO-3": zero3},
}  # fmt: skip


def sent_in_passes(gradient: float, name: str) -> list[tuple[float, int, int]]:
    """What a unit sends in each pass that sends: bytes per parameter, messages, FLOP beside them.

    Parameters are gathered in bf16. FLOP are per parameter and token, without recomputation.
    ZeRO-1 is Megatron's, which gathers in the forward pass, and ZeRO-2 and 3 are FSDP2's.
    """
    gathers, reduces = (2.0, 1, 2), (gradient, 1, 4)
    return {
        "DDP": [(2 * gradient, 1, 4)],
        "ZeRO-1": [gathers, reduces],
        "ZeRO-2": [gathers, reduces],
        "ZeRO-3": [gathers, (2 + gradient, 2, 4)],
    }[name]


def threshold(speed: float, bandwidth: float, gradient: float = 2.0, name: str = "DDP") -> float:
    """Tokens of a rank from which communication hides, for bf16 parameters: about C/W.

    Forward, 2ΨT/C seconds of computation against the 2Ψ/W of a gather; backward, 4ΨT/C against
    `gradient` bytes for each gradient reduced, twice that all-reduced, and a second gather.
    """
    passes = sent_in_passes(gradient, name)
    return max(sent / flop for sent, _, flop in passes) * speed / bandwidth


def threshold_with_latency(
    cluster: Cluster, parameters: float, units: int, gradient: float = 2.0, name: str = "DDP"
) -> float:
    """Tokens of a rank's micro-batch from which communication hides, latency included.

    As `threshold`, with the `cluster`'s speed as C. W is the bandwidth of its link between hosts,
    or of the one inside if it has a single host. `parameters` are in equal `units`, and each of a
    unit's messages also takes the latency of a ring, or in DDP of an all-reduce. HSDP hides two
    things at a time: ZeRO-3's messages inside a host, and DDP's between hosts, which the last
    micro-batch of a step sends.
    """
    if cluster.ranks == 1:
        return 0.0
    if name == "HSDP":
        inside, hosts = hosts_apart(cluster)
        given = parameters, units, gradient
        return max(
            threshold_with_latency(inside, *given, "ZeRO-3"),
            threshold_with_latency(hosts, *given, "DDP"),
        )
    link = cluster.network if cluster.ranks > cluster.per_host else cluster.inside
    latency = (all_reduce if name == "DDP" else reduce_scatter_time)(cluster, 0)
    seconds_and_flop = [
        (parameters * sent / link.bandwidth + units * messages * latency, parameters * flop)
        for sent, messages, flop in sent_in_passes(gradient, name)
    ]
    return max(seconds / flop for seconds, flop in seconds_and_flop) * cluster.speed


def main(layers: int = 32, tokens: int = 8192) -> None:
    """Seven billion parameters on eight hosts: all schedules, on links of 50 GB/s a host."""
    from distributed.cost import Link

    cluster = Cluster(64, 8, Link(3e-6, 360e9), Link(1e-5, 50e9), 400e12)
    unit, seconds = 14e9 / layers, 6 * 7e9 * tokens / 400e12
    alike = [unit] * layers
    work = Work(cluster, alike, alike, [1 / layers] * layers, seconds / 3, seconds * 2 / 3)
    for stack, schedules in STACKS.items():
        for name, schedule in schedules.items():
            step = simulate(schedule, work)
            print(
                f"{stack:10}{name:7}{step.total:7.3f} s, {step.exposed / step.total:4.0%} waiting"
            )
            assert step.total >= step.compute * (1 - 1e-9)
    print(f"hidden from {threshold(400e12, 50e9):,.0f} tokens on")


if __name__ == "__main__":
    run_script(main)
