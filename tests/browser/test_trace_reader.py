"""Traces that a reader drops are read in the tab: what stands there is what this Python says."""

import base64
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from live_page import LivePage
from looks import needs_scrolling_sideways, violations_in_both_themes
from playwright.sync_api import expect
from serving import Server

from playground.trace_reader.answer import Reading
from playground.trace_reader.page import EXAMPLES, TRACES


def content(name: str) -> bytes:
    return (TRACES / f"{name}.json.gz").read_bytes()


def answer(names: list[str], **asked: str) -> dict[str, str]:
    reading = Reading("")
    for name in names:
        reading.begin(name)
        assert not reading.feed(content(name))
        assert not reading.end()
    return json.loads(reading.answer(json.dumps(asked)))


def wait_for(live: LivePage, said: str) -> None:
    expect(live.page.locator(".traces")).to_have_attribute("data-shows", said)


@pytest.mark.slow
def test_a_reader_drops_traces(read: Callable[..., LivePage], tmp_path: Path) -> None:
    live = read("traces.html", viewport={"width": 390, "height": 800})
    page = live.page
    why, status = page.locator(".traces-why"), page.locator(".traces-status")
    first = next(iter(EXAMPLES.values()))
    expect(why).to_contain_text(answer(first)["said"][:60])
    assert not [url for url in live.requests if "pyodide" in url], "nothing before the first file"
    assert not needs_scrolling_sideways(live)

    # Both ranks of a job at once, as files.
    names = ["slow-rank-0", "slow-rank-1"]
    dropped = page.evaluate_handle(
        """(files) => {
          const held = new DataTransfer();
          for (const [name, data] of files) {
            const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
            held.items.add(new File([bytes], name));
          }
          return held;
        }""",
        [(f"{name}.json.gz", base64.b64encode(content(name)).decode()) for name in names],
    )
    page.dispatch_event(".traces-drop", "drop", {"dataTransfer": dropped})
    wait_for(live, answer(names)["said"])
    assert page.locator(".traces-answer").inner_text().count("Rank 1 comes last") == 1
    assert page.locator(".traces-late").inner_text().startswith("rank 1")
    posted = [request for request in live.requests if "slow-rank" in request]
    assert not posted, "a file stays in the tab"

    # What is no trace is told in a line, and what was there stays.
    broken = tmp_path / "broken.json.gz"
    broken.write_bytes(gzip.compress(b'{"traceEvents": [1, 2, 3]}' * 9)[:-20])
    files = page.locator("input[type=file]")
    for bad in (Path(__file__), broken):
        files.set_input_files(bad)
        expect(status).to_contain_text(f"{bad.name} is ")
        expect(why).to_contain_text("Rank 1 comes last")

    # With a model there is an MFU; what is no model is told.
    page.get_by_role("button", name="a message for each tensor").click()
    names = ["small-messages-2-v100"]
    wait_for(live, answer(names)["said"])
    page.get_by_text("Your model, for the MFU").click()
    page.get_by_label("tokens, on one rank").fill("1000")
    page.get_by_label("model, or its").fill("1e9")
    page.get_by_label("model, or its").blur()
    expect(page.locator(".traces-facts")).to_contain_text("MFU")
    html = answer(names, model="1e9", tokens="1000")["html"]
    mfu = html.partition("<dt>MFU</dt><dd>")[2].partition("<")[0]
    expect(page.locator(".traces-facts")).to_contain_text(mfu)
    page.get_by_label("model, or its").fill("gpt-9")
    page.get_by_label("model, or its").blur()
    expect(status).to_contain_text("gpt-9: give a number of parameters")
    found = violations_in_both_themes(live)
    assert not found, "\n\n".join(found)


@pytest.mark.slow
def test_the_timeline_zooms_and_names_a_kernel(read: Callable[..., LivePage]) -> None:
    live = read("traces.html")
    page = live.page
    page.get_by_role("button", name="an exchange that isn't hidden").click()
    names = ["recommender-128-rank-0", "recommender-128-rank-1"]
    wait_for(live, answer(names)["said"])
    lane = page.locator("svg[data-lane=communication]").first
    assert lane.get_attribute("viewBox") == "0 0 100000 10"
    page.locator(".traces-lanes").focus()
    page.keyboard.press("+")
    page.keyboard.press("ArrowLeft")
    assert lane.get_attribute("viewBox") == "0 0 50000 10"
    page.get_by_role("button", name="all of the trace").click()
    assert lane.get_attribute("viewBox") == "0 0 100000 10"
    # A click in the middle of the longest message says what ran there.
    reading = Reading("")
    reading.begin("0")
    assert not reading.feed(content(names[0]))
    assert not reading.end()
    trace = reading.traces[0]
    longest = max(trace.collectives, key=lambda each: each.end - each.start)
    box = lane.bounding_box()
    assert box is not None
    end = float(page.locator(".traces-timeline").get_attribute("data-end") or 0)
    share = ((longest.start + longest.end) / 2 - trace.steps[0].start) / end
    page.mouse.click(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
    expect(page.locator(".traces-what")).to_contain_text("ncclKernel")


@pytest.mark.slow
def test_it_reads_at_the_books_own_server_as_well(
    visit: Callable[..., LivePage], server: Server
) -> None:
    live = visit(server).open("traces.html")
    live.page.get_by_role("button", name="a slow rank").click()
    wait_for(live, answer(["slow-rank-0", "slow-rank-1"])["said"])


def test_without_scripts_the_first_example_stands_alone(read: Callable[..., LivePage]) -> None:
    page = read("traces.html", java_script_enabled=False).page
    assert "too slowly" in page.locator(".traces-why").inner_text()
    assert page.locator(".traces-bar i").count() >= 3
    assert page.locator(".traces-lanes path").count() >= 3
