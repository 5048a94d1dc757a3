"""What code/scripts/check_cluster.py concludes: from reports alone, without a process."""

import itertools
import json
import os
import re
import socket
import sys
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from distributed.planner.hardware import GPUS
from playground.lab.one_host import SCRIPTS, as_module

check = as_module(SCRIPTS / "check_cluster.py")
ROOT = Path(__file__).parents[2]
SOURCE = (SCRIPTS / "check_cluster.py").read_text()
SCHEMA = json.loads((SCRIPTS / "check_cluster.schema.json").read_text())


def test_what_stands_where_is_said_at_its_top() -> None:
    headings = re.findall(r"^# === (\d)\. (.+?)[.:]", SOURCE, re.M)
    contents = re.findall(r"^    (\d)\. (.+?)  ", check.__doc__, re.M)
    assert [int(number) for number, _ in headings] == [*range(1, 8)]
    assert [number for number, _ in contents] == [number for number, _ in headings]
    for (_, title), (_, heading) in zip(contents, headings, strict=True):
        assert heading.split(",")[0].startswith(title.split(",")[0]), title
    said = check.__doc__.partition("4. The stages")[2].partition("5. ")[0]
    order = [said.index(f" {stage}") for stage in check.STAGES]
    assert order == sorted(order)


def test_the_page_and_the_script_know_the_same_findings() -> None:
    """The script has one line of advice for each kind, and the page says the rest."""
    page = (ROOT / "book/at_scale/your_cluster.md").read_text()
    (table,) = re.findall(r"^\| kind \|.*\n\|---.*\n((?:\|.*\n)+)", page, re.M)
    firsts = [row.split("|")[1] for row in table.splitlines()]
    assert {kind for first in firsts for kind in re.findall(r"`([^`]+)`", first)} == {*check.NEXT}
    used = re.findall(r'Verdict\(.+, "(?:bad|note)", .+?, "([^"]+)"[,)]', SOURCE)
    assert len(used) > 20
    assert {*used} - {"skipped"} <= {*check.NEXT}


def report(hosts: int = 4, per_host: int = 1, **found: Any) -> dict[str, Any]:
    """A report of hosts a, b, c, … in which nothing was measured but what is given."""
    names = {chr(ord("a") + host): [*range(host * per_host, (host + 1) * per_host)]
             for host in range(hosts)}  # fmt: skip
    ranks = [
        {"rank": rank, "host": name, "local_rank": rank - its[0], "device": "CPU", "torch": "2.13",
         "nccl": None, "import_s": 2, "cores": [*range(8)], "machine_cores": 8, "quota": 8,
         "nofile": None, "memlock": None, "infiniband": []}
        for name, its in names.items() for rank in its
    ]  # fmt: skip
    return {
        "format": 1, "began": "2026-01-01T00:00:00+00:00", "seconds": 1.0, "finished": True,
        "stage": "counters", "ended": None, "status": 0, "backend": "gloo", "hosts": names,
        "ranks": ranks, "found": found, "missing": [], "skipped": {}, "verdicts": [], "link": None,
    }  # fmt: skip


def wrong(given: dict[str, Any]) -> list[tuple[str, list]]:
    jsonschema.validate(given, SCHEMA)
    return [(one.kind, list(one.where)) for one in check.judge(given) if one.level == "bad"]


def carried(rates: dict[tuple[int, int], float]) -> list[dict[str, Any]]:
    return [{"rank": pair[way], "with": pair[1 - way], "bytes_per_s": rate}
            for pair, rate in rates.items() for way in (0, 1)]  # fmt: skip


