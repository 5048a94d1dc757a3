"""The speed that `--measure` prints: whose layers it times, and which FLOP it counts."""

import json
import re

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from distributed.planner.command import arguments, main, read
from distributed.planner.gpu_file import EXAMPLE
from recipes.timed import LAYERS, Timed

SMALL = "2,256,4,2,640,500"  # layers, width, heads, kv, ffn, vocabulary


def timed(words: str) -> Timed:
    given = arguments().parse_args(words.split())
    return Timed(read(given)[0], given.tf32)


@pytest.mark.parametrize("words", [f"--shape {SMALL} --rows 3", f"--shape {SMALL},head_dim=128"])
def test_it_counts_the_products_of_the_models_own_layers(words):
    layers = timed(f"{words} --context 128")
    both = layers.passes()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        both()
    norms = 2 * 256 / layers.model.block  # elementwise, and counted like products
    counted = LAYERS * layers.flops / counter.get_total_flops()
    assert 1 <= counted < 1 + 2 * norms, counted


def test_a_size_alone_is_timed_though_its_width_is_no_multiple_of_its_heads():
    """As many GPTs of a number of parameters are, the default of 7 billion among them."""
    layers = timed("--params 30M --context 16")
    assert layers.job.model.d % layers.job.model.heads
    layers.passes()()


def test_it_prints_what_it_timed_and_a_speed_that_a_plan_takes(capsys):
    words = ["--shape", SMALL, "--context", "64", "--rows", "2"]
    main([*words, "--measure"])
    said, given = capsys.readouterr().out.splitlines()
    assert said == "a layer of width 256, 2 sequences of 64 tokens, eager, in float32, on this CPU:"
    speed = float(re.fullmatch(r"--speed (\S+)", given)[1])
    assert 1e8 < speed < 1e15
    main([*words, "--gpus", "2", *given.split(), "--json"])
    assert json.loads(capsys.readouterr().out)["assumed"]["speed"] == speed


def test_a_gpu_that_only_emulates_bf16_is_timed_in_fp16(monkeypatch):
    """As a V100 and a T4 do, and PyTorch counts that as support unless asked."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(
        "torch.cuda.is_bf16_supported", lambda including_emulation=True: including_emulation
    )
    assert timed(f"--shape {SMALL}").dtype == torch.float16


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU it is in TF32")
def test_a_cpu_is_said_to_compute_in_fp32():
    assert "in float32, on this CPU" in timed(f"--shape {SMALL} --recipe fp32 --tf32").name


def test_a_gpu_whose_peak_isnt_known_can_be_timed(tmp_path, capsys):
    """Its error says to give --speed, which is what this finds."""
    file = tmp_path / "gpu.txt"
    file.write_text(EXAMPLE.partition("tflops_fp32")[0])
    words = ["--gpu-file", str(file), "--shape", SMALL, "--context", "16", "--recipe", "fp32"]
    with pytest.raises(SystemExit):
        main(words)
    assert "or give --speed" in capsys.readouterr().err
    main([*words, "--measure"])
    assert "--speed " in capsys.readouterr().out


def test_tf32_is_switched_back():
    before = torch.get_float32_matmul_precision()
    timed(f"--shape {SMALL} --context 16 --recipe fp32 --tf32").speed()
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--model mixtral-8x7b", "mixtures of experts"),
        ("--model deepseek-v2-lite", "mixtures of experts"),
        (f"--shape {SMALL} --rows 0.5 --gpus 2", "a whole number"),
        (f"--shape {SMALL} --rows 100000 --context 1000000000", "can't be run here"),
    ],
)
def test_it_says_what_it_cant_time(words, said, capsys):
    with pytest.raises(SystemExit):
        main([*words.split(), "--measure"])
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
