"""What a plan takes from the table of GPUs: links, number formats, and their peaks."""

import json

import pytest
from planning import asked_for, refused, said_of

from distributed.planner.command import main
from distributed.planner.hardware import GPUS
from distributed.planner.job import WIRE, cluster_of
from distributed.planner.links import inside_of, usual

CARDS = "--model qwen3-8b --gpu 4090 --gpus 8 --per-host 8 --context 4096"


# --- links


def test_an_answer_says_which_links_it_assumes(capsys):
    said = said_of(f"{CARDS} --lora 16", capsys)
    expected = "links 32 GB/s per GPU inside a host (PCIe, data sheet, one way), planned with 80%"
    assert expected in said
    assumed = asked_for(CARDS, capsys)["assumed"]
    assert (assumed["inside_bandwidth"], assumed["link_share"]) == (32e9, WIRE)
    said = said_of("--model llama-3-8b --nodes 2", capsys)
    expected = "links 450 GB/s per GPU inside a host (NVLink, data sheet, one way), planned with"
    assert expected in said
    assert "400 GB/s per host between hosts (all its ports, one way), planned with 80%" in said
    assert "more time than planned, on links as fast as stated" in said


@pytest.mark.parametrize("name", ["3090", "4090", "5090"])
def test_geforce_cards_have_no_peer_to_peer_transfers_and_their_link_is_to_be_measured(
    name, capsys
):
    words = f"--model llama-3.2-1b --context 2048 --gpu {name} --gpus 4"
    found = asked_for(words, capsys)
    (caution,) = [each for each in found["cautions"] if "peer-to-peer" in each]
    assert "measure" in caution
    assert "--interconnect" in caution
    measured = asked_for(f"{words} --interconnect 10GB", capsys)
    assert not [each for each in measured["cautions"] if "peer-to-peer" in each]
    assert not [each for each in asked_for(CARDS.replace("4090", "a100"), capsys)["cautions"]
                if "peer-to-peer" in each]  # fmt: skip


@pytest.mark.parametrize(("said", "rate"), [("10GB", 10e9), ("10 GB/s", 10e9), ("80Gbit", 10e9)])
def test_a_measured_link_is_planned_as_it_is(said, rate, capsys):
    words = [*CARDS.split(), "--lora", "16", "--interconnect", said]
    main([*words, "--json"])
    assumed = json.loads(capsys.readouterr().out)["assumed"]
    assert (assumed["inside_bandwidth"], assumed["link_share"]) == (rate, 1)
    main([*words, "--explain"])
    assert "10 GB/s per GPU inside a host (--interconnect, one way), planned as it is" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_slow_link_makes_a_plan_slower(capsys):
    words = f"{CARDS} --recipe bf16-8bit --fused-loss --interconnect"
    fast, slow = (asked_for(f"{words} {rate}", capsys)["options"][-1] for rate in ("25GB", "5GB"))
    assert slow["step_s"] > 2 * fast["step_s"]


@pytest.mark.parametrize("name", ["a100", "h100", "b200", "v100"])
def test_nvlink_is_that_of_the_gpu(name, capsys):
    words = f"--model llama-3.2-1b --gpu {name} --gpus 8 --per-host 8"
    usual, asked = (asked_for(words + more, capsys) for more in ("", " --interconnect nvlink"))
    assert usual["options"] == asked["options"]
    assert asked["assumed"]["inside_bandwidth"] == GPUS[name].inside


def test_pcie_of_a_card_is_what_it_has_anyway(capsys):
    usual, asked = (asked_for(CARDS + more, capsys) for more in ("", " --interconnect pcie"))
    assert usual["options"] == asked["options"]
    assumed = asked_for("--model llama-3-8b --gpu a100 --interconnect pcie", capsys)["assumed"]
    assert (assumed["inside_bandwidth"], assumed["link_share"]) == (32e9, WIRE)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--gpu 4090 --interconnect nvlink", "interconnect='nvlink': the GeForce RTX 4090 24 GB"),
        ("--interconnect infiniband", "interconnect='infiniband': choose nvlink, pcie, ethernet"),
        ("--interconnect 0GB", "interconnect=0: give 1 to 1e+16"),
    ],
)
def test_links_that_do_not_exist_are_refused(words, message, capsys):
    assert message in refused(words, capsys)


# --- number formats


