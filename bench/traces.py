"""`python -m bench.traces FOLDER PYTHON [PAIRS]`: HolisticTraceAnalysis on the same traces.

FOLDER has `tests/data` of HolisticTraceAnalysis. PYTHON is a Python with that package, which isn't
among ours because it has a hundred dependencies. `bench/recorded/traces.json` keeps how the peer
divides each small trace of the page. For the public traces it keeps the seconds of both, in turns,
each in a new process and without the start of Python. Ours is timed in Pyodide, too, as in a tab.
There the processor's seconds are kept next to the clock's, which are more on a busy machine.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from bench.pairs import ROOT, summary
from bench.reduce_traces import OUT, TRACES
from playground.build import tab

RECORD = ROOT / "bench/recorded/traces.json"
TIMED = ("resnet-2-a100", "small-messages-2-v100", "recommender-8-a100")
PEER = """
import json, logging, sys, time, warnings
warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
begin = time.perf_counter()
read = TraceAnalysis({0: sys.argv[1]}, "/", include_last_profiler_step=True)
row = read.get_temporal_breakdown(visualize=False).iloc[0]
overlap = read.get_comm_comp_overlap(visualize=False).iloc[0]["comp_comm_overlap_pctg"]
seconds = time.perf_counter() - begin
names = {"total": "kernel", "compute": "compute", "other": "non_compute", "idle": "idle"}
found = {name: float(row[f"{theirs}_time(us)"]) for name, theirs in names.items()}
overlap = None if overlap != overlap else float(overlap)  # without communication it is no number
print(json.dumps(found | {"overlap": overlap, "seconds": seconds}))
"""
OURS = """
import json, sys, time
begin = time.perf_counter()
from pathlib import Path
from distributed.read_trace.__main__ import read_file
from distributed.read_trace.breakdown import whole
from distributed.read_trace.verdict import judge
trace = read_file(Path(sys.argv[1]))
judge([trace])
found = whole(trace)._asdict()
print(json.dumps(found | {"events": trace.events, "seconds": time.perf_counter() - begin}))
"""


def run(python: str, program: str, trace: Path) -> dict[str, Any]:
    """What one of the two says of a trace."""
    environment = os.environ | {"HTA_DISABLE_NS_ROUNDING": "1", "PYTHONPATH": str(ROOT / "code")}
    command = [python, "-c", program, str(trace)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def in_a_tab(trace: Path) -> dict[str, float]:
    """Seconds, events, and bytes of memory in Pyodide."""
    pyodide = ROOT / "book/web/node_modules/pyodide"
    with tempfile.TemporaryDirectory() as folder:
        ours = Path(folder, "python.zip")
        ours.write_bytes(tab.archive(tab.standard(pyodide)))
        program = Path(__file__).with_name("traces_in_tab.mjs")
        command = [tab.node(), *map(str, (program, pyodide, ours, trace))]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def row(name: str, trace: Path, peer: str, pairs: int) -> dict[str, Any]:
    """A row as the other benches have it, with the number of events."""
    both = [(run(sys.executable, OURS, trace), run(peer, PEER, trace)) for _ in range(pairs)]
    times = [(ours["seconds"], theirs["seconds"]) for ours, theirs in both]
    found = summary(f"read_trace/{name}", times, "HolisticTraceAnalysis", 1, trace.stat().st_size)
    tabs = [in_a_tab(trace) for _ in range(pairs)]
    found |= {"tab_s": median(each["seconds"] for each in tabs)}
    found |= {"tab_processor_s": median(each["processor"] for each in tabs)}
    found |= {"tab_bytes": max(each["memory"] for each in tabs)}
    return found | {"events": both[0][0]["events"]}


def main() -> None:
    folder, peer = Path(sys.argv[1]) / "tests/data", sys.argv[2]
    small = {name: run(peer, PEER, OUT / f"{name}.json.gz") for name in TRACES}
    breakdown = {name: {k: v for k, v in s.items() if k != "seconds"} for name, s in small.items()}
    pairs = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    rows = [row(name, folder / TRACES[name].path, peer, pairs) for name in TIMED]
    for each in rows:
        print(
            f"{each['id']:40} {each['events']:7,} events {each['ours_s']:6.2f} s, peer "
            f"{each['peer_s']:6.2f} s ({each['ratio']:.2f}), in a tab {each['tab_s']:6.2f} s "
            f"({each['tab_processor_s']:.2f} s of processor) and {each['tab_bytes'] / 1e6:.0f} MB"
        )
    RECORD.write_text(json.dumps({"breakdown": breakdown, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
