"""Usage of parameters: which gradients a wrapper waits for in a backward pass, and how often.

A pass uses every parameter once, unless the caller allows it to leave some out
(`find_unused_parameters`), or says that all passes are like the first one (`static_graph`). If
parameters may be left out, the ranks compare which ones they used.
"""

import torch
from torch import nn

from distributed import Group


class Usage:
    """The gradients that the buckets wait for in a backward pass, and how often each arrives."""

    def __init__(self, names: dict[nn.Parameter, str], static_graph: bool, find_unused: bool):
        self.names, self.static_graph = names, static_graph
        self.find_unused = find_unused and not static_graph
        # How often each arrives in one pass. In the first pass of a static graph: None.
        self.expected = None if static_graph else dict.fromkeys(names, 1)
        self.counts: dict[nn.Parameter, int] = {}  # of this pass, in order of arrival
        self.used_by_any = set(names)  # those that get a mean: some rank has a gradient for them

    @property
    def is_open(self) -> bool:
        """Whether this pass may leave parameters out: ranks compare at its end."""
        return self.find_unused or self.expected is None

    def never_used(self) -> list[nn.Parameter]:
        return [p for p, times in (self.expected or {}).items() if times == 0]

    def count(self, parameter: nn.Parameter) -> bool:
        """Note a gradient; whether it is the last one for this parameter in this pass."""
        times = self.counts.pop(parameter, 0) + 1
        self.counts[parameter] = times
        if self.expected is None:
            return False
        if times > self.expected[parameter]:
            raise RuntimeError(self._says_got(parameter, times))
        return times == self.expected[parameter]

    def check_may_come(self, parameter: nn.Parameter) -> None:
        """In a pass that is not counted, raise for what no rank's static graph has used."""
        if parameter not in self.used_by_any and not self.find_unused:
            raise RuntimeError(self._says_got(parameter, 1))

    def _says_got(self, parameter: nn.Parameter, times: int) -> str:
        advice = "checkpoint with use_reentrant=False, or give static_graph=True"
        if self.static_graph and self.expected is not None:
            advice = f"static_graph=True, and the first pass had {self.expected[parameter]}"
        return f"{self.names[parameter]} got {times} gradients in one backward pass: {advice}"

    def compare(self, group: Group) -> None:
        """Exchange usage: a parameter that any rank used gets a mean, and others keep none.

        A gradient may come from an earlier pass, within `no_sync`. So a gradient that exists
        counts, whether or not it arrived in this pass.
        """
        here = [self.counts.get(p, 0) for p in self.names]
        have = [int(p.grad is not None) for p in self.names]
        both = torch.tensor([here, have], device=group.device)
        most, used = group.all_reduce(both, "max").tolist()
        self.used_by_any = {p for p, n in zip(self.names, used, strict=True) if n}
        if self.expected is None:  # a rank that had no data yet expects what others saw
            self.expected = dict(zip(self.names, here if self.counts else most, strict=True))
