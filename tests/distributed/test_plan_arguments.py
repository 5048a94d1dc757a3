"""Arguments of the planner that make no sense are refused, and the way out is in the message."""

import re
import sys

import pytest
from planning import asked_for, refused

from distributed.planner.answer import WIDE
from distributed.planner.command import MOST_USED, arguments, main

LLAMA = "--model llama-3.1-8b --gpus 8 --context 4096"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--speed 400", "speed=400: a GPU has at least 1e+08 FLOP/s; write it like 400T"),
        ("--speed 5000T", "speed=5e+15: more than the 9.89e+14 FLOP/s of the H100 SXM5 80 GB in b"),
        ("--speed 100T --recipe fp32", "speed=1e+14: more than the 6.7e+13 FLOP/s of the H100 SXM"),
        ("--speed nan", "speed=nan: a GPU has at least"),
        ("--sequences 0.3", "sequences=0.3: give a whole number, or one that is split over GPUs"),
        ("--rows 1.5", "sequences=1.5: give a whole number, or one that is split over GPUs"),
        ("--rows 1e-6", "sequences=1e-06: give a whole number, or one that is split over GPUs"),
        ("--rows 0.0625", "sequences=0.0625: give a whole number, or one that is split over GPUs"),
        ("--gpus 1 --rows 0.5", "sequences=0.5: give a whole number, or one that is split over"),
        ("--context 4k", "argument --context: '4k' may mean 4,000 or 4,096: write the number"),
        ("--context 4.5", "argument --context: invalid int value: '4.5'"),
        ("--tokens 0", "tokens=0: give 1 to 1e+18"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(words, message, capsys):
    assert message in refused(f"{LLAMA} {words}", capsys)


def test_a_sequence_may_be_split_over_some_of_the_gpus(capsys):
    for said, sequences in (("0.5", 1 / 2), ("0.125", 1 / 8), ("0.3333", 1 / 3)):
        gpus = 9 if said == "0.3333" else 8
        words = f"--model llama-3.1-8b --gpus {gpus} --per-host {gpus} --context 8192"
        found = asked_for(f"{words} --sequences {said}", capsys)
        assert found["options"][0]["rows"] == sequences
    assert asked_for(f"{LLAMA} --rows 2", capsys) == asked_for(f"{LLAMA} --sequences 2", capsys)


def test_help_has_the_lines_of_a_gpu_file_and_what_execute_cannot_do(capsys):
    with pytest.raises(SystemExit):
        main(["--help-all"])
    said = capsys.readouterr().out
    for line in ('name = "', "tflops = ", 'memory = "', 'inside = "', 'network = "', "per_host = "):
        assert f"\n  {line}" in said
    flat = " ".join(said.split())
    assert "number of sequences" in flat
    assert "adapters, frozen parameters, fused losses, compiled blocks, mixtures of experts" in flat
    assert "planner/gpu_file.py" not in flat
    for word in ("fits", "checkpoint", "waits", "gathered", "buckets", "casts", "allowance"):
        assert f"\n  {word} " in said


def test_the_usual_help_is_short_and_the_other_has_every_option(capsys):
    said = {}
    for words in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as ended:
            main([words])
        assert ended.value.code == 0
        said[words] = capsys.readouterr().out
        assert max(map(len, said[words].splitlines())) <= WIDE
    assert said["--help"].count("\n") <= 55
    listed = {
        words: {*re.findall(r"^  (?:-h, )?(--[\w-]+)", text, re.M)} for words, text in said.items()
    }
    assert listed["--help"] == MOST_USED
    options = (action.option_strings for action in arguments()._actions)
    assert listed["--help-all"] == {names[names[0] == "-h"] for names in options}


@pytest.mark.parametrize("text", ['{"name": "L4", "tflops": 121}', "name: L4"])
def test_a_gpu_file_that_is_not_toml_says_how_it_is_written(text, tmp_path, capsys):
    (tmp_path / "gpu.json").write_text(text)
    said = refused(f"{LLAMA} --gpu-file {tmp_path / 'gpu.json'}", capsys)
    assert "isn't TOML" in said
    assert "write lines like tflops = 71; see --help-all" in said


# --- execute

SMALL = "--model gpt-2-124m --gpus 8 --context 256 --execute"


def test_a_recipe_in_bf16_alone_is_executed_or_refused_in_a_line_that_says_what_to_do(capsys):
    said = refused(f"{SMALL} --recipe bf16-no-master", capsys)
    assert "recipe: PyTorch can't cast parameters in a fake world; choose --recipe bf16" in said


def test_8_bit_adam_without_torchao_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torchao", None)
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    said = refused(f"{SMALL} --recipe bf16-8bit", capsys)
    assert "recipe: 8-bit Adam needs torchao: pip install torchao, or choose --recipe bf16" in said


def test_executed_parts_are_explained(capsys):
    main([*SMALL.replace("256", "128").split(), "--recipe", "fp32-sgd"])
    said = " ".join(capsys.readouterr().out.split())
    assert "Compare the first line of each strategy" in said
    assert "moments" in said
