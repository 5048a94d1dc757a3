"""Cautions of a plan that goes beyond the runs that planned times were compared with."""

from collections.abc import Iterator
from typing import NamedTuple

from distributed.planner.assumed import Assumed
from distributed.runtime.script import run_script

NO_BAND = "none, because the plan goes beyond what was measured (see the cautions)"


class Beyond(NamedTuple):
    """One respect in which a plan was compared with nothing, in words."""

    said: str
    has_band: bool = True  # whether the band of the planned time still means something


def beyond(found: Assumed) -> list[Beyond]:
    """All respects in which a plan goes beyond what was measured."""
    return [*of_links(found), *of_formats(found)]


def of_links(found: Assumed) -> Iterator[Beyond]:
    """Links inside a host that may be slower than their data sheet."""
    cluster, one = found.cluster, found.gpu
    if min(cluster.ranks, cluster.per_host) == 1 or found.inside.is_measured:
        return
    if not one.peer_to_peer:
        yield Beyond(
            f"the {one.name} has no peer-to-peer transfers over PCIe, so messages go through the"
            f" host's memory, and its links may be much slower than planned; measure them with"
            f" check_cluster.py, and pass the rate, such as --interconnect 10GB"
        )


def of_formats(found: Assumed) -> Iterator[Beyond]:
    """Matrix products in 32 bits."""
    name = found.products_in
    if name in ("fp32", "TF32") and found.speed is None:
        yield Beyond(
            f"products in {name}: no published run was in fp32, so the speed is the share of the"
            " peak that runs in 16 bits reached",
            has_band=False,
        )


def main() -> None:
    """Cautions for Llama 3 8B on eight RTX 4090s."""
    from distributed.planner.hardware import GPUS
    from distributed.planner.job import Job, cluster_of
    from distributed.planner.models import MODELS
    from distributed.planner.speed import achieved

    one, job = GPUS["4090"], Job(MODELS["llama-3-8b"], context=4096, lora=16)
    cluster = cluster_of(one, 8, 8, speed=achieved(one, job.model, job.tokens, False))
    for each in (found := beyond(Assumed(job, cluster, one.memory, one))):
        print(f"- {each.said}")
    assert found


if __name__ == "__main__":
    run_script(main)
