"""The planner of a page: what a reader sees is what the Python models say, without a kernel.

The pages come from a plain file server, and whatever else a page would ask for is cut off.
"""

import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

import pytest
from live_page import LivePage
from looks import needs_scrolling_sideways, violations_in_both_themes
from playwright.sync_api import expect
from serving import Server

from distributed.cost import Cluster
from distributed.model_states import RECIPES
from distributed.planner.hardware import gpu
from distributed.planner.job import REDUCED_IN_FP32, Job, cluster_of
from distributed.planner.models import PUBLISHED
from distributed.planner.shapes import PRESETS
from distributed.planner.speed import achieved
from distributed.planner.strategy import plan, run_of
from playground.planner.answer import answer
from playground.planner.form import query_of, state_of


def wait_for(live: LivePage, query: str) -> None:
    live.page.locator(f'.planner[data-shows="{query}"]').wait_for()


def check_answer(live: LivePage, query: str) -> None:
    """What stands in the page is what this Python says, to the letter."""
    expected = json.loads(answer(query))["html"]
    found = live.page.locator(".planner-answer").evaluate(
        """(node, html) => {
          const other = document.createElement("div");
          other.innerHTML = html;
          const focus = / tabindex="[^"]*"/g; // the theme changes it as things scroll
          return [node, other].map((each) => each.innerHTML.replace(focus, ""));
        }""",
        expected,
    )
    assert found[0] == found[1]


def hosts(nodes: int) -> tuple[Job, Cluster, float]:
    """The planner's defaults on so many hosts, said to the models and not to the form."""
    one, model = gpu("h100"), PRESETS["llama-3-70b"]
    job = Job(model, 1, 8192, recipe=RECIPES[REDUCED_IN_FP32])
    return job, cluster_of(one, 8 * nodes, speed=achieved(one, model, 8192, False)), one.memory


def pyodide_in(live: LivePage) -> list[str]:
    return [url for url in live.requests if "pyodide" in url or "python.zip" in url]


@pytest.mark.slow
def test_a_reader_drags_types_and_copies(read: Callable[..., LivePage]) -> None:
    live = read("planner.html", permissions=["clipboard-read", "clipboard-write"])
    page = live.page
    page.wait_for_load_state()
    why = page.locator(".planner-why")
    expect(why).to_have_text(json.loads(answer(""))["said"])
    assert not pyodide_in(live), "nothing of it before the first touch"

    # A copy of the recorded plan needs no Python either.
    page.get_by_role("button", name="command line").click()
    expect(page.locator(".planner-status")).to_have_text("Copied: command line.")
    line = page.evaluate("navigator.clipboard.readText()")
    assert line.startswith("python -m distributed.planner --model llama-3-70b --gpu h100 --nodes 8")
    assert not pyodide_in(live)

    # Drag, as fast as a hand does: the last position counts.
    slider = page.get_by_role("slider", name="hosts")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.28 * box["width"], box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"], box["y"] + box["height"] / 2, steps=9)
    page.mouse.up()
    wait_for(live, "nodes=2048")
    job, cluster, memory = hosts(2048)
    best = plan(job, cluster, memory).recommended
    assert best is not None
    expect(why).to_contain_text(f"Take {best.name} with {best.checkpoint} checkpointing")
    run = run_of(best, cluster.ranks, 2e12)
    facts = page.locator(".planner-facts").inner_text()
    assert f"{best.step.total:.2f} s" in facts
    assert f"{run.tokens_per_second:,.0f}" in facts
    assert f"{run.gpu_hours:,.0f}" in facts
    expect(page.get_by_label("hosts", exact=True)).to_have_value("2048")
    page.get_by_role("button", name="PyTorch").click()
    assert "init_device_mesh" in page.evaluate("navigator.clipboard.readText()")

    # By keyboard; what has been unfolded stays unfolded, with the new plan in it.
    slider.focus()
    page.keyboard.press("ArrowLeft")
    wait_for(live, "nodes=1024")
    assert slider.get_attribute("aria-valuetext") == "1024"
    assert f"{8 * 1024}," in page.locator(".planner-text:visible").inner_text()
    expect(page.locator(".planner-status")).to_have_text(json.loads(answer("nodes=1024"))["said"])
    page.get_by_label("model", exact=True).select_option("own")
    page.get_by_label("layers").fill("16")
    wait_for(live, "model=own&nodes=1024&layers=16")

    # What makes no sense is told where it stands, and the old plan stays.
    rows = page.get_by_label("sequences per GPU", exact=True)
    before = why.inner_text()
    rows.fill("-1")
    expect(page.locator("#planner-rows-wrong")).to_have_text("-1: give a number above 0")
    assert rows.get_attribute("aria-invalid") == "true"
    assert why.inner_text() == before
    found = violations_in_both_themes(live)
    assert not found, "\n\n".join(found)
    rows.fill("2")
    wait_for(live, "model=own&nodes=1024&rows=2&layers=16")
    expect(page.locator("#planner-rows-wrong")).to_be_hidden()
    assert page.url.endswith("planner.html?model=own&nodes=1024&rows=2&layers=16")


