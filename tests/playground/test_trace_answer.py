"""What a page says of traces, and what it answers where a reader is mistaken."""

import json

from playground.trace_reader.answer import MOST, Reading
from playground.trace_reader.page import EXAMPLES, TRACES, page


def reading(*names: str) -> Reading:
    found = Reading("../")
    for name in names:
        assert not found.begin(f"{name}.json.gz")
        assert not found.feed((TRACES / f"{name}.json.gz").read_bytes())
        assert not found.end()
    return found


def test_every_example_is_read_and_leads_to_a_page_that_explains_it():
    for names in EXAMPLES.values():
        said = json.loads(reading(*names).answer("{}"))
        assert 'href="../book/' in said["html"]
        assert said["html"].count('<li class="traces-row') == len(names)


def test_a_file_that_is_too_large_is_refused_before_it_is_read():
    said = Reading("").begin("rank0.json", 2_000_000_000)
    assert said.startswith("rank0.json has more than 600 MB")
    assert "python -m distributed.read_trace FOLDER" in said
    assert not Reading("").begin("rank0.json", MOST)


def test_a_wrong_field_is_named():
    asked = {"model": "llama-3-8b", "tokens": "many"}
    said = json.loads(reading("resnet-1-v100").answer(json.dumps(asked)))
    assert said == {"error": "tokens: 'many' is no number"}
    asked = {"model": "llama-3-8b", "tokens": "8,192", "gpu": "h1000"}
    assert "h1000" in json.loads(reading("resnet-1-v100").answer(json.dumps(asked)))["error"]


def test_with_a_model_the_first_bar_has_two_parts():
    asked = {"model": "1e8", "tokens": "1000", "context": "1024", "gpu": "v100"}
    html = json.loads(reading("resnet-1-v100").answer(json.dumps(asked)))["html"]
    assert "useful at full speed" in html
    assert "slow kernels" in html
    assert "<dt>MFU</dt>" in html


def test_a_moment_of_a_lane_has_a_name():
    found = reading("recommender-128-rank-0")
    trace = found.traces[0]
    longest = max(trace.collectives, key=lambda each: each.end - each.start)
    middle = (longest.start + longest.end) / 2 - trace.steps[0].start
    assert found.at(0, "communication", middle).startswith("ncclKernel_SendRecv")
    assert found.at(0, "copy", middle) == ""


def test_a_page_shows_one_recording_of_a_rank():
    found = Reading("")
    for step in (2, 6):
        events = [
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}"},
            {"ph": "X", "cat": "kernel", "name": f"kernel_{step}"},
        ]
        events = [each | {"ts": 100 * step, "dur": 90} for each in events]
        assert not found.begin(f"host_7.175900000000000000{step}.pt.trace.json")
        assert not found.feed(json.dumps({"traceEvents": events}).encode())
        assert not found.end()
    html = json.loads(found.answer("{}"))["html"]
    assert html.count('<li class="traces-row') == 1
    assert "Rank 0 has 2 recordings" in html
    assert found.at(0, "compute", 5).startswith("kernel_6")
    assert json.loads(found.answer("{}"))["html"].count("Rank 0 has 2 recordings") == 1
    assert len(found.traces[1].notes) == len({*found.traces[1].notes})


def test_a_page_clips_long_names_of_kernels():
    found = Reading("")
    event = {"ph": "X", "cat": "kernel", "name": "Cijk_" * 400, "ts": 0, "dur": 9}
    assert not found.begin("rank0.json")
    assert not found.feed(json.dumps({"traceEvents": [event]}).encode())
    assert not found.end()
    assert "Cijk_" * 20 not in json.loads(found.answer("{}"))["html"]
    assert len(found.at(0, "compute", 5)) < 100


def test_a_file_that_is_no_trace_does_not_silence_the_others():
    found = Reading("")
    assert not found.begin("config.json")
    assert found.feed(b"hello").startswith("config.json isn't a trace")
    assert found.begin("rank9.json", 2 * MOST)
    name = "resnet-1-v100.json.gz"
    assert not found.begin(name)
    assert not found.feed((TRACES / name).read_bytes())
    assert not found.end()
    html = json.loads(found.answer("{}"))["html"]
    assert "Not read: config.json isn't a trace" in html
    assert "Not read: rank9.json has more than 600 MB" in html
    assert html.count('<li class="traces-row') == 1


def test_names_of_files_are_text_and_no_html():
    found = Reading("")
    found.begin("<b>.json")
    assert found.feed(b"nothing").startswith("<b>.json isn't a trace")  # shown as text
    assert "<script" not in page("")
