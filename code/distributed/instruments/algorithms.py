"""All-reduce by the name of its algorithm: the six that this book has, and what each sends."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from distributed.all_reduce import Algorithm, Array, Sent, ring, ring_sent
from distributed.halving_doubling import halving_doubling, halving_doubling_sent
from distributed.runtime.script import run_script
from distributed.simple_all_reduces import central, central_sent, naive, naive_sent, tree, tree_sent
from distributed.trees import double_tree, double_tree_sent

if TYPE_CHECKING:
    from distributed import Group

ALGORITHMS: dict[str, Algorithm] = {
    function.__name__: function
    for function in (central, naive, tree, ring, halving_doubling, double_tree)
}
SENT: dict[str, Callable[[int, int, int], Sent]] = {
    "central": central_sent,
    "naive": naive_sent,
    "tree": tree_sent,
    "ring": ring_sent,
    "halving_doubling": halving_doubling_sent,
    "double_tree": double_tree_sent,
}


def all_reduce(
    group: "Group",
    x: Array,
    op: str = "sum",
    algorithm: str | Algorithm = "ring",
    async_op: bool = False,
) -> Any:
    """x[...]{partial over ranks} → x[...], in place. Returns x, or with `async_op` a Handle.

    `op` is one of sum, avg, max, min and product, `algorithm` one of ALGORITHMS or a function like
    those. Sums are made in x's dtype; the mean of float16 is divided as `arrays.divisors` says.
    Raises ValueError for any other op or algorithm, and for an op not defined for x's dtype,
    before anything is sent.
    """
    if isinstance(algorithm, str) and algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm={algorithm!r}: choose one of {', '.join(ALGORITHMS)}")
    reduce = ALGORITHMS[algorithm] if isinstance(algorithm, str) else algorithm

    return group.reduce_by(reduce, x, op, async_op)


def main(ranks: int = 4, n: int = 1000) -> None:
    """Count what every algorithm sends, beside its formula."""
    from distributed import Group, launch
    from distributed.workbench.measure import count

    def count_all(group: Group) -> dict[str, tuple[int, int]]:
        return {name: count(group, n, algorithm) for name, algorithm in ALGORITHMS.items()}

    counts = launch(count_all, ranks=ranks)
    print("(elements, messages) that ranks 0, 1, … sent")
    for name, sent in SENT.items():
        print(f"{name:16}", counted := [tuple(of_rank[name]) for of_rank in counts])
        assert counted == [sent(n, rank, len(counts)) for rank in range(len(counts))]


if __name__ == "__main__":
    run_script(main)