def test_its_gpus_are_those_of_the_planner() -> None:
    keys = {"p100": "Tesla P100-SXM2-16GB", "v100": "Tesla V100-SXM2-16GB",
            "a100": "NVIDIA A100-SXM4-80GB", "h100-pcie": "NVIDIA H100 PCIe",
            "h100": "NVIDIA H100 80GB HBM3", "h200": "NVIDIA H200", "b200": "NVIDIA B200",
            "mi300x": "AMD Instinct MI300X", "l40s": "NVIDIA L40S",
            "4090": "NVIDIA GeForce RTX 4090"}  # fmt: skip
    for key, device in keys.items():
        known, gpu = check.hardware(device), GPUS[key]
        assert known == (gpu.peak / 1e12, gpu.inside / 1e9, gpu.network / 1e9), key
    for unknown in (
        "NVIDIA T4",
        "NVIDIA A100-PCIE-40GB",
        "Tesla V100-PCIE-32GB",
        "NVIDIA H100 NVL",
    ):
        assert check.hardware(unknown) is None, "nothing is better than what another card has"
    assert len(check.HARDWARE) == len(keys)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_busbw_is_what_nccl_tests_define(ranks: int) -> None:
    """doc/PERFORMANCE.md: algbw = S/t; an all-reduce's factor is 2(n-1)/n, the others' (n-1)/n."""
    algbw = 1e9 / 0.5
    assert check.busbw("all-reduce", 1e9, 0.5, ranks) == pytest.approx(
        algbw * 2 * (ranks - 1) / ranks
    )
    for name in ("all-gather", "reduce-scatter"):
        assert check.busbw(name, 1e9, 0.5, ranks) == pytest.approx(algbw * (ranks - 1) / ranks)


@pytest.mark.parametrize("hosts", range(2, 40))
def test_rounds_are_few_and_nobody_meets_two_at_once(hosts: int) -> None:
    rounds = check.rounds_of_hosts(hosts)
    assert len(rounds) <= max(3, (hosts - 1).bit_length() + 1)
    met = [pair for one in rounds for pair in one]
    assert len(set(met)) == len(met), "no pair twice"
    for one in rounds:
        members = [*itertools.chain(*one)]
        assert len(set(members)) == len(members)
    everybody = set(itertools.combinations(range(hosts), 2))
    if hosts <= 4:
        assert set(met) == everybody
    assert {one for pair in met for one in pair} == set(range(hosts))


@pytest.mark.parametrize("hosts", [3, 4, 8, 13])
def test_one_slow_host_is_named_whichever_it_is(hosts: int) -> None:
    for ill in range(hosts):
        pairs = [pair for one in check.rounds_of_hosts(hosts) for pair in one]
        rates = {pair: 1e7 if ill in pair else 1e9 for pair in pairs}
        name = chr(ord("a") + ill)
        assert wrong(report(hosts, between=carried(rates))) == [("slow link", [name])]


def test_one_slow_cable_between_two_switches_is_a_pair() -> None:
    pairs = [pair for one in check.rounds_of_hosts(4) for pair in one]
    rates = {pair: 1e7 if pair == (1, 2) else 1e9 for pair in pairs}
    assert wrong(report(between=carried(rates))) == [("slow pair", [["b", "c"]])]


def advised(given: dict[str, Any]) -> dict[str, str]:
    return {one.kind: one.next for one in check.judge(given) if one.level == "bad"}


@pytest.mark.parametrize("slow", [1, 2])
def test_a_cable_that_is_slow_in_one_direction_is_slow(slow: int) -> None:
    pairs = [pair for one in check.rounds_of_hosts(4) for pair in one]
    measured = carried({pair: 1e9 for pair in pairs})
    for one in measured:
        if {one["rank"], one["with"]} == {1, 2} and one["rank"] == slow:
            one["bytes_per_s"] = 1e7
    assert wrong(report(between=measured)) == [("slow pair", [["b", "c"]])]


def test_a_slow_host_and_a_slow_pair_have_a_next_step_each() -> None:
    """A host's cable is at one end; two healthy hosts have only what lies between them."""
    pairs = [*itertools.combinations(range(6), 2)]
    rates = {pair: 1e7 if 4 in pair else 2e7 if pair == (1, 2) else 1e9 for pair in pairs}
    both = report(6, between=carried(rates))
    assert wrong(both) == [("slow link", ["e"]), ("slow pair", [["b", "c"]])]
    said = {one.kind: one.found for one in check.judge(both) if one.level == "bad"}
    assert said == {"slow link": "e: 1% of the other pairs' speed",
                    "slow pair": "between b and c: 2% of the other pairs' speed"}  # fmt: skip
    next_step = advised(both)
    assert "cable" in next_step["slow link"]
    assert "switch" in next_step["slow pair"]
    assert not re.search("exchange|reseat", next_step["slow pair"]), "both hosts' cables are well"


