"""`python -m bench.executed_plans`: recipes for PyTorch, executed at full size in a fake world.

Row by row the result goes to `bench/recorded/executed_plans.json`, from where the chapter *Which
strategy* takes it. A row whose text was executed before is not executed again, so that a run goes
on where another was ended. Nothing here is a time: bytes are the same on any machine.
"""

import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

from distributed.runtime.script import run_script
from playground.environment import environment
from playground.planner.executed_cases import KEPT, LEDGER, Case, case_of, cases, recorded


def row_of(case: Case) -> dict[str, Any]:
    from recipes.executed import execute

    found = execute(case.option, case.job, case.cluster)
    return {
        **case._asdict(),
        "per_host": case.cluster.per_host,
        "code": case.digest,
        "held": found.memory,
        "sent": found.sent,
    }


def update(kept: dict[str, Any], name: str, asked: Sequence[Case], processes: int) -> None:
    """Execute what `kept[name]` doesn't have of today's text, and keep each row immediately."""
    found = {case_of(row): row for row in kept.get(name, [])}
    left = [case for case in asked if found.get(case, {}).get("code") != case.digest]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(row_of, case): case for case in left}
        for done in as_completed(running):
            case, row = running[done], done.result()
            found[case] = row
            print(*case, f"{sum(row['held'].values()) / 1e9:.1f} GB", flush=True)
            rows = [found[each] for each in asked if each in found]
            kept |= {"env": environment(), name: rows}
            KEPT.write_text(json.dumps(kept, indent=1) + "\n")


def main(processes: int = 2) -> None:
    kept = recorded() if KEPT.is_file() else {}
    update(kept, "rows", list(cases()), processes)
    update(kept, "ledger", LEDGER, processes)


if __name__ == "__main__":
    run_script(main)
