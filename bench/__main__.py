"""`python -m bench [--quick] [--only PATTERN] [--record NAME]`: time all pairs and keep them.

The rows go to `_build/bench.json`. `--record NAME` also keeps them in `bench/recorded/NAME.json`,
from where pages and the README take their numbers.
"""

import argparse
import contextlib
import fnmatch
import io
import json

from bench import collectives, ddp, launching, live, phone, zero
from bench.pairs import ROOT

PARTS = (launching, collectives, ddp, zero, live, phone)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few pairs: less than a minute in all")
    only = "ids of the pairs to run, such as 'launch/*,live/*' (default: all)"
    parser.add_argument("--only", default="*", help=only)
    record = "name under which bench/recorded keeps the rows (default: not kept there)"
    parser.add_argument("--record", metavar="NAME", help=record)
    options = parser.parse_args()

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
    print(f"{'':34} {'ours':>10} {'peer':>10} {'ratio':>7}   (range)        peer")
    for _name, work in chosen:
        with contextlib.redirect_stdout(io.StringIO()):
            row = work(options.quick)
        rows.append(row)
        print(
            f"{row['id']:34} {row['ours_s'] * 1e3:7.1f} ms {row['peer_s'] * 1e3:7.1f} ms"
            f" {row['ratio']:7.2f}   ({row['ratio_low']:.2f} to {row['ratio_high']:.2f})"
            f"   {row['peer']}"
        )
    text = json.dumps(rows, indent=1) + "\n"
    (ROOT / "_build").mkdir(exist_ok=True)
    (ROOT / "_build/bench.json").write_text(text)
    if options.record:
        (ROOT / f"bench/recorded/{options.record}.json").write_text(text)


if __name__ == "__main__":
    main()
