"""`python -m bench [--quick] [--only PATTERN] [--record NAME]`: time all pairs and keep them.

The rows go to `_build/bench.json`. `--record NAME` also keeps them in `bench/recorded/NAME.json`,
from where pages take their numbers. `--against COMMIT` compares this checkout with an earlier
commit, in turns, instead of comparing it with peers.
"""

import argparse
import contextlib
import fnmatch
import io
import json
from collections.abc import Iterator
from typing import Any

from bench import collectives, ddp, launching, live, zero
from bench.against import compare_commits
from bench.pairs import ROOT

PARTS = (launching, collectives, ddp, zero, live)


def measured(options: argparse.Namespace, chosen: list[tuple[str, Any]]) -> Iterator[Any]:
    """The rows of all pairs, one after the other."""
    if options.against:
        names = [name for name, _ in chosen]
        yield from compare_commits(options.against, names, 3 if options.quick else 5)
        return
    for _name, work in chosen:
        with contextlib.redirect_stdout(io.StringIO()):
            row = work(options.quick)
        yield row


def line(row: dict[str, Any]) -> str:
    """A row as a line: the medians, the ratio and its range, and what it was compared with."""
    share = f"   {row['memory_share']:.0%} of memory bandwidth" if "memory_share" in row else ""
    return (
        f"{row['id']:34} {row['ours_s'] * 1e3:7.1f} ms {row['peer_s'] * 1e3:7.1f} ms"
        f" {row['ratio']:7.2f}   ({row['ratio_low']:.2f} to {row['ratio_high']:.2f})"
        f"   {row['peer']}{share}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few pairs: less than a minute in all")
    only = "ids of the pairs to run, such as 'launch/*,live/*' (default: all)"
    parser.add_argument("--only", default="*", help=only)
    record = "name under which bench/recorded keeps the rows (default: not kept there)"
    parser.add_argument("--record", metavar="NAME", help=record)
    against = "commit to compare this checkout with, in 5 pairs per row (3 with --quick)"
    parser.add_argument("--against", metavar="COMMIT", help=against)
    options = parser.parse_args()
    if options.against and options.record:
        parser.error("--record keeps rows that compare with peers: leave it out with --against")

    cases = [case for part in PARTS for case in part.cases()]
    chosen = [
        (name, work)
        for name, work in cases
        if any(fnmatch.fnmatch(name, pattern) for pattern in options.only.split(","))
    ]
    if not chosen:
        parser.exit(
            2,
            f"--only {options.only}: no such pair; choose from {', '.join(n for n, _ in cases)}\n",
        )

    rows = []
    peer = options.against or "peer"
    print(f"{'':34} {'ours':>10} {peer:>10} {'ratio':>7}   (range)")
    try:
        for row in measured(options, chosen):
            rows.append(row)
            print(line(row), flush=True)
    except ValueError as error:
        parser.exit(2, f"{error}\n")
    text = json.dumps(rows, indent=1) + "\n"
    (ROOT / "_build").mkdir(exist_ok=True)
    (ROOT / "_build/bench.json").write_text(text)
    if options.record:
        (ROOT / f"bench/recorded/{options.record}.json").write_text(text)


if __name__ == "__main__":
    main()
