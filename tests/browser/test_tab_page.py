"""Ranks in the reader's own tab: pages from a server of files alone, with no kernel anywhere."""

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from live_page import LivePage
from plain import plain
from serving import Server

ENDED = ("ran", "failed")
TORCH, RING, EACH, FORGET, COUNT, NAME = range(6)  # the cells of tab.md


@pytest.fixture
def read(visit: Callable[..., LivePage], static: SimpleNamespace) -> Callable[..., LivePage]:
    def read(path: str = "tab.html", **options) -> LivePage:
        return visit(static, log_in=False, **options).open(path)

    return read


def test_four_ranks_exchange_messages_on_a_plain_host(read: Callable[..., LivePage]) -> None:
    live = read()
    live.page.wait_for_load_state()
    assert not [url for url in live.requests if "pyodide" in url or "python" in url]

    # Once more after the page was loaded again, which it does by itself to be isolated.
    output = live.run_and_wait(EACH)
    assert output.startswith("4 ranks · workers of this tab")
    for rank in range(4):
        assert f"[rank {rank}] rank {rank} has 6.0 10.0" in output
    assert output.endswith("[6.0, 6.0, 6.0, 6.0]")
    assert live.words(EACH).startswith("ran in your browser, 4 workers, ")
    assert live.state(TORCH) == "built", "what needs a library stays out"

    # An edit reaches the ranks; what breaks there is told with its rank and line.
    live.edit(
        RING, "arriving = group", "if group.rank == 2: print(1 / 0)\n        arriving = group"
    )
    output = live.run_and_wait(EACH, "failed")
    assert "RankError: rank 2 raised ZeroDivisionError: division by zero" in output
    assert "at cell 2, line 12, in ring: if group.rank == 2: print(1 / 0)" in output
    assert "at cell 3, line 3, in each_rank: ring(group, x)" in output
    live.reset(RING)
    assert live.run_and_wait(EACH).endswith("[6.0, 6.0, 6.0, 6.0]")

    # Predicted and measured: what a group counts.
    assert "0\t6" in live.run_and_wait(COUNT)

    live.run(TORCH)
    live.cell(TORCH).locator(".live-message").wait_for()
    assert live.message(TORCH).startswith("This cell needs torch, which a browser can't run")
    assert "make serve" in live.message(TORCH)
    assert not [url for url in live.requests if "/api/" in url], "no server has said that it is one"


def test_run_all_is_there_where_a_cell_can_run(
    read: Callable[..., LivePage], visit: Callable[..., LivePage], server: Server
) -> None:
    run_all = ".live-run-all"
    assert read("tab.html").page.locator(run_all).is_visible()
    live = read("calculators.html")
    live.page.wait_for_load_state("networkidle")
    assert live.cell(0).locator(".live-run").count(), "it has cells, and all need libraries"
    assert not live.page.locator(run_all).is_visible()
    visit(server).open("calculators.html").page.locator(run_all).wait_for()


@pytest.mark.slow
def test_a_hang_is_told_with_each_ranks_line(read: Callable[..., LivePage]) -> None:
    live = read()
    output = live.run_and_wait(FORGET, "failed")
    assert "RanksHang: 3 ranks, not done after 2 s:" in output
    assert "rank 0 waits in all_reduce at cell 4, line 3, in forget: group.all_reduce(" in output
    assert "rank 2 is done" in output
    assert live.run_and_wait(EACH).endswith("[6.0, 6.0, 6.0, 6.0]")

    live.edit(FORGET, "def forget", "import cgi\n\n\ndef forget")
    live.run(FORGET)  # the tab's Python has it no more, whatever the one that built has
    live.cell(FORGET).locator(".live-message").wait_for()
    assert live.message(FORGET).startswith("This cell needs cgi, which a browser can't run")
    assert "No module named 'cgi'" in live.output(FORGET)
    live.reset(FORGET)

    live.run(NAME)  # it uses what the first cell makes
    live.cell(NAME).locator(".live-message").wait_for()
    assert live.message(NAME).startswith("This cell needs torch, which a browser can't run")


@pytest.mark.slow
def test_eight_ranks_stop_when_told_and_a_flood_is_cut(read: Callable[..., LivePage]) -> None:
    live = read()
    live.edit(EACH, "ranks=4", "ranks=8")
    assert live.run_and_wait(EACH).endswith("[28.0, " + "28.0, " * 6 + "28.0]")
    assert live.words(EACH).startswith("ran in your browser, 8 workers, ")

    live.edit(EACH, "    ring(group, x)", '    print("begun")\n    while group.rank == 5: pass')
    live.run(EACH)
    live.wait_output(EACH, "begun")
    live.stop(EACH)
    live.wait_state(EACH, "stopped")

    live.edit(EACH, "while group.rank == 5: pass", "for i in range(50_000): print(i)")
    output = live.run_and_wait(EACH)
    assert "… and " in output
    assert "more lines" in output
    assert len(output) < 1_000_000

    live.edit(EACH, "ranks=8", "ranks=9")
    assert "a tab carries 8 at most" in live.run_and_wait(EACH, "failed")


@pytest.mark.slow
def test_where_no_memory_is_shared_ranks_take_turns(read: Callable[..., LivePage]) -> None:
    live = read(service_workers="block")
    output = live.run_and_wait(EACH)
    assert output.startswith("4 ranks · taking turns in this tab, which has no shared memory")
    assert output.endswith("[6.0, 6.0, 6.0, 6.0]")
    assert live.words(EACH).startswith("ran in your browser, 4 ranks in turn, ")
    assert "waits in all_reduce at cell 4, line 3" in live.run_and_wait(FORGET, "failed")
    live.edit(EACH, "    ring(group, x)", "    while True: pass")
    live.run(EACH)
    live.page.wait_for_timeout(500)
    live.stop(EACH)
    live.wait_state(EACH, "stopped")
    live.reset(EACH)
    assert live.run_and_wait(EACH).endswith("[6.0, 6.0, 6.0, 6.0]")


