"""Tables and figures for *On your cluster*: reports of check_cluster.py on hosts in the laboratory.

A recorded report contains the measurements. The script draws its conclusions from them again.
"""

import json
from dataclasses import asdict
from statistics import median
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from distributed.planner.hardware import GPUS, between_hosts
from playground.lab.one_host import SCRIPTS, as_module
from playground.show.colours import GREY
from playground.show.recorded import FOLDER
from playground.show.tables import Table

check = as_module(SCRIPTS / "check_cluster.py")
MARKED = ("BAD", "note")  # verdicts that a reader has to find among those that are ok
SAME_LINKS = ("a100-40", "v100-32")  # as fast as the versions with more, or less, memory


def everything() -> dict[str, Any]:
    return json.loads((FOLDER / "check_cluster.json").read_text())


def recorded(case: str) -> dict[str, Any]:
    """A report of `python -m bench.check_cluster`: of hosts that were "well", "ill", or "dies"."""
    return everything()[case]


class Verdicts(Table):
    """A table in whose first column `BAD` and `note` have a color."""

    def _cell(self, value: Any) -> str:
        html = super()._cell(value)
        if value not in MARKED:
            return html
        return html.replace("<td>", f'<td class="verdict-{value.lower()}">')


def judged(report: dict[str, Any]) -> Table:
    """What the script prints in a terminal: verdicts, from the report alone, and the last lines."""
    rows = []
    for one in check.judge(report):
        advice = f"\n→ {one.next.replace('`', '')}" if one.next and one.level != "ok" else ""
        level = "BAD" if one.level == "bad" else one.level
        rows.append((level, one.check, one.found + advice))
    last = printed(report).splitlines()[-2 if report["ended"] else -1 :]
    return Verdicts(["", "check", "found"], rows, " · ".join(last))


def printed(report: dict[str, Any]) -> str:
    """What the script prints at its end in a terminal."""
    verdicts = check.judge(report)
    bad = any(one.level == "bad" for one in verdicts)
    status = report["status"] if report["ended"] else int(bad)
    judgment = {"verdicts": [asdict(one) for one in verdicts], "status": status}
    return check.table(report | judgment)


def pairs(case: str) -> Figure:
    """What each pair of hosts carries, as a matrix: rows and columns are hosts."""
    report = recorded(case)
    hosts = list(report["hosts"])
    figure, axis = plt.subplots(figsize=(3.3, 3.0))
    carried: dict[tuple[int, int], list[float]] = {}
    for (one, other), found in check.links(report, "between").items():
        ends = [hosts.index(check.host_of(report, rank)) for rank in (one, other)]
        for row, column in (ends, ends[::-1]):
            carried.setdefault((row, column), []).append(found["bytes_per_s"] / 1e6)
    usual = median(max(rates) for rates in carried.values())
    for (row, column), rates in carried.items():
        share = min(1.0, min(rates) / usual)
        square = plt.Rectangle((column - 0.47, row - 0.47), 0.94, 0.94, lw=0)
        square.set_facecolor("#0f766e" if share > 1 / 3 else "#c2410c")
        axis.add_patch(square)
        axis.text(column, row, f"{min(rates):.0f}", ha="center", va="center", color="white")
    for host in range(len(hosts)):
        axis.text(host, host, "–", ha="center", va="center", color=GREY)
    axis.set_xticks(range(len(hosts)), [f"….{host.rpartition('.')[2]}" for host in hosts])
    axis.set_yticks(range(len(hosts)), hosts)
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    axis.set(xlim=(-0.5, len(hosts) - 0.5), ylim=(len(hosts) - 0.5, -0.5))
    for spine in axis.spines.values():
        spine.set_visible(False)
    axis.set_xlabel("MB/s between two hosts")
    return figure


def expected() -> Table:
    """What collectives reach at most, from the planner's table of hardware, in GB/s."""
    rows = []
    for key, gpu in GPUS.items():
        if key in SAME_LINKS:
            continue
        name = gpu.name + (" *" if gpu.host.startswith("assumed") else "")
        speeds = (gpu.inside, gpu.network, between_hosts(gpu))
        links, share, between = (f"{speed / 1e9:g}" for speed in speeds)
        rows.append((name, f"{gpu.peak / 1e12:,.0f}", links, f"{gpu.per_host}", share, between))
    header = ["GPU", "TFLOP/s (16 bit)", "busbw in a host", "GPUs per host",
              "network per GPU", "busbw between hosts"]  # fmt: skip
    note = "GB/s in one direction, from data sheets. * This host and its ports are an assumption."
    return Table(header, rows, note)


def busbw_of(report: dict[str, Any]) -> dict[str, float]:
    """The best busbw of each collective (bytes/s)."""
    best: dict[str, float] = {}
    for one in report["found"]["collectives"]:
        rate = check.busbw(one["name"], one["size"], one["seconds"], len(report["ranks"]))
        best[one["name"]] = max(best.get(one["name"], 0), rate)
    return best