def test_of_two_hosts_a_slow_pair_of_ranks_may_be_the_cable_of_either() -> None:
    """Neither rank has met anybody else, so nothing says that their cards are well."""
    rates = {(rank, rank + 4): 1e7 if rank == 1 else 1e9 for rank in range(4)}
    found = wrong(report(2, 4, between=carried(rates)))
    assert found == [("slow link", [["a (rank 1)", "b (rank 5)"]])]


@pytest.mark.parametrize("ill", [{(0, 1)}, {(0, 1), (0, 2), (0, 3)}])
def test_inside_a_host_there_is_no_cable_and_no_switch_to_exchange(ill: set[tuple]) -> None:
    pairs = itertools.combinations(range(4), 2)
    slow = report(1, 4, inside=carried({pair: 1e7 if pair in ill else 1e9 for pair in pairs}))
    (next_step,) = advised(slow).values()
    assert advised(slow).keys() == {"slow inside"}
    assert "nvidia-smi topo -m" in next_step
    assert "cable" not in next_step


def test_of_two_hosts_nobody_knows_which_is_ill_but_what_a_link_should_carry_is_known() -> None:
    slow = report(2, between=carried({(0, 1): 1e9}))
    assert wrong(slow) == []
    assert wrong(slow | {"link": 12.5}) == [("links slow", [])]


def test_a_network_card_of_one_rank_is_named_with_its_rank() -> None:
    pairs = [(4 * i + k, 4 * j + k)
             for one in check.rounds_of_hosts(3) for i, j in one for k in range(4)]  # fmt: skip
    rates = {pair: 1e7 if 6 in pair else 1e9 for pair in pairs}
    assert wrong(report(3, 4, between=carried(rates))) == [("slow link", ["b (rank 6)"])]


def test_lost_messages_explain_a_slow_link() -> None:
    pairs = list(itertools.combinations(range(4), 2))
    lost = [{"rank": pair[way], "with": pair[1 - way], "latency_s": 1e-4, "messages": 300,
             "sent_again": 40 if 3 in pair else 0} for pair in pairs for way in (0, 1)]  # fmt: skip
    rates = {pair: 1e6 if 3 in pair else 1e9 for pair in pairs}
    assert wrong(report(lost=lost, between=carried(rates))) == [("drops", ["d"])]


def test_a_slow_rank_is_not_called_a_slow_link() -> None:
    rates = {pair: 1e7 if 2 in pair else 1e9 for pair in itertools.combinations(range(4), 2)}
    computed = [{"rank": rank, "flops": 1e9 if rank == 2 else 1e10, "cpu_share": 0.1}
                for rank in range(4)]  # fmt: skip
    found = report(matmul=computed, between=carried(rates))
    assert wrong(found) == [("slow rank", [2])]


def test_a_pair_that_never_connected_is_said_and_a_host_if_nobody_reaches_it() -> None:
    pairs = list(itertools.combinations(range(4), 2))
    between = carried(dict.fromkeys(pairs, 1e9))
    for one in between:
        if 1 in (one["rank"], one["with"]):
            del one["bytes_per_s"]
            one["problem"] = "connecting: timed out"
    assert wrong(report(between=between)) == [("no connection", ["b"])]


@pytest.mark.parametrize("offset", [30, -30])
def test_a_wrong_clock_is_named_even_if_it_is_the_first_hosts(offset: float) -> None:
    one = [{"rank": rank, "offset_s": offset if rank == 2 else 0.01, "known_to_s": 0.001}
           for rank in (1, 2, 3)]  # fmt: skip
    assert wrong(report(clocks=one)) == [("clock", ["c"])]
    first = [{"rank": rank, "offset_s": offset, "known_to_s": 0.001} for rank in (1, 2, 3)]
    assert wrong(report(clocks=first)) == [("clock", ["a"])]
    unsure = [{"rank": 1, "offset_s": offset, "known_to_s": 40}]
    assert wrong(report(clocks=unsure)) == []


def test_little_shared_memory_explains_a_loader_that_fails() -> None:
    shm = [{"rank": rank, "there": True, "bytes": 64 << 20, "free": (1 << 30) if rank else 4 << 20}
           for rank in range(4)]  # fmt: skip
    loader = [{"rank": 0, "problem": "Bus error"}, {"rank": 1, "batches": 10, "bytes": 1}]
    assert wrong(report(shm=shm, loader=loader)) == [("shm", ["a"])]
    assert wrong(report(loader=loader)) == [("loader", ["a"])]
    for one in shm:
        one["free"] = 64 << 20  # what a container gets that asks for nothing, for one rank
    assert wrong(report(shm=shm)) == [("shm", ["a", "b", "c", "d"])]


