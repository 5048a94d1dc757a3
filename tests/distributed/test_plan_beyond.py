"""No extrapolation without a warning: cautions of plans beyond what was measured."""

import json

import pytest
from planning import asked_for, said_of

from distributed.planner.beyond import largest, reach
from distributed.planner.command import main
from distributed.planner.published import LONG, longest, rows
from distributed.planner.validation import Errors, predict
from playground.planner.answer import answer

LLAMA = "--model llama-3-8b --context 8192 --nodes 2"


def cautioned(words, capsys):
    """The cautions, which text and JSON both have, and whether there is a band."""
    found = asked_for(words, capsys)
    main([*words.split(), "--explain"])
    said = " ".join(capsys.readouterr().out.split())
    for each in found["cautions"]:
        assert f"caution: {each}".replace("; ", " ") in said.replace("; ", " ")
    if found["recommended"]:
        assert ("band: none, because" in said) == (found["band"] is None)
        assert all((each["step_s_band"] is None) == (found["band"] is None)
                   for each in found["options"])  # fmt: skip
    return found["cautions"], found["band"] is not None


def test_a_plan_like_published_runs_has_a_band_and_no_caution(capsys):
    assert cautioned(LLAMA, capsys) == ([], True)
    assert cautioned(f"{LLAMA} --gpu a100", capsys) == ([], True)


@pytest.mark.parametrize(
    ("words", "said", "has_band"),
    [
        # GPUs
        (f"{LLAMA[:-9]} --gpus 100000", "195.3 times the 512 GPUs of the largest published", False),
        (f"{LLAMA[:-9]} --gpus 1024", "2.0 times the 512 GPUs of the largest published", False),
        ("--model llama-3-8b --gpu a100 --gpus 1024", "", True),
        # Tokens
        (f"{LLAMA} --context 32768 --fused-loss", "attention is counted in full", True),
        (f"{LLAMA} --context 131072 --fused-loss --nodes 8", "more than 65,536 tokens", False),
        ("--model gpt-2-124m --context 2048 --rows 8", "1,024 learned positions", False),
        (f"{LLAMA} --batch 64M --nodes 8", "3.8 times the 16,777,216 of the largest", True),
        (f"{LLAMA} --context 16384 --rows 0.5", "split over 2 GPUs", False),
        # What is trained, and with what
        (f"{LLAMA} --lora 16", "no published run trained LoRA's adapters", False),
        (f"{LLAMA} --trainable 1%", "no published run had frozen parameters", False),
        (f"{LLAMA} --recipe fp32 --fused-loss", "no published run was in fp32", False),
        (f"{LLAMA} --lora 2048 --fused-loss", "which is 40% of all", False),
        # Models
        ("--model qwen3-30b-a3b --nodes 4", "compared with only 1 published run of", False),
        ("--model deepseek-v2-lite --nodes 4 --fused-loss", "latent attention", False),
        ("--model llama-3-405b --nodes 64", "the largest model of a published speed", False),
        ("--model gpt-2-124m --context 1024 --rows 16", "the smallest model of a", False),
        ("--model gemma-2-9b --nodes 2", "no published run had sliding windows", True),
        # Strategies and libraries
        ("--model mpt-1b --rows 4", "no published run of DDP on H100s", True),
        ("--model llama-3-8b --nodes 2 --stack deepspeed", "published run used DeepSpeed", False),
        # GPUs and links
        ("--model llama-3-8b --gpu b200", "no curve was fitted to runs on the B200", True),
        ("--model llama-3-8b --gpu h200", "", True),
        ("--model llama-3-8b --gpu l40s --gpus 8 --fused-loss", "slower than", False),
        (f"{LLAMA} --network 50GB", "slower than the 100 GB/s per host of all", False),
        (f"{LLAMA} --interconnect pcie", "slower than the 450 GB/s of all published", False),
    ],
)  # fmt: skip
def test_what_goes_beyond_published_runs_has_a_caution(words, said, has_band, capsys):
    cautions, found = cautioned(words, capsys)
    assert found == has_band
    assert (not said and not cautions) or sum(said in each for each in cautions) == 1


def test_the_page_has_the_same_cautions():
    html = json.loads(answer("model=llama-3-8b&nodes=200"))["html"]
    assert "Caution: 1,600 GPUs are 3.1 times the 512 GPUs of the largest published" in html
    assert "Caution" not in json.loads(answer("model=llama-3-8b&nodes=2"))["html"]


def test_a_measured_speed_needs_no_curve(capsys):
    cautions, _ = cautioned("--model llama-3-8b --gpu b200 --speed 900T", capsys)
    assert not [each for each in cautions if "no curve" in each]


def test_what_published_runs_reach_is_counted_from_them():
    known = rows("tokens/s/GPU")
    on_h100s = [row for row in known if row["gpu"] in ("h100", "h200")]
    assert reach("h100").gpus == max(int(row["gpus"]) for row in on_h100s) == 512
    assert reach("a100").gpus == 1024
    assert longest(False) == max(int(r["context"]) for r in known if r["use"] != LONG) == 8192
    assert longest(True) == max(int(row["context"]) for row in known) == 65536
    assert largest() == 2**24


def test_long_sequences_are_planned_with_all_of_attention():
    """With half of it, as a causal mask needs, plans would be 60% too fast in the median."""
    long = [row for row in rows("tokens/s/GPU") if row["use"] == LONG]
    assert len(long) >= 40
    assert min(int(row["context"]) for row in long) > longest(False)
    full = [predict(row) for row in long]
    assert Errors.of(run.error for run in full).median < 0.10
    assert all(run.option.fits for run in full)
    halved = []
    for run in full:
        job = run.option.job
        kept = 6 * job.model.multiplied / job.model.flops(job.context)
        halved.append((1 + run.error) / (kept + (1 - kept) / 2) - 1)
    assert Errors.of(halved).bias > 0.5


# --- lines about published runs


def test_runs_on_other_gpus_are_not_called_yours(capsys):
    for name, other in (("4090", "A100"), ("mi300x", "H100"), ("h200", "H100")):
        said = said_of(f"--model llama-3.2-1b --gpu {name}", capsys)
        assert f"runs, eager like yours, but on {other}s" in said
    assert " runs, eager like yours, on A100s" in said_of("--model gpt-2-124m --gpu a100", capsys)
    said = said_of("--model llama-3-8b --gpu h200", capsys)
    assert "a curve fitted to published runs on H100s, which compute as fast" in said


def test_lines_about_published_runs_say_what_they_are(capsys):
    said = said_of("--model llama-3-8b --nodes 2", capsys)
    assert "published: 34 runs of ZeRO-3, on GPUs of any kind: half of them were planned" in said
    assert "published: 1 run of ZeRO-2, on GPUs of any kind: planned 3.2% too fast" in said
    assert not [word for word in ("bias", "held against", "speeds of") if word in said]
