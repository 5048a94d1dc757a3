"""GPUs and networks as data: units, names, and what each says of its source."""

import pytest

from distributed.planner.hardware import GIB, GPUS, NETWORKS, between_hosts, gpu, network


@pytest.mark.parametrize("name", GPUS)
def test_a_gpu_is_plausible_and_says_where_its_numbers_are_from(name):
    one = gpu(name)
    assert 1e13 < one.peak < 1e16
    assert 10 * GIB < one.memory < 300 * GIB
    assert one.network < one.inside < 1e12
    assert one.source
    assert one.host
    assert one.dtype in ("bf16", "fp16")
    assert 0.03 * one.peak < one.fp32 < one.peak
    assert bool(one.tf32) == (one.dtype == "bf16")  # both came with Ampere
    assert one.fp32 <= one.tf32 < one.peak or not one.tf32
    assert one.pcie in (16e9, 32e9, 64e9)


@pytest.mark.parametrize(("name", "total"), [("p100", 160), ("v100", 300), ("a100", 600),
                                             ("h100", 900), ("h200", 900), ("b200", 1800),
                                             ("mi300x", 7 * 128)])  # fmt: skip
def test_inside_is_one_direction_of_what_vendors_state_for_both(name, total):
    assert gpu(name).inside == total / 2 * 1e9


def test_a_host_has_the_ports_of_all_its_gpus():
    assert gpu("h100").host_network == 400e9
    assert gpu("a100").host_network == 200e9
    assert gpu("v100").host_network == 50e9


def test_slow_links_inside_a_host_limit_what_it_exchanges_with_others():
    assert between_hosts(gpu("h100")) == 400e9
    assert between_hosts(gpu("l40s")) == 32e9 < gpu("l40s").host_network
    assert between_hosts(gpu("4090")) == 5e9


@pytest.mark.parametrize(("name", "gigabits"), [("hdr", 200), ("ndr", 400), ("xdr", 800)])
def test_a_port_in_bytes(name, gigabits):
    assert network(name).bandwidth * 8 == gigabits * 1e9


@pytest.mark.parametrize(
    "name", ["H100", "h100-sxm", "H100_SXM", "RTX 4090", "RTX4090", "NVIDIA GeForce RTX 5090"]
)
def test_names_may_be_written_as_people_write_them(name):
    assert gpu(name).peak > 0


@pytest.mark.parametrize(
    ("name", "near"), [("h1000", "h100"), ("a10", "a100"), ("mi300", "mi300x")]
)
def test_an_unknown_gpu_gets_the_nearest_names(name, near):
    said = f"gpu='{name}' is not known: .*--gpu-file; did you mean .*{near}"
    with pytest.raises(ValueError, match=said):
        gpu(name)


def test_a_name_like_no_other_gets_the_list():
    with pytest.raises(ValueError, match="choose one of ethernet-1, "):
        network("§§§")
    assert set(NETWORKS) >= {"edr", "hdr", "ndr"}
