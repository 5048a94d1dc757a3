"""Draw, train, compare: `python -m tests.fuzz 1234` repeats a draw, `--draws 2000` makes many."""

import argparse
import time
from collections import Counter
from contextlib import ExitStack

from tests.fuzz.compare import check
from tests.fuzz.events import ODD, drawn
from tests.pools import Pools


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("number", type=int, nargs="*", help="draws to repeat, shown in full")
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--odd", choices=[*ODD], help="make this use of each draw that it fits")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for a draw")
    given = parser.parse_args()
    failed, refusals = [], Counter[str]()
    started = time.perf_counter()
    with ExitStack() as stack:
        pools = Pools(stack)
        for number in given.number or range(given.first, given.first + given.draws):
            made = drawn(number, given.odd)
            try:
                if said := check(pools, made, given.timeout):
                    refusals[f"{made.segments[0].strategy}: {made.odd}: {said}"] += 1
            except Exception as error:
                failed.append(number)
                told = str(error) if given.number else str(error).splitlines()[0]
                how = f"{made.segments[0].strategy}{made.odd and ': '}{made.odd}"
                print(f"python -m tests.fuzz {number} ({how}): {type(error).__name__}: {told}")
            if given.number:
                print(made)
    for said, times in sorted(refusals.items()):
        print(f"{times} × {said}")
    seconds = time.perf_counter() - started
    print(f"{len(failed)} failed: {failed}; {seconds:.1f} s")


if __name__ == "__main__":
    main()