@pytest.mark.slow
def test_the_address_is_the_plan(read: Callable[..., LivePage]) -> None:
    query = "model=own&nodes=1024&rows=2&layers=16"
    live = read(f"planner.html?{query}")
    wait_for(live, query)
    check_answer(live, query)
    address = live.page.url
    assert address.endswith(f"planner.html?{query}")
    assert live.page.get_by_label("layers").input_value() == "16"
    live.page.reload()
    wait_for(live, query)
    assert live.page.url == address
    check_answer(live, query)


@pytest.mark.slow
def test_a_plan_that_does_not_fit_says_what_to_change(read: Callable[..., LivePage]) -> None:
    live = read(
        "planner.html?nodes=1&utm=1#here", viewport={"width": 390, "height": 800}, has_touch=True
    )
    wait_for(live, "nodes=1")
    assert live.page.url.endswith("planner.html?nodes=1#here")
    assert not needs_scrolling_sideways(live)
    expect(live.page.locator(".planner-why")).to_contain_text("Nothing fits")
    way = live.page.locator(".planner-answer .planner-way").first
    query = (way.get_attribute("href") or "").removeprefix("?")
    assert state_of(query)["nodes"] != "1"
    way.tap()
    wait_for(live, query)
    check_answer(live, query)
    found = violations_in_both_themes(live)
    assert not found, "\n\n".join(found)


@pytest.mark.slow
def test_an_example_is_planned_by_a_click(read: Callable[..., LivePage]) -> None:
    live = read("planner.html")
    live.page.get_by_role("link", name="8B on two hosts of eight H100s").click()
    wait_for(live, "model=llama-3-8b&nodes=2")
    check_answer(live, "model=llama-3-8b&nodes=2")
    assert live.page.get_by_label("hosts", exact=True).input_value() == "2"


@pytest.mark.slow
def test_a_reader_chooses_a_config_json(read: Callable[..., LivePage], tmp_path: Path) -> None:
    config = PUBLISHED["qwen3-8b"]["config"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"eos_token_id": 151645}, indent=2))
    live = read("planner.html?nodes=2")
    page = live.page
    wait_for(live, "nodes=2")
    chooser = page.get_by_label("or its config.json")
    chooser.set_input_files(tmp_path / "config.json")
    query = query_of(state_of(urlencode({"model": "file", "config": json.dumps(config)})))
    query += "&nodes=2"
    wait_for(live, query)
    check_answer(live, query)
    why = page.locator(".planner-why")
    expect(why).to_have_text(json.loads(answer("model=qwen3-8b&nodes=2"))["said"])
    assert page.get_by_label("model", exact=True).input_value() == "file"

    # The address has the file's fields: it is a link, and a change of the hosts keeps them.
    page.reload()
    wait_for(live, query)
    page.get_by_label("hosts", exact=True).fill("4")
    wait_for(live, query.replace("nodes=2", "nodes=4"))
    found = violations_in_both_themes(live)
    assert not found, "\n\n".join(found)

    # What isn't a transformer is told beside the chooser, and the old plan stays.
    (tmp_path / "mamba.json").write_text(json.dumps({"model_type": "mamba"}))
    before = why.inner_text()
    chooser.set_input_files(tmp_path / "mamba.json")
    expect(page.locator("#planner-config-wrong")).to_contain_text("isn't a transformer")
    assert chooser.get_attribute("aria-invalid") == "true"
    assert why.inner_text() == before


@pytest.mark.slow
def test_a_link_with_nonsense_is_told_where_it_stands(read: Callable[..., LivePage]) -> None:
    live = read("planner.html?gpu=%3Cb%3Eh1000")
    expect(live.page.locator("#planner-gpu-wrong")).to_contain_text("'<b>h1000' is not known")
    assert live.page.get_by_label("GPU", exact=True).input_value() == "h100"


@pytest.mark.slow
def test_it_runs_at_the_books_own_server_as_well(
    visit: Callable[..., LivePage], server: Server
) -> None:
    """Whose pages may load scripts and compile nothing, and stand at a secret path."""
    live = visit(server).open("planner.html")
    assert "wasm" not in (live.page.request.get(live.page.url).headers["content-security-policy"])
    live.page.get_by_role("slider", name="hosts").fill("2")
    wait_for(live, "nodes=4")
    check_answer(live, "nodes=4")


@pytest.mark.slow
def test_where_python_does_not_start_the_recorded_plan_stands(
    read: Callable[..., LivePage],
) -> None:
    live = read("planner.html")
    live.page.route("**/python_stdlib.zip", lambda route: route.abort())
    live.page.get_by_role("slider", name="hosts").fill("2")
    expect(live.page.locator(".planner-status")).to_contain_text("Python did not start in this tab")
    expect(live.page.locator(".planner-why")).to_have_text(json.loads(answer(""))["said"])
    live.page.unroute("**/python_stdlib.zip")
    live.page.get_by_role("slider", name="hosts").fill("3")
    wait_for(live, "")


def test_without_scripts_the_recorded_plan_stands_alone(read: Callable[..., LivePage]) -> None:
    page = read("planner.html", java_script_enabled=False).page
    assert "Take ZeRO-3" in page.locator(".planner-why").inner_text()
    assert page.locator(".planner-bar").count() == 5
    ends = page.locator(".planner-bar").evaluate_all(
        "bars => bars.map((bar) => bar.lastElementChild.getBoundingClientRect().right"
        " - bar.getBoundingClientRect().left)"
    )
    assert ends[0] > ends[1] > 1.2 * ends[2]  # 1,369, 786 and 190 GB