def test_loaders_are_as_fast_as_the_slowest_and_no_speed_is_said_where_one_fails() -> None:
    loader: list[dict] = [{"rank": rank, "batches": 20 - rank, "bytes": 1} for rank in range(4)]
    (said,) = (one for one in check.judge(report(loader=loader)) if one.check == "loader")
    assert said.level == "ok"
    assert said.found.startswith(f"at least {17 * 64:,} images/s")  # a batch has 64
    loader[2] = {"rank": 2, "problem": "Bus error"}
    said = [one.level for one in check.judge(report(loader=loader)) if one.check == "loader"]
    assert said == ["bad"]


def test_all_ranks_of_a_host_on_one_core() -> None:
    """Slurm 22.05's srun without --cpus-per-task."""
    bound = report(2, 4)
    for one in bound["ranks"][4:]:
        one["cores"] = [0]
    assert wrong(bound) == [("bound to few cores", ["b"])]


def test_ranks_with_cores_of_their_own_share_none() -> None:
    """As srun --cpus-per-task binds them: no rank may use more than its part of the host."""
    bound = report(2, 4)
    for one in bound["ranks"]:
        own = 2 * one["local_rank"]
        one |= {"cores": [own, own + 1], "quota": 2}
    assert not [one for one in check.judge(bound) if one.check == "cores" and one.level != "ok"]


def test_a_folder_that_one_host_does_not_share() -> None:
    seen = [{"rank": rank, "unseen": [2] if rank != 2 else [0, 1, 3]} for rank in range(4)]
    assert wrong(report(storage=seen)) == [("not shared", ["c"])]


def test_ecc_xid_and_errors_of_network_cards() -> None:
    found = report(2, counters=[{"rank": 1, "counters": {"net/ib0/rx_errors": 9}}])
    gpus = [{"driver": "570", "uncorrected": count, "retired": "No"} for count in ("0", "3")]
    found["ranks"][0] |= {"health": {"gpus": gpus, "xid": ["NVRM: Xid 79, fallen off the bus"]}}
    found["ranks"][1] |= {"counters": {"net/ib0/rx_errors": 2}}
    assert wrong(found) == [("ECC", ["a"]), ("Xid", ["a"]), ("NIC errors", ["b"])]


def test_a_kernel_log_that_is_not_readable_is_not_a_log_without_xid_errors() -> None:
    """With kernel.dmesg_restrict=1, which Ubuntu sets, dmesg fails unless root runs it."""
    found = report(2)
    gpus = [{"driver": "570", "uncorrected": "0", "retired": "No"}]
    found["ranks"][0] |= {"health": {"gpus": gpus, "xid": [], "log": "dmesg"}}
    found["ranks"][1] |= {"health": {"gpus": gpus, "xid": [], "log": None}}
    said = {one.check: one for one in check.judge(found)}
    assert said["GPU health"].found == "2 GPUs: no ECC errors", "nothing about Xid errors"
    unread = said["kernel log"]
    assert (unread.level, unread.kind, unread.where) == ("note", "log not readable", ["b"])
    assert "as root" in unread.next
    assert "journalctl -k" in unread.next
    found["ranks"][1]["health"]["log"] = "journalctl"
    said = {one.check: one for one in check.judge(found)}
    assert said["GPU health"].found == "2 GPUs: no ECC errors and no Xid errors"
    assert "kernel log" not in said


@pytest.mark.parametrize(
    ("number", "level"),
    [
        *((number, "note") for number in (13, 31, 63, 94)),
        *((number, "bad") for number in (48, 64, 79, 95, 119)),
    ],
)
def test_an_xid_after_which_a_gpu_can_go_on_is_only_a_note(number: int, level: str) -> None:
    found = report(2)
    xid = [f"2026-11-27T10:00:00 NVRM: Xid (PCI:0000:3b:00): {number}, pid=1"]
    found["ranks"][0] |= {"health": {"gpus": [{"driver": "570"}], "xid": xid, "log": "dmesg"}}
    (said,) = (one for one in check.judge(found) if one.kind == "Xid")
    assert said.level == level
    assert said.found.startswith("a: 2026-11-27T10:00:00"), "so you can tell whose job it was"


