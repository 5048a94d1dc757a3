"""Time collectives by size, algorithm and dtype, on any backend, as NCCL's tests do.

    python -m distributed.instruments.collective_times --op reduce_scatter --size 64MB --ranks 4

`OPS` has all ways to do each collective: the algorithms on messages, and the groups that do them by
other means.
"""

from collections.abc import Callable

import torch

from distributed import Group, launch
from distributed.collectives import (
    all_gather,
    all_to_all,
    gather,
    reduce_scatter,
    scatter,
)
from distributed.hierarchical import HierarchicalGroup
from distributed.instruments.algorithms import ALGORITHMS
from distributed.runtime.script import run_script, to_bytes
from distributed.shared_memory import SharedGroup
from distributed.trees import linear_broadcast, linear_reduce, tree_broadcast, tree_reduce

Collective = Callable[[Group, torch.Tensor, torch.Tensor], object]  # work(group, x, out)


def by_messages(algorithm: Callable[..., None]) -> Collective:
    return lambda group, x, out: algorithm(group, x, torch.add)


# Not algorithms on messages but other groups, whose own methods do it.
GROUPS: dict[str, Callable[[Group], Group]]
GROUPS = {"shared": SharedGroup, "hierarchical": HierarchicalGroup}
SHARING = ("backend", "shared")
DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")
OPS: dict[str, dict[str, Collective]] = {
    "all_reduce": {
        **{name: by_messages(algorithm) for name, algorithm in ALGORITHMS.items()},
        **dict.fromkeys(("backend", *GROUPS), lambda group, x, out: group.all_reduce(x)),
    },
    "broadcast": {
        "linear": lambda group, x, out: linear_broadcast(group, x),
        "tree": lambda group, x, out: tree_broadcast(group, x),
        **dict.fromkeys(SHARING, lambda group, x, out: group.broadcast(x)),
    },
    "reduce": {"linear": by_messages(linear_reduce), "tree": by_messages(tree_reduce)},
    "scatter": {"linear": scatter},
    "gather": {"linear": gather},
    "reduce_scatter": {
        "ring": lambda group, x, out: reduce_scatter(group, x, out, torch.add),
        **dict.fromkeys(SHARING, lambda group, x, out: group.reduce_scatter(x, out)),
    },
    "all_gather": {
        "ring": all_gather,
        **dict.fromkeys(SHARING, lambda group, x, out: group.all_gather(x, out)),
    },
    "all_to_all": {"pairwise": all_to_all},
}


def main(
    op: str = "all_reduce",
    size: str = "1MB",
    ranks: int = 4,
    algorithm: str = "ring,backend",
    dtype: str = "float32",
    times: int = 11,
    device: str = "auto",
) -> None:
    """Time collectives of several sizes and algorithms (lists with commas), as NCCL's tests do."""
    from distributed.workbench.measure import HEADER, row, time_one

    sizes, names = [to_bytes(one) for one in size.split(",")], algorithm.split(",")
    if op not in OPS:
        raise ValueError(f"op={op!r}: choose one of {', '.join(OPS)}")
    for name in set(names) - set(OPS[op]):
        raise ValueError(f"algorithm={name!r}: for {op}, choose from {', '.join(OPS[op])}")
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r}: choose one of {', '.join(DTYPES)}")
    kind = getattr(torch, dtype)
    if times < 1:
        raise ValueError(f"times={times}: measure once or more")

    def measure(group: Group) -> list[str]:
        rows, groups = [], {name: GROUPS[name](group) for name in names if name in GROUPS}
        for wanted in sizes:
            n = max(1, wanted // kind.itemsize // group.size) * group.size
            for name in names:
                taken, right = time_one(groups.get(name, group), OPS[op][name], op, n, kind, times)
                rows.append(row(op, name, n * kind.itemsize, group.size, taken, right))
        return rows

    rows = launch(measure, ranks=ranks, device=device, timeout=None)[0]
    print("\n".join([HEADER, *rows]))
    assert not any("WRONG" in line for line in rows), "some numbers are wrong"


if __name__ == "__main__":
    run_script(main)