@pytest.mark.parametrize(
    ("name", "fp32", "tf32"),
    [("p100", 10.6, 0), ("v100", 15.7, 0), ("a100", 19.5, 156), ("h100", 67, 495),
     ("4090", 82.6, 82.6), ("mi300x", 163.4, 653.7)],
)  # fmt: skip
def test_fp32_is_planned_with_the_peak_of_fp32(name, fp32, tf32, capsys):
    words = f"--model llama-3.2-1b --gpu {name} --gpus 4 --per-host 4 --recipe fp32 --fused-loss"
    words += " --context 1024"
    assumed = asked_for(words, capsys)["assumed"]
    assert (assumed["peak"], assumed["products_in"]) == (fp32 * 1e12, "fp32")
    assert 0.1 * fp32 < assumed["speed"] / 1e12 < fp32
    assert f"of {fp32:,.3g} TFLOP/s in fp32" in said_of(words, capsys)
    if not tf32:
        assert f"tf32: the {GPUS[name].name} has none" in refused(f"{words} --tf32", capsys)
        return
    faster = asked_for(f"{words} --tf32", capsys)["assumed"]
    assert (faster["peak"], faster["products_in"]) == (tf32 * 1e12, "TF32")
    assert faster["speed"] == pytest.approx(assumed["speed"] * tf32 / fp32)
    assert f"of {tf32:,.3g} TFLOP/s in TF32" in said_of(f"{words} --tf32", capsys)


def test_no_published_run_was_in_fp32_so_there_is_no_band(capsys):
    found = asked_for("--model llama-3.2-1b --recipe fp32", capsys)
    assert [each for each in found["cautions"] if "no published run was in fp32" in each]
    assert found["band"] is None
    assert "band: none" in said_of("--model llama-3.2-1b --recipe fp32", capsys)
    assert asked_for("--model llama-3-8b", capsys)["band"]


def test_tf32_is_for_products_of_fp32_numbers(capsys):
    assert "tf32" in refused("--model llama-3-8b --tf32 --speed 100T", capsys)
    assert "has none" in refused(
        "--params 1e9 --gpu v100-32 --recipe fp32 --tf32 --speed 9T", capsys
    )
    said = refused("--model llama-3-8b --tf32", capsys)
    assert "tf32: rounds products of fp32 numbers; choose --recipe fp32, or leave it out" in said


def test_a_batch_in_fp32_is_planned_with_the_peak_of_fp32(capsys):
    words = "--model llama-3.2-1b --batch 1M --recipe fp32"
    assert (
        asked_for(words, capsys)["options"][0]["compute_s"]
        > 5 * (asked_for(words.replace("fp32", "bf16"), capsys)["options"][0]["compute_s"])
    )


@pytest.mark.parametrize("name", ["p100", "v100", "v100-32"])
def test_a_gpu_without_bf16_is_planned_in_fp16_with_loss_scaling(name, capsys):
    words = f"--model llama-3.2-1b --gpu {name} --context 512"
    said = said_of(words, capsys)
    assert "fp16, fp32 master copy and gradients" in said
    assert "with loss scaling, because this GPU has no bf16" in said
    assert "bf16," not in said
    assert asked_for(words, capsys)["assumed"]["products_in"] == "fp16"
    assert "loss scaling" not in said_of("--model llama-3.2-1b", capsys)


def test_the_peak_in_fp32_of_another_gpu_is_in_its_file(tmp_path, capsys):
    lines = ['name = "L4"', "tflops = 121", 'memory = "22.2GiB"', 'inside = "32GB"',
             'network = "10Gbit"', "per_host = 4"]  # fmt: skip
    (tmp_path / "l4.toml").write_text("\n".join(lines))
    words = f"--model gpt-2-124m --context 1024 --rows 4 --gpu-file {tmp_path / 'l4.toml'}"
    assert "recipe: add tflops_fp32, its peak in fp32, to the file of the L4" in refused(
        f"{words} --recipe fp32", capsys
    )
    measured = asked_for(f"{words} --recipe fp32 --speed 10T", capsys)["assumed"]
    assert (measured["speed"], measured["peak"]) == (1e13, None)
    assert "10 TFLOP/s in fp32, as --speed says" in said_of(
        f"{words} --recipe fp32 --speed 10T", capsys
    )
    (tmp_path / "l4.toml").write_text("\n".join([*lines, "tflops_fp32 = 30.3"]))
    assert asked_for(f"{words} --recipe fp32", capsys)["assumed"]["peak"] == 30.3e12


def test_a_link_has_the_same_latency_whether_its_rate_is_measured_or_from_a_data_sheet():
    for one in GPUS.values():
        measured = inside_of(f"{one.inside / 1e9:g}GB", one)
        assert measured.latency == usual(one).latency == cluster_of(one, 8).inside.latency
    assert usual(GPUS["4090"]).latency > usual(GPUS["h100"]).latency
    assert inside_of("pcie", GPUS["h100"]).latency == usual(GPUS["4090"]).latency
