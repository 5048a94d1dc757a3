"""Calculators in the page: without a kernel, and equal to the Python models."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from live_page import LivePage
from playwright.sync_api import Locator, expect
from serving import Server

from distributed.checkpoint_interval import best_interval, share_lost
from distributed.instruments.algorithms import SENT
from distributed.model_states import STAGES, Recipe
from distributed.planner.job import Job
from distributed.planner.published import failures
from distributed.planner.shapes import PRESETS
from distributed.scaling import buckets, equal_messages
from distributed.trees import children
from playground.show.calculator import BUCKETS, GRADIENTS, NETWORKS, TOKENS
from playground.show.crossing import SIZES
from playground.show.failing import MINUTES
from playground.show.ledger import (
    CODE,
    KEEP,
    LINES,
    LOSSES,
    MODELS,
    PRECISIONS,
    SEVEN,
    STACKS,
    ledger_of,
    numbers,
)

# Sets signals of a chart, lets it compute, and returns the rows that have a certain field.
COMPUTE = """async (calculator, [signals, field]) => {
  const view = calculator.view;
  for (const [name, value] of Object.entries(signals)) view.signal(name, value);
  await view.runAsync();
  const names = Object.keys(view.getState({data: () => true, signals: () => false}).data);
  const sets = names.map((name) => view.data(name));
  return sets.findLast((rows) => rows.length && field in rows[0]);
}"""


@pytest.fixture
def page(visit: Callable[..., LivePage], server: Server) -> LivePage:
    return visit(server).open("calculators.html")


def calculator(page: LivePage, number: int) -> Locator:
    """The calculator of this cell: what the build left there, or what ran there."""
    found = page.cell(number).locator(".calculator:visible")
    found.scroll_into_view_if_needed()
    page.page.mouse.move(10, 10)  # nothing is loaded for a reader who does not move
    page.page.mouse.move(20, 20)
    page.cell(number).locator(".calculator-ready:visible").wait_for()
    return found


def compute(chart: Locator, signals: dict[str, Any], field: str) -> list[dict[str, Any]]:
    return chart.evaluate(COMPUTE, [signals, field])


def held(stage: int, rows: int = 1, checkpoint: str = "none") -> float:
    """GB of a 7B Llama on 8 GPUs in PyTorch, which is what the ledger opens with."""
    job = SEVEN._replace(rows=rows)
    return sum(ledger_of(job, stage, 8, checkpoint, "pytorch").values()) / 1e9


def test_a_chart_is_loaded_for_a_reader_who_moves_and_be_it_a_key(page: LivePage) -> None:
    page.page.wait_for_load_state()
    page.page.wait_for_timeout(500)
    assert not [url for url in page.requests if "vega" in url]
    assert page.page.locator(".calculator-chart :is(svg, img)").first.is_visible(), "a picture"
    page.page.keyboard.press("Tab")
    page.page.locator(".calculator-ready").first.wait_for()


def test_the_ledger_is_what_the_planner_says_for_any_choice(page: LivePage) -> None:
    chart, random_ = calculator(page, 0), random.Random(0)
    for _ in range(60):
        doubled, doublings = random_.randint(8, 17), random_.randint(0, 13)
        model, checkpoint, precision, code, loss = (
            random_.choice([*options]) for options in (MODELS, KEEP, PRECISIONS, CODE, LOSSES)
        )
        shape = PRESETS[MODELS[model]]
        signals = {
            "doubled": doubled,
            "doublings": doublings,
            "model": numbers(shape),
            "checkpoint": KEEP[checkpoint],
            "precision": list(PRECISIONS[precision]),
            "stack": CODE[code],
            "scores": LOSSES[loss],
        }
        found = {
            (row["stage"], row["line"]): row["bytes"] for row in compute(chart, signals, "GB_end")
        }
        recipe = Recipe(*PRECISIONS[precision])
        job = Job(shape, 1, 2**doubled, 1, checkpoint, recipe, loss == "fused")
        for stage, name in enumerate(STAGES):
            expected = ledger_of(job, stage, 2**doublings, checkpoint, STACKS[CODE[code]])
            for line in LINES:
                close = pytest.approx(expected.get(line, 0.0), rel=1e-9)
                assert found[name, line] == close, (name, line, signals)


@pytest.mark.slow
def test_efficiency_is_what_the_module_says_for_any_choice(page: LivePage) -> None:
    chart, random_ = calculator(page, 1), random.Random(0)
    for _ in range(40):
        exponent, alpha, speed = (
            random_.uniform(8, 12.5),
            random_.uniform(0, 2),
            random_.randint(10, 1000),
        )
        network, element, bucket = (
            random_.choice([*d.values()]) for d in (NETWORKS, GRADIENTS, BUCKETS)
        )
        signals = {"exponent": exponent, "alpha": alpha, "speed": speed,
                   "network": network, "bytes": element, "bucket": bucket}  # fmt: skip
        rows = compute(chart, signals, "efficiency")
        found = {row["tokens"]: row["efficiency"] for row in rows if row["way"] == "with overlap"}
        apart = {row["tokens"]: row["efficiency"] for row in rows if row["way"] != "with overlap"}
        assert [*found] == TOKENS
        size, seconds = element * 10**exponent, 6 * 10**exponent / (speed * 1e12)
        k = buckets(4 * 10**exponent, bucket)  # a hook changes the bytes, not the buckets
        message = alpha / 1e3 + 2 * size / k / network
        for tokens in TOKENS:
            expected = seconds * tokens / equal_messages(seconds * tokens, k, message)
            assert found[tokens] == pytest.approx(expected, rel=1e-9), signals
            assert apart[tokens] <= found[tokens] * (1 + 1e-9)
        (border,) = compute(chart, signals, "least")
        assert border["least"] == pytest.approx(1.5 * k * message / seconds, rel=1e-9), signals


@pytest.mark.slow
def test_time_of_an_all_reduce_is_steps_and_bytes_as_the_modules_say(page: LivePage) -> None:
    chart, random_ = calculator(page, 2), random.Random(0)
    for _ in range(10):
        doublings, delay, speed = (
            random_.randint(1, 13),
            random_.uniform(-0.5, 2),
            random_.uniform(-1, 3),
        )
        ranks, n = 2**doublings, 2**13 * 100  # parts come out even
        signals = {"doublings": doublings, "delay": delay, "speed": speed}
        found = {
            (row["algorithm"], row["size"]): row["seconds"]
            for row in compute(chart, signals, "seconds")
        }
        of_ring, of_halves = (SENT[name](n, 0, ranks) for name in ("ring", "halving_doubling"))
        up = len(children(0, ranks))  # messages that reach rank 0 one after the other
        through_root = SENT["central"](n, 0, ranks)
        for size in (SIZES[0], SIZES[-1]):
            for algorithm, steps, arrays in (
                ("ring", of_ring.messages, of_ring.elements / n),
                ("halving and doubling", of_halves.messages, of_halves.elements / n),
                ("tree", 2 * up, 2 * up),
                ("through rank 0", 2 * through_root.messages, 2 * through_root.elements / n),
            ):
                expected = steps * 1e-6 * 10**delay + arrays * size / (1e9 * 10**speed)
                got = found[algorithm, size]
                assert got == pytest.approx(expected, rel=1e-9), (algorithm, signals)


@pytest.mark.slow
def test_the_time_lost_is_what_the_module_says_for_any_cluster(page: LivePage) -> None:
    chart, random_ = calculator(page, 3), random.Random(0)
    for _ in range(20):
        doublings, save = random_.randint(8, 17), random_.uniform(0, 2)
        restart = random_.uniform(0.5, 30)
        between, saving = failures().between(2**doublings), 10**save
        signals = {"doublings": doublings, "save": save, "restart": restart}
        rows = compute(chart, signals, "share")
        found = {row["minutes"]: row["share"] for row in rows if row["part"] == "lost in all"}
        for minutes in MINUTES:
            expected = share_lost(60 * minutes, saving, between, 60 * restart)
            assert found[minutes] == pytest.approx(expected, rel=1e-9), signals
        (best,) = compute(chart, signals, "best")
        assert best["best"] == pytest.approx(best_interval(saving, between), rel=1e-9)


def test_a_reader_moves_the_sliders_without_a_kernel(page: LivePage) -> None:
    chart = calculator(page, 0)
    assert f"{held(2):.1f} fits" in chart.locator("svg").text_content()
    tokens = chart.get_by_role("slider", name="tokens on a GPU")
    tokens.fill("14")
    expect(tokens).to_have_attribute("aria-valuetext", "16,384")
    for _ in range(3):  # a drag: after each input Vega writes "14" somewhere
        tokens.press("ArrowLeft")
        tokens.press("ArrowRight")
    page.page.wait_for_timeout(300)
    assert tokens.locator("xpath=following-sibling::output").inner_text() == "16,384"
    assert "14" not in tokens.locator("xpath=..").inner_text().replace("16,384", "").split()
    chart.locator("svg:not(:has-text('fits'))").first.wait_for()
    chart.get_by_role("combobox", name="checkpointing").select_option("full")
    few = f"{held(3, rows=4, checkpoint='full'):.1f}"
    assert f"{few} fits" in chart.locator("svg").text_content()
    chart.get_by_role("combobox", name="memory of a GPU").select_option("16 GB (V100)")
    assert f"{few} fits" not in chart.locator("svg").text_content()
    ranks = chart.get_by_role("slider", name="GPUs")
    ranks.focus()
    page.page.keyboard.press("ArrowRight")
    expect(ranks).to_have_attribute("aria-valuetext", "16")
    assert not [request for request in page.requests if "/api/" in request]


def test_without_scripts_a_picture_stands(visit: Callable[..., LivePage], server: Server) -> None:
    page = visit(server, java_script_enabled=False).open("calculators.html")
    picture = page.page.locator(".calculator-chart").first
    assert f"{held(0):.1f}" in picture.locator("svg").text_content()
    assert "4,096 tokens on each of 8 GPUs" in picture.get_attribute("aria-label")


@pytest.mark.slow
def test_a_calculator_that_a_reader_runs_is_drawn_again(page: LivePage) -> None:
    page.run_and_wait(0)
    chart = calculator(page, 0)
    assert "ZeRO-3" in chart.locator("svg").text_content()
    assert compute(chart, {"doublings": 0}, "GB_end")


def test_on_a_large_screen_a_chart_is_as_wide_as_its_box(page: LivePage) -> None:
    chart = calculator(page, 0).locator(".calculator-chart")
    drawn = chart.locator("svg").bounding_box()["width"]
    assert drawn >= chart.bounding_box()["width"] - 3


def test_on_a_phone_a_chart_fits_and_its_sentence_breaks(
    visit: Callable[..., LivePage], server: Server
) -> None:
    page = visit(server, viewport={"width": 390, "height": 800}).open("calculators.html")
    for number in range(5):
        chart = calculator(page, number).locator(".calculator-chart")
        missing = chart.evaluate("chart => chart.scrollWidth - chart.clientWidth")
        assert missing <= 0, (number, missing)
    lines = chart.locator("text > tspan").all_text_contents()
    assert len(lines) > 1
    assert " ".join(lines).startswith("hides from 1,250 tokens on")
    legend = chart.locator(".role-legend-entry").bounding_box()
    sentence = chart.locator("text:has(tspan)").bounding_box()
    assert legend["y"] + legend["height"] <= sentence["y"] + 2