def test_many_xids_of_a_program_hide_no_fault_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "2026-11-27T10:00:{:02} NVRM: Xid (PCI:0000:3b:00): {}, pid=1"
    lines = [line.format(0, 79), *(line.format(second, 31) for second in range(1, 12))]
    monkeypatch.setattr(check, "words_of", lambda *command: ["570, 1, 1, 40, 0, No"])
    monkeypatch.setattr(check, "kernel_log", lambda: ("dmesg", lines))
    found = report(2)
    found["ranks"][0] |= {"health": check.gpu_health()}
    (said,) = (one for one in check.judge(found) if one.kind == "Xid")
    assert (said.level, said.found) == ("bad", f"a: {lines[0]}")


def test_hosts_with_another_torch() -> None:
    found = report()
    found["ranks"][3]["torch"] = "2.11"
    assert wrong(found) == [("versions differ", ["d"])]


def test_gpus_and_links_below_their_data_sheet() -> None:
    found = report(2, 8, matmul=[{"rank": rank, "flops": 300e12} for rank in range(16)])
    for one in found["ranks"]:
        one["device"] = "NVIDIA H100 80GB HBM3"
    assert wrong(found) == [("GPUs slow", [])]
    found["backend"] = "nccl"
    found["found"] = {"collectives": [
        {"rank": 0, "name": "all-reduce", "size": 1 << 28, "right": True,
         "seconds": (1 << 28) * 2 * 15 / 16 / busbw}
        for busbw in (40e9, 50e9)]}  # fmt: skip
    assert wrong(found) == [("collectives slow", [])], "eight ports would carry 400 GB/s"
    assert wrong(found | {"link": 10}) == [], "but the reader's carry 80"


def test_two_gpus_without_a_switch_have_one_link_of_several_between_them() -> None:
    pairs = dict.fromkeys(itertools.combinations(range(4), 2), 48e9)
    found = report(1, 4, inside=carried(pairs)) | {"backend": "nccl"}
    for one in found["ranks"]:
        one["device"] = "AMD Instinct MI300X"
    assert wrong(found) == [], "64 GB/s is the link of two, 448 what one has to all others"
    for one in found["ranks"]:
        one["device"] = "NVIDIA H100 80GB HBM3"
    assert wrong(found) == [("links slow", [])]


def test_a_wrong_sum_is_the_worst_that_can_be_found() -> None:
    one = {"name": "all-reduce", "size": 4096, "seconds": 1e-3, "right": True}
    found = report(collectives=[one | {"rank": 0}, one | {"rank": 1, "right": False}])
    assert wrong(found) == [("wrong sum", [1])]


@pytest.mark.parametrize("names", [
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK"),
])  # fmt: skip
def test_it_knows_its_rank_whatever_started_it(names: tuple[str, ...]) -> None:
    me = check.who_am_i(dict(zip(names, "952", strict=True)))
    assert (me.rank, me.ranks, me.local_rank) == (9, 5, 2)


def test_slurms_pmi_2_does_not_say_which_of_a_host_it_is() -> None:
    slurm = {"SLURM_PROCID": "11", "SLURM_NTASKS": "16", "SLURM_LOCALID": "3"}
    assert check.who_am_i(slurm | {"PMI_RANK": "11", "PMI_SIZE": "16"}).local_rank == 3


def test_a_host_is_known_by_the_name_that_leads_to_it() -> None:
    assert check.my_address("localhost") == "localhost", "no other host gets to 127.0.0.1"
    assert check.my_address("192.0.2.77") != "192.0.2.77"
    assert check.my_address("::1") == "::1"


@pytest.mark.skipif(sys.platform != "linux", reason="its capabilities are Linux's")
def test_who_may_lock_memory_has_no_limit_of_it(monkeypatch) -> None:
    limit = check.resource.RLIMIT_MEMLOCK
    of_all = {limit: (1 << 16, 1 << 16), check.resource.RLIMIT_NOFILE: (256, 256)}
    monkeypatch.setattr(check.resource, "getrlimit", of_all.get)
    for held, memlock in {"0000000000004000": None, "0000000000000400": 1 << 16}.items():
        monkeypatch.setattr(check.Path, "read_text", lambda _, held=held: f"\nCapEff:\t{held}\n")
        assert check.limits() == {"nofile": 256, "memlock": memlock}