@pytest.mark.slow
def test_it_runs_again_without_a_network(visit: Callable[..., LivePage], small_book: Path) -> None:
    with plain(small_book) as origin:
        live = visit(SimpleNamespace(url=origin), log_in=False).open("tab.html")
        live.run_and_wait(EACH)
    live.page.reload()
    live.open("tab.html")
    assert live.run_and_wait(EACH).endswith("[6.0, 6.0, 6.0, 6.0]")
    live.expect_problems("ERR_CONNECTION_REFUSED|ERR_FAILED")


INTRUDE = """async (elsewhere) => {
  globalThis.ran = [];
  const script = document.createElement("script");
  script.textContent = "ran.push('a script')";
  const picture = Object.assign(document.createElement("img"), { src: "missing.png" });
  picture.setAttribute("onerror", "ran.push('a handler')");
  document.body.append(script, picture);
  setTimeout("ran.push('eval')");
  try { await fetch(elsewhere, { mode: "no-cors" }); ran.push("a request"); } catch {}
  await new Promise((done) => setTimeout(done, 500));
  return ran;
}"""


def test_what_a_page_was_not_built_with_does_not_run_on_a_plain_host(
    read: Callable[..., LivePage], small_book: Path
) -> None:
    live = read("index.html")
    with plain(small_book) as elsewhere:
        assert live.page.evaluate(INTRUDE, f"{elsewhere}/index.html") == []
    live.expect_problems("Content Security Policy|Content-Security-Policy|404")


def build_again(book: Path, times: int) -> None:
    """Name the files of a book as another build would."""
    worker = book / "service-worker.js"
    text = worker.read_text()
    worker.unlink()  # it may be a link to another book's
    worker.write_text(re.sub("(python|pages) [0-9a-f]{16}", rf"\1 {times:016x}", text))


@pytest.mark.slow
def test_two_books_of_one_host_keep_their_own_files_and_those_of_their_last_build(
    visit: Callable[..., LivePage], small_book: Path, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for file in small_book.iterdir():
            (tmp_path / name / file.name).symlink_to(file)
    build_again(tmp_path / "two", 1)
    with plain(tmp_path) as origin:
        live = visit(SimpleNamespace(url=origin), log_in=False)
        kept = {}
        for name in ("one", "two"):
            live.open(f"{name}/tab.html").run_and_wait(EACH)
            kept[name] = set(live.page.evaluate("caches.keys()"))
        assert kept["one"] < kept["two"]
        assert len(kept["two"]) == 4

        build_again(tmp_path / "two", 2)
        live.page.evaluate("navigator.serviceWorker.ready.then((found) => found.update())")
        live.page.wait_for_function(
            """async () => (await caches.keys()).every((name) => !name.includes("0001 "))"""
        )
        assert kept["one"] < set(live.page.evaluate("caches.keys()"))


ALIVE = {  # page → what its cells that run in a tab put out, each in a cell of its own
    "book/index.html": ["my gradient is now 1.5"],
    "book/first_steps/several_processes.html": ["workers of this tab", "RanksHang"],
    "book/collectives/all_reduce.html": ["[6.0, 6.0, 6.0, 6.0, 6.0, 6.0, 6.0, 6.0]"],
    "book/collectives/collectives.html": [
        "GB/s",
        "reduce:     ['stop', 'go on: 1'",
        "all-reduce: ['stop'",
    ],
    "book/zero/memory.html": ["ZeRO-3:   13.5 GB in PyTorch"],
    "book/at_scale/step_cost.html": ["a step takes 75 ms", "4,096 ranks, 1,024 tokens each:  29%"],
}


@pytest.mark.slow
@pytest.mark.parametrize("path", ALIVE)
def test_chapters_are_alive_on_a_plain_host(
    path: str, visit: Callable[..., LivePage], built: Path
) -> None:
    """Run all runs what a tab can run, and says of the first of the others what it needs."""
    with plain(built) as origin:
        live = visit(SimpleNamespace(url=origin), log_in=False).open(path)
        live.run_all()
        live.page.wait_for_function(
            """() => { const states = [...document.querySelectorAll("div.cell[data-live]")]
                         .map((cell) => cell.dataset.state);
                       return states.includes("ran") && !states.some((state) =>
                         ["queued", "running", "stopping"].includes(state)); }"""
        )
        outputs = [live.output(i) for i, state in enumerate(live.states()) if state in ENDED]
        for expected in ALIVE[path]:
            assert any(expected in output for output in outputs), (expected, outputs)


@pytest.mark.slow
def test_two_tabs_of_one_reader_have_ranks_of_their_own(read: Callable[..., LivePage]) -> None:
    live = read()
    assert live.run_and_wait(EACH).endswith("[6.0, 6.0, 6.0, 6.0]")
    other = LivePage(live.page.context.new_page(), live.url).open("tab.html")
    live.edit(EACH, "ranks=4", "ranks=3")
    live.run(EACH)
    assert other.run_and_wait(EACH).endswith("[6.0, 6.0, 6.0, 6.0]")
    live.wait_state(EACH, "ran")
    assert live.output(EACH).endswith("[3.0, 3.0, 3.0]")

    # Loaded again it has forgotten what ran, and has what the other one keeps of the reader's.
    other.page.reload()
    other.open("tab.html")
    assert other.state(EACH) == "edited"
    assert other.run_and_wait(EACH).endswith("[3.0, 3.0, 3.0]")
