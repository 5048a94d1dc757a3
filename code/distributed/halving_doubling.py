"""All-reduce by halving and doubling: few steps *and* few bytes.

    x[n]{partial over ranks} → x[n], equal to the bit on every rank

In each step two ranks swap halves of the part that they still work on. So log₂ N steps reduce the
array, and the same steps in reverse order gather it. A number of ranks that isn't a power of two
costs extra.
"""

from distributed.all_reduce import Array, Combine, Sent, Wire, bounds
from distributed.runtime.script import run_script


def halving_doubling(wire: Wire, x: Array, combine: Combine) -> None:
    """x[n]{partial over ranks} → x[n] by halves, quarters …, and back (Rabenseifner 2004, §2).

    2 log₂ N steps and 2n(N − 1)/N elements per rank if N is a power of two. Otherwise, some ranks
    first give their array to a neighbor, drop out, and receive the result at the end, which takes
    two more steps and up to n more elements. ⌈log₂ N⌉ roundings to x's dtype.
    """
    aside = wire.size - power_of_two(wire.size)
    has_neighbour = wire.rank < 2 * aside
    if has_neighbour and wire.rank % 2 == 0:
        wire.send(x, wire.rank + 1)
        wire.receive(x, wire.rank + 1)
        return
    if has_neighbour:
        combine(x, wire.receive(wire.empty_like(x), wire.rank - 1), out=x)
    halve_and_double(wire, x, combine, aside)
    if has_neighbour:
        wire.send(x, wire.rank - 1)


def halve_and_double(wire: Wire, x: Array, combine: Combine, aside: int) -> None:
    """x[n]{partial over the ranks at work} → x[n] on each of these, a power of two of them."""
    position = wire.rank // 2 if wire.rank < 2 * aside else wire.rank - aside
    cut = bounds(len(x), wire.size - aside)
    steps = [1 << i for i in range((wire.size - aside).bit_length() - 1)]
    for half in reversed(steps):
        partner, mine, theirs = halves(position, half, aside)
        keep, give = (x[cut[start] : cut[start + half]] for start in (mine, theirs))
        combine(keep, wire.exchange(give, partner, wire.empty_like(keep), partner), out=keep)
    for half in steps:
        partner, mine, theirs = halves(position, half, aside)
        have, want = (x[cut[start] : cut[start + half]] for start in (mine, theirs))
        wire.exchange(have, partner, want, partner)


def power_of_two(ranks: int) -> int:
    """The largest power of two that is not larger."""
    return 1 << (ranks.bit_length() - 1)


def halves(position: int, half: int, aside: int) -> tuple[int, int, int]:
    """The partner's rank, and the first parts of my half and of the partner's half."""
    other = position ^ half
    partner = 2 * other + 1 if other < aside else other + aside
    return partner, position // half * half, other // half * half


def halving_doubling_sent(n: int, rank: int, ranks: int) -> Sent:
    """x[n] from a rank that drops out, and back to it; otherwise two halves in each step."""
    aside = ranks - power_of_two(ranks)
    if rank < 2 * aside and rank % 2 == 0:
        return Sent(n, 1)
    position = rank // 2 if rank < 2 * aside else rank - aside
    cut = bounds(n, ranks - aside)
    helps = rank < 2 * aside
    sent, steps = n * helps, power_of_two(ranks).bit_length() - 1
    for half in (1 << i for i in range(steps)):
        for start in halves(position, half, aside)[1:]:
            sent += cut[start + half] - cut[start]
    return Sent(sent, 2 * steps + helps)


def main(ranks: int = 6, n: int = 1000) -> None:
    """Count what each rank sends, and compare with the formula."""
    from distributed import launch
    from distributed.workbench.measure import count

    counted = launch(count, n, halving_doubling, ranks=ranks)
    for rank, (elements, messages) in enumerate(counted):
        print(f"rank {rank} sent {elements} elements in {messages} messages")
    assert counted == [halving_doubling_sent(n, r, len(counted)) for r in range(len(counted))]


if __name__ == "__main__":
    run_script(main)