class Begun(Exception):
    """Enough of `main` has run."""


def test_nccls_watchdog_ends_no_rank_whatever_torchrun_says(monkeypatch) -> None:
    def begun(_: object) -> None:
        raise Begun

    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    monkeypatch.setattr(check, "end_with_parent", begun)
    with pytest.raises(Begun):
        check.main([])
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"


def test_torchruns_store_is_used_and_none_is_made_beside_it() -> None:
    env = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "7"}
    assert check.meeting_point(env) == ("a", 7, True)
    assert check.meeting_point(env | {"TORCHELASTIC_USE_AGENT_STORE": "True"}) == ("a", 7, False)
    with pytest.raises(SystemExit, match="MASTER_ADDR"):
        check.meeting_point({"RANK": "1", "WORLD_SIZE": "2"})
    of_slurm = {"SLURM_JOB_ID": "123456", "SLURM_LAUNCH_NODE_IPADDR": "a"}
    of_slurm |= {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}
    assert check.meeting_point(of_slurm) == ("a", 23456, True), "each job's own"


@pytest.mark.skipif(sys.platform != "linux", reason="needs all of 127.0.0.0/8")
def test_on_one_host_the_store_listens_on_loopback_alone() -> None:
    store = check.open_store("127.0.0.1", 0, timedelta(seconds=10))
    socket.create_connection(("127.0.0.1", store.port)).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", store.port))


def test_what_nvidia_smi_and_the_kernel_say(tmp_path, monkeypatch) -> None:
    of_all = "cat <<'X'\n570.1, 1980, 1980, 41, 0, No\n570.1, 345, 1980, 88, 2, [N/A]\nX"
    remapped = "echo No, No; echo Yes, No"
    for name, script in {
        "nvidia-smi": f"case $* in *remapped*) {remapped};; *) {of_all}\nesac",
        "dmesg": "cat <<'X'\n[1] usb 1-1: new\n[2] NVRM: Xid (PCI:0000:3b:00): 48, pid=1\nX",
    }.items():
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = check.gpu_health()
    assert [one["uncorrected"] for one in found["gpus"]] == ["0", "2"]
    assert [one["retired"] for one in found["gpus"]] == ["No", "Yes"]
    assert found["xid"] == ["[2] NVRM: Xid (PCI:0000:3b:00): 48, pid=1"]


def test_the_kernel_log_by_journalctl_or_not_at_all(tmp_path, monkeypatch) -> None:
    def say(name: str, script: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)

    say("nvidia-smi", "echo 570.1, 1980, 1980, 41, 0, No")
    say("dmesg", "echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1")
    say("journalctl", "echo '-- No entries --'")  # what it prints without permission
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert check.gpu_health()["log"] is None
    say("journalctl", "echo '2026-11-27T10:00:00 a kernel: NVRM: Xid (PCI:0000:3b:00): 79'")
    found = check.gpu_health()
    assert found["log"] == "journalctl"
    assert len(found["xid"]) == 1
    say("dmesg", "[ $# = 0 ] && echo '[1] usb 1-1: new'")  # busybox knows no --time-format
    assert check.gpu_health()["log"] == "dmesg"


def test_counters_of_network_cards(tmp_path) -> None:
    for name, count in {
        "infiniband/mlx5_0/ports/1/counters/symbol_error": 3,
        "net/eth0/statistics/rx_errors": 0,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(f"{count}\n")
    assert check.error_counters(str(tmp_path)) == {
        "infiniband/mlx5_0/ports/1/counters/symbol_error": 3,
        "net/eth0/statistics/rx_errors": 0,
    }


def test_the_table_fits_a_terminal_and_a_page() -> None:
    found = report(storage=[{"rank": rank, "unseen": [2] if rank != 2 else [0]} for rank in (0, 2)])
    found["verdicts"] = [asdict(one) for one in check.judge(found)]
    lines = check.table(found | {"status": 1}).splitlines()
    assert max(map(len, lines)) <= 100
    (place,) = [number for number, line in enumerate(lines) if line.startswith("BAD")]
    advice = " ".join(line.strip(" →") for line in lines[place + 1 : place + 3])
    assert advice == check.NEXT["not shared"]
    assert lines[place + 2].startswith(" " * 25)
