"""An all-reduce in two levels, message by message, as a figure to step through."""

from dataclasses import dataclass
from typing import Any

from distributed.two_levels import two_levels
from distributed.workbench.threads import ThreadGroup
from playground.show.emulate import NotedGroup, recording, run_in_threads
from playground.show.steps import Message, Run, Steps


class Part:
    """A subset of the ranks of `whole` as a wire, numbered from 0 in the order of `ranks`."""

    def __init__(self, whole: NotedGroup, ranks: range):
        self.whole, self.ranks = whole, ranks
        self.rank, self.size = ranks.index(whole.rank), len(ranks)
        self.empty_like, self.copy = whole.empty_like, whole.copy

    relay: Any = ThreadGroup.relay

    def send(self, x: Any, to: int) -> None:
        self.whole.send(x, self.ranks[to])

    def receive(self, x: Any, source: int) -> Any:
        return self.whole.receive(x, self.ranks[source])

    def exchange(self, outgoing: Any, to: int, incoming: Any, source: int) -> Any:
        return self.whole.exchange(outgoing, self.ranks[to], incoming, self.ranks[source])


@dataclass(frozen=True)
class RunOnHosts(Run):
    """A recorded run on hosts of `per_host` ranks each."""

    per_host: int

    def is_inside(self, message: Message) -> bool:
        """Whether a message stays inside a host."""
        return message.sender // self.per_host == message.to // self.per_host

    def leaves(self, host: int) -> float:
        """Arrays that the ranks of a host have sent to other hosts, all of them together."""
        own = [m for m in self.messages if m.sender // self.per_host == host]
        return sum(m.end - m.start for m in own if not self.is_inside(m)) / self.ranks

    @property
    def recording(self) -> dict[str, Any]:
        return {**super().recording, "perHost": self.per_host}

    def caption(self, step: int) -> str:
        said = super().caption(step)
        if step == 0:
            here = " and ".join(map(str, range(self.per_host)))
            return f"{said} Ranks {here} are on host 0, and the others on host 1."
        inside = all(self.is_inside(m) for m in self.messages if m.step == step)
        return said.replace(":", ", inside the hosts:" if inside else ", between hosts:", 1)


def record_two_levels(ranks: int = 4, per_host: int = 2) -> Steps:
    """Run `two_levels` on two hosts of `per_host` ranks, and record every message."""

    def by_hosts(group: NotedGroup, x: Any, combine: Any) -> None:
        host, local_rank = divmod(group.rank, per_host)
        inside = Part(group, range(host * per_host, (host + 1) * per_host))
        between = Part(group, range(local_rank, ranks, per_host))
        two_levels(inside, between, x, combine)

    run = RunOnHosts(*recording(run_in_threads(by_hosts, ranks)), per_host)
    return Steps("two_levels", [run], ranks)
