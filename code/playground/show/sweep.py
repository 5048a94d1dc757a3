"""Recorded sweep of collectives over sizes and ranks, predicted from the cost of one message.

α and β are the costs of a message, fitted to the collectives that consist of a single message on
two ranks. All other times are predicted in two ways: from the messages of the busiest rank, or from
the messages of all ranks together.
"""

import json
from collections.abc import Callable
from typing import Any

from distributed.collectives import SENT
from distributed.instruments.algorithms import SENT as ALL_REDUCE_SENT
from distributed.workbench.measure import fit
from playground.show import recorded

Row = dict[str, Any]
WAYS: dict[str, Callable[..., Any]] = {"the busiest rank": max, "all ranks together": sum}
SENDS = SENT | {("all_reduce", algorithm): sent for algorithm, sent in ALL_REDUCE_SENT.items()}
ONE_MESSAGE = [("broadcast", "linear"), ("broadcast", "tree"), ("scatter", "linear"),
               ("gather", "linear")]  # fmt: skip


class Sweep:
    """Rows of `python -m bench.sweep --record`, with α (s) and β (s/byte) of one message."""

    def __init__(self) -> None:
        kept = json.loads((recorded.FOLDER / "sweep.json").read_text())
        self.stamp = f"{recorded.stamp(kept)}. Repeat: python -m bench.sweep --record"
        rows: list[Row] = kept["rows"]
        self.rows = [row for row in rows if (row["op"], row["algorithm"]) in SENDS]
        self.one_message = self.on(2, *ONE_MESSAGE)
        messages, sizes = zip(*(counts(row, sum) for row in self.one_message), strict=True)
        self.cost = fit(messages, sizes, [row["s"] for row in self.one_message])

    @property
    def alpha(self) -> float:
        """Latency of a message, α (s)."""
        return float(self.cost[0])

    @property
    def bandwidth(self) -> float:
        """Bandwidth (bytes/s)."""
        return float(1 / self.cost[1])

    def on(self, ranks: int, *names: tuple[str, str]) -> list[Row]:
        """The rows for this number of ranks: all, or those of some (op, algorithm)."""
        return [
            row for row in self.rows
            if row["ranks"] == ranks and (not names or (row["op"], row["algorithm"]) in names)
        ]  # fmt: skip

    def predicted(self, row: Row, way: str) -> float:
        """Seconds of a row's collective, by the model that counts messages by `way`."""
        return float(self.cost @ counts(row, WAYS[way]))

    def misses(self, rows: list[Row], way: str) -> list[float]:
        """Deviations of the times from their predictions, as shares of the predictions."""
        return [row["s"] / self.predicted(row, way) - 1 for row in rows]


def counts(row: Row, whose: Callable[..., Any]) -> tuple[int, int]:
    """Messages and bytes that the model counts."""
    of_rank, ranks = SENDS[row["op"], row["algorithm"]], row["ranks"]
    sent = [of_rank(row["bytes"] // 4, rank, ranks) for rank in range(ranks)]
    return whose(s.messages for s in sent), 4 * whose(s.elements for s in sent)
