"""Live cells, as a reader meets them. What each cell of the page does is in `book/cells.md`."""

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from live_page import LivePage
from playwright.sync_api import Route, WebSocketRoute
from serving import Server, running_server
from sphinx.errors import ExtensionError

ROOT = Path(__file__).parents[2]

BASE, DERIVED, PRODUCT, TICKS, DISPLAYS, ERROR, AFTER = range(7)


# ---------------------------------------------------------------------- before anything runs


def test_a_page_is_complete_before_a_kernel_starts(live: LivePage) -> None:
    assert live.states() == ["built"] * 7
    assert live.status() == "none"
    assert live.output(PRODUCT) == "product 42"
    assert [live.words(index) for index in range(7)] == ["as in the book"] * 7
    assert live.cell(BASE).locator(".live-run").is_visible()
    assert live.page.get_by_text("this cell stays static").count() == 2  # code and output, no bar
    assert not any("thebe" in url or "/api/" in url for url in live.requests)


def test_pages_without_cells_load_nothing_of_this(
    visit: Callable[..., LivePage], server: Server
) -> None:
    plain = visit(server).open("plain.html")
    assert plain.page.locator("#live-status, .live-downloads").count() == 0
    assert not any("live." in url or "thebe" in url for url in plain.requests)


def test_math_is_set_with_the_books_own_fonts(
    visit: Callable[..., LivePage], server: Server
) -> None:
    plain = visit(server).open("plain.html")
    plain.page.locator("mjx-container mjx-frac").wait_for()
    plain.page.wait_for_function("document.fonts.ready.then(() => true)")
    assert any("/_static/mathjax/output/chtml/fonts/" in url for url in plain.requests)


def test_a_build_without_the_web_parts_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "book" / "_ext"))
    copy_web_parts = importlib.import_module("live").copy_web_parts
    app = SimpleNamespace(srcdir=tmp_path, outdir=tmp_path)
    with pytest.raises(ExtensionError, match="run `npm ci`"):
        copy_web_parts(app)


# ---------------------------------------------------------------------- running


def test_the_first_press_connects_and_runs_the_cells_above_first(live: LivePage) -> None:
    live.run(PRODUCT)
    live.wait_state(PRODUCT, "ran")
    assert live.states()[: PRODUCT + 1] == ["ran", "ran", "ran"]
    assert live.output(PRODUCT) == "product 42"
    assert re.fullmatch(r"ran here, \d+\.\d s", live.words(PRODUCT))
    live.wait_status("ready")


def test_presses_before_the_kernel_is_there_are_kept_in_order(live: LivePage) -> None:
    for index in (BASE, TICKS, DERIVED):  # the last one is queued already, as a cell above
        if live.state(index) == "built":
            live.run(index)
    live.wait_state(TICKS, "ran")
    assert live.states()[: TICKS + 1] == ["ran"] * 4


def test_a_press_before_the_scripts_are_there_is_kept(
    visit: Callable[..., LivePage], server: Server
) -> None:
    live = visit(server)
    late: list[Route] = []
    live.page.route("**/live-states.js", lambda route: late.append(route))
    live.page.goto(f"{server.url}/cells.html", wait_until="commit")
    live.run(0)
    while not late:
        live.page.wait_for_timeout(50)
    assert live.state(0) == "built"
    late[0].continue_()
    live.wait_state(0, "ran")


def test_a_cell_that_ran_does_not_run_again_for_those_below(live: LivePage) -> None:
    live.edit(BASE, 'print("factor", Base.factor)', "import time; print(time.time_ns())")
    first = live.run_and_wait(BASE)
    live.run_and_wait(PRODUCT)
    assert live.output(BASE) == first


def test_output_arrives_while_the_cell_runs(live: LivePage) -> None:
    live.edit(TICKS, "0.01", "60 if tick == 1 else 0")
    live.run(TICKS)
    live.wait_output(TICKS, "tick 1")
    assert live.state(TICKS) == "running"
    assert re.fullmatch(r"running, \d+\.\d s", live.words(TICKS))


@pytest.mark.slow
def test_json_is_shown_as_text_without_a_part_of_thebe_that_is_not_served(
    live: LivePage, server: Server
) -> None:
    """The script of thebe loads one other, which shows JSON, and that one all others."""
    show = "from IPython.display import JSON, display; display(JSON({'a': 1}))"
    live.edit(BASE, 'print("factor", Base.factor)', show)
    assert live.run_and_wait(BASE) == "<IPython.core.display.JSON object>"
    served = ROOT / "book/web/node_modules/thebe/lib/index.js"
    (wanted,) = re.findall(r"renderModel[^;]*?\.e\((\d+)\)|\.e\(\d+\)", served.read_text("utf-8"))
    assert wanted  # no other place loads one
    assert live.page.request.get(f"{server.url}/_static/thebe/{wanted}.index.js").status == 404


def test_stop_interrupts_and_empties_the_queue(live: LivePage) -> None:
    live.edit(TICKS, "0.01", "60")
    live.run(TICKS)
    live.wait_output(TICKS, "tick 0")
    live.run(DISPLAYS)
    assert live.state(DISPLAYS) == "queued"
    live.stop(TICKS)
    live.wait_state(TICKS, "stopped")
    assert live.state(DISPLAYS) == "stopped"
    assert "KeyboardInterrupt" in live.output(TICKS)
    assert live.run_and_wait(BASE) == "factor 2"  # the kernel is the same and can go on


def test_an_error_stops_what_was_to_follow_and_is_shown(live: LivePage) -> None:
    live.edit(DERIVED, "return self.factor", "return 1 / 0 or self.factor")
    live.run(AFTER)
    live.wait_state(AFTER, "stopped")
    assert live.words(AFTER) == "stopped: the cell above failed"
    assert live.state(PRODUCT) == "failed"
    assert "ZeroDivisionError" in live.words(PRODUCT)
    assert "division by zero" in live.output(PRODUCT)
    assert live.output(AFTER) == "after the error"  # as it was built
    assert live.states()[TICKS:AFTER] == ["built"] * 3


def test_a_cell_that_is_meant_to_fail_stops_nothing(live: LivePage) -> None:
    assert live.run_and_wait(AFTER) == "after the error"
    assert live.state(ERROR) == "failed"
    assert "division by zero" in live.output(ERROR)


def test_run_all_runs_in_order_and_ends_at_the_first_error(live: LivePage) -> None:
    live.edit(TICKS, "import time", "raise RuntimeError")
    live.run_all()
    live.wait_state(AFTER, "stopped")
    assert live.states() == ["ran"] * 3 + ["failed"] + ["stopped"] * 3


@pytest.mark.parametrize("fails", [False, True])
def test_run_all_opens_a_fold_only_for_a_cell_that_failed(live: LivePage, fails: bool) -> None:
    if fails:
        live.edit(TICKS, "import time", "raise RuntimeError")
    live.cell(TICKS).evaluate(
        "node => { node.before(document.createElement('details'));"
        " node.previousSibling.append(node); }"
    )
    live.run_all()
    live.wait_state(AFTER, "stopped" if fails else "ran")
    assert live.page.locator("details:has([data-live])").evaluate("fold => fold.open") is fails


# ---------------------------------------------------------------------- outputs


def test_built_outputs_are_left_alone_until_their_own_cell_runs(live: LivePage) -> None:
    built = live.cell(DISPLAYS).locator(".cell_output > :not(.live-output)")
    read = "nodes => nodes.map((node) => node.outerHTML)"
    before = built.evaluate_all(read)
    live.run_and_wait(TICKS)
    assert built.evaluate_all(read) == before
    assert live.page.evaluate("window.scriptRuns") == 1  # no built script ran a second time


def test_a_run_replaces_the_output_and_renders_every_kind(live: LivePage) -> None:
    live.run_and_wait(DISPLAYS)
    output = live.cell(DISPLAYS).locator(".cell_output")
    assert output.get_by_text("calm words").locator("visible=true").count() == 1
    assert output.get_by_text("bold").locator("visible=true").count() == 1
    assert output.locator(".live-output :is(svg, img)").first.is_visible()
    live.run_and_wait(BASE)
    live.run_and_wait(BASE)
    assert live.output(BASE) == "factor 2"


def test_a_run_says_of_its_own_output_alone_that_it_has_changed(live: LivePage) -> None:
    live.page.evaluate(
        """() => {
             window.told = [];
             addEventListener("live:output", ({ target }) =>
               told.push(target.closest("[data-live]").dataset.live));
           }"""
    )
    live.run_and_wait(TICKS)
    live.page.wait_for_function("told.includes('4')")
    assert set(live.page.evaluate("told")) == {"1", "3", "4"}, "cell 2 ran and put out nothing"


def test_the_old_output_stays_until_the_new_one_arrives(live: LivePage) -> None:
    live.edit(BASE, "class Base:", "import time; time.sleep(60)\nclass Base:")
    live.run(BASE)
    live.wait_state(BASE, "running")
    assert live.output(BASE) == "factor 2"  # the built one
    live.stop(BASE)
    live.wait_state(BASE, "stopped")
    assert "factor 2" not in live.output(BASE)


@pytest.mark.parametrize(
    ("at_first", "is_stopped"),
    [
        ("__import__('time').sleep(600)", True),
        # As when the server stops one that prints too much, just as it ends.
        pytest.param("raise KeyboardInterrupt", False, marks=pytest.mark.slow),
    ],
    ids=["a stop before the code begins", "an interrupt of the server's"],
)
def test_a_run_that_the_kernel_drops_without_an_answer_counts_as_stopped(
    live: LivePage, at_first: str, is_stopped: bool
) -> None:
    next_run = f"""
async def begin(*_, **__):
    del kernel.do_execute
    {at_first}
kernel = get_ipython().kernel
kernel.do_execute = begin
class Base:"""
    live.edit(BASE, "class Base:", next_run)
    live.run_and_wait(BASE)
    live.run(DERIVED)
    if is_stopped:
        live.wait_state(DERIVED, "running")
        live.stop(DERIVED)
    live.wait_state(DERIVED, "stopped")
    assert live.run_and_wait(PRODUCT) == "product 42"


def test_of_many_lines_both_ends_are_shown_while_they_come_and_after(live: LivePage) -> None:
    many = "for line in range(40_000): print(line, flush=line == 39_999)"
    live.edit(
        BASE, 'print("factor", Base.factor)', f"{many}\nimport time; time.sleep(3)\nprint('end')"
    )
    live.run(BASE)
    tail = live.cell(BASE).locator(".live-tail pre")
    tail.wait_for()
    tail.filter(has_text="39999").wait_for()
    assert live.state(BASE) == "running"
    assert tail.inner_text().startswith("… 39,000 lines are left out …\n")
    live.wait_state(BASE, "ran")
    assert tail.count() == 0
    lines = live.output(BASE).split("\n")
    assert lines[:2] + lines[499:502] == ["0", "1", "499", "… 39,001 lines are left out …", "39501"]
    assert lines[-2:] == ["39999", "end"]
    assert len(lines) == 1001


FLOOD = """
from distributed import launch
def flood(group):
    while True:
        print("again")
launch(flood, ranks=4, device="cpu")
"""


@pytest.mark.slow
def test_ranks_that_print_without_end_are_stopped_and_the_page_stays_small(live: LivePage) -> None:
    live.edit(BASE, 'print("factor", Base.factor)', FLOOD)
    live.run(BASE)
    # By the runtime; or by the server, if what it showed came in so many messages.
    ended = "[data-live]:is([data-state=failed], [data-state=stopped])"
    live.page.locator(ended).first.wait_for()
    assert re.search("printed more than [15] MB", live.output(BASE))
    shown = live.cell(BASE).locator(".live-output").evaluate("node => node.textContent")
    assert "lines are left out …" in shown
    assert shown.count("again") < 2100, "1,000 lines, and once more by rank"


# ---------------------------------------------------------------------- editing


def test_an_output_that_is_older_than_the_code_above_says_so(live: LivePage) -> None:
    live.run_and_wait(PRODUCT)
    assert live.states()[:4] == ["ran", "ran", "ran", "built"]
    live.edit(BASE, "factor = 2", "factor = 100")
    assert live.states()[:4] == ["edited", "outdated", "outdated", "built"]
    assert live.words(PRODUCT).endswith(" s, before the code above changed")
    live.run_and_wait(BASE)
    assert live.states()[:3] == ["ran", "outdated", "outdated"]
    live.run(PRODUCT)
    live.wait_output(PRODUCT, "product 2100")
    live.wait_state(PRODUCT, "ran")
    assert live.states()[:3] == ["ran", "ran", "ran"]
    live.reset(BASE)
    assert live.states()[:3] == ["built", "outdated", "outdated"]
    live.edit(BASE, "factor = 2", "factor = 100")
    assert live.states()[:3] == ["edited", "ran", "ran"], "they were made with this code"


def test_after_a_reload_a_cell_says_whose_output_it_shows(live: LivePage) -> None:
    live.edit(BASE, "factor = 2", "factor = 100")
    live.edit(DERIVED, "class Derived", "# new\nclass Derived")
    live.run_and_wait(BASE)
    live.page.reload()
    assert live.state(BASE) == "edited"
    assert live.words(BASE) == "edited, and this output is the book's"
    assert live.words(DERIVED) == "edited, not run since the page was opened", "it has no output"
    assert live.output(BASE) == "factor 2"


def test_a_run_that_a_reload_ended_is_not_named_for_code_that_never_ran(live: LivePage) -> None:
    live.edit(BASE, "class Base:", "import time; time.sleep(60)\nclass Base:")
    live.run(BASE)
    live.wait_state(BASE, "running")
    live.edit(BASE, "time.sleep(60)", "time.sleep(61)")
    live.page.reload()
    assert live.words(BASE) == "edited, and this output is the book's"


def test_a_reload_during_a_run_says_that_it_ended_the_run(live: LivePage) -> None:
    live.edit(BASE, "class Base:", "import time; time.sleep(60)\nclass Base:")
    live.run(BASE)
    live.wait_state(BASE, "running")
    live.page.reload()
    cut = "its run ended when the page was left, and this output is the book's"
    assert (live.state(BASE), live.words(BASE)) == ("lost", cut)
    live.page.reload()
    assert live.words(BASE) == "edited, and this output is the book's", "it is old news by then"


def test_an_edit_changes_what_runs_below(live: LivePage) -> None:
    assert live.run_and_wait(PRODUCT) == "product 42"
    live.edit(BASE, "factor = 2", "factor = 100")
    assert live.state(BASE) == "edited"
    # The class between them is built again on the edited one.
    assert live.run_and_wait(PRODUCT) == "product 2100"
    assert live.output(BASE) == "factor 100"


def test_an_edit_needs_no_kernel(live: LivePage) -> None:
    live.edit(BASE, "factor = 2", "factor = 3")
    assert live.state(BASE) == "edited"
    assert live.status() == "none"
    assert not any("/api/" in url for url in live.requests)


def test_a_click_into_the_code_opens_the_editor_at_that_place(live: LivePage) -> None:
    live.cell(BASE).get_by_text("factor").first.click()
    live.cell(BASE).locator(".CodeMirror-focused").wait_for()
    editor = live.cell(BASE).locator(".CodeMirror")
    assert editor.evaluate("node => node.CodeMirror.getCursor().line") == 1


def test_reset_brings_back_the_books_code_and_output(live: LivePage) -> None:
    reset = live.cell(BASE).locator(".live-reset")
    assert not reset.is_visible()
    book_code = live.code(BASE)
    live.edit(BASE, "factor = 2", "factor = 100")
    live.run_and_wait(BASE)
    live.reset(BASE)
    assert live.state(BASE) == "built"
    assert live.code(BASE) == book_code
    assert live.output(BASE) == "factor 2"
    assert not reset.is_visible()
    # The kernel still has the edited class: the book's runs again before what is below.
    assert live.run_and_wait(PRODUCT) == "product 42"


def test_an_edit_is_kept_in_the_browser_until_reset(live: LivePage) -> None:
    book_code = live.code(BASE)
    live.edit(BASE, "factor = 2", "factor = 100")
    live.open("cells.html")
    assert "factor = 100" in live.code(BASE)
    assert live.states() == ["edited"] + ["built"] * 6
    assert live.cell(BASE).locator(".CodeMirror").count() == 0  # thebe is not loaded for this
    assert live.run_and_wait(PRODUCT) == "product 2100"
    live.reset(BASE)
    assert live.code(BASE) == book_code
    live.open("cells.html")
    assert live.code(BASE) == book_code
    assert live.states() == ["built"] * 7


def test_a_kept_edit_of_code_that_the_book_has_changed_since_is_not_shown(live: LivePage) -> None:
    book_code = live.code(BASE)
    live.edit(BASE, "factor = 2", "factor = 100")
    live.page.evaluate(
        """() => {
             for (const [place, kept] of Object.entries(localStorage))
               if (place.startsWith("live-edit")) localStorage[place] = kept.replace("Base", "Old");
           }"""
    )
    live.open("cells.html")
    assert live.code(BASE) == book_code
    assert live.state(BASE) == "built"


def test_everything_works_with_the_keyboard_alone(live: LivePage) -> None:
    press, focused = live.page.keyboard.press, live.page.locator(":focus")
    live.cell(BASE).locator(".live-run").focus()
    press("Tab")
    assert "live-edit" in (focused.get_attribute("class") or "")
    press("Enter")
    live.cell(BASE).locator(".CodeMirror-focused").wait_for()
    assert "Code of cell 1" in (focused.get_attribute("aria-label") or "")
    press("Control+End")
    press("Enter")
    live.page.keyboard.type("if True:")
    press("Enter")
    live.page.keyboard.type("print('typed')")
    press("Shift+Enter")
    live.wait_state(BASE, "ran")
    assert live.output(BASE) == "factor 2\ntyped"
    press("Tab")  # indents, as in any editor …
    assert focused.get_attribute("aria-label") is not None
    press("Escape")  # … and Escape leads out
    assert "live-run" in (focused.get_attribute("class") or "")
    press("Tab")
    assert "live-edit" in (focused.get_attribute("class") or "")


# ---------------------------------------------------------------------- the life of the kernel


def test_restart_forgets_what_ran(live: LivePage) -> None:
    live.edit(BASE, 'print("factor"', "runs = 1 + globals().get('runs', 0)\nprint(runs")
    live.run_and_wait(BASE)
    assert live.run_and_wait(BASE) == "2 2"
    live.restart()
    live.wait_state(BASE, "lost")
    live.wait_status("ready")
    assert live.words(BASE) == "lost: ran before the restart"
    assert live.output(BASE) == "2 2"  # to be read still
    live.run_and_wait(PRODUCT)
    assert live.output(BASE) == "1 2"


@pytest.mark.slow
def test_restart_during_a_run_stops_it(live: LivePage) -> None:
    live.edit(TICKS, "0.01", "60")
    live.run(TICKS)
    live.wait_output(TICKS, "tick 0")
    live.restart()
    live.wait_state(TICKS, "stopped")
    live.wait_status("ready")
    assert live.run_and_wait(BASE) == "factor 2"


def test_after_a_lost_session_run_starts_a_new_one_and_keeps_edits(live: LivePage) -> None:
    live.edit(BASE, "factor = 2", "factor = 5")
    assert live.run_and_wait(PRODUCT) == "product 105"
    for session in live.ask_server("GET", "sessions"):
        live.ask_server("DELETE", f"sessions/{session['id']}")
    assert live.run_and_wait(PRODUCT) == "product 105"
    assert live.state(BASE) == "ran"
    live.expect_problems("404|WebSocket")


class Cable:
    """Between the page and the server; the page's other requests do not use it."""

    def __init__(self, live: LivePage) -> None:
        self.is_cut = False
        self.ends: list[WebSocketRoute] = []
        live.page.route_web_socket(re.compile("/channels"), self.plug_in)

    def plug_in(self, page: WebSocketRoute) -> None:
        if self.is_cut:
            page.close()
        else:
            self.ends = [page, page.connect_to_server()]

    def cut(self) -> None:
        self.is_cut = True
        for end in self.ends:
            end.close()

    def mend(self) -> None:
        self.is_cut = False


@pytest.fixture
def cable(live: LivePage) -> Cable:
    return Cable(live)


@pytest.mark.slow
def test_a_connection_that_was_cut_comes_back_to_the_same_kernel(
    live: LivePage, cable: Cable
) -> None:
    live.edit(BASE, 'print("factor"', "runs = 1 + globals().get('runs', 0)\nprint(runs")
    assert live.run_and_wait(BASE) == "1 2"
    live.edit(PRODUCT, "times(21)", "times(21), runs")
    cable.cut()
    live.wait_status("lost")
    cable.mend()
    live.wait_status("ready")
    assert live.run_and_wait(PRODUCT) == "product 42 1", "what ran counts, and the edit is there"
    assert live.state(BASE) == "ran"


def run_until_a_file_is_there(live: LivePage, folder: Path) -> Path:
    end = folder / "end"
    wait = f"import pathlib\n    while not pathlib.Path({str(end)!r}).exists(): time.sleep(0.01)"
    live.edit(TICKS, "    time.sleep(0.01)", f"    {wait}")
    live.run(TICKS)
    live.wait_output(TICKS, "tick 0")
    return end


@pytest.mark.slow
def test_a_run_goes_on_while_its_connection_is_cut(
    live: LivePage, cable: Cable, tmp_path: Path
) -> None:
    end = run_until_a_file_is_there(live, tmp_path)
    cable.cut()
    live.wait_status("lost")
    cable.mend()
    live.wait_status("busy")
    end.touch()
    live.wait_state(TICKS, "ran")
    assert "tick 2" in live.output(TICKS)


@pytest.mark.slow
def test_a_run_that_ends_while_its_connection_is_cut_says_so(
    live: LivePage, cable: Cable, tmp_path: Path
) -> None:
    end = run_until_a_file_is_there(live, tmp_path)
    cable.cut()
    end.touch()
    while any(kernel["execution_state"] == "busy" for kernel in live.ask_server("GET", "kernels")):
        live.page.wait_for_timeout(50)
    cable.mend()
    live.wait_state(TICKS, "lost")
    assert live.words(TICKS) == "lost: the connection ended during the run"
    assert live.run_and_wait(PRODUCT) == "product 42"


def test_a_kernel_that_dies_during_a_run_is_noticed(live: LivePage) -> None:
    live.edit(TICKS, "time.sleep(0.01)", "import os; os._exit(1)")
    live.run(TICKS)
    live.wait_state(TICKS, "lost")
    assert live.state(BASE) == "lost"
    assert live.run_and_wait(PRODUCT) == "product 42"


def test_leaving_the_page_ends_its_kernel(live: LivePage) -> None:
    live.run_and_wait(BASE)
    sessions = live.ask_server("GET", "sessions")
    live.open("plain.html")
    live.page.wait_for_function(
        """async (id) => {
             const root = new URL(document.documentElement.dataset.content_root, location);
             const sessions = await (await fetch(new URL("api/sessions", root))).json();
             return !sessions.some((session) => session.id === id);
           }""",
        arg=next(s["id"] for s in sessions if s["path"].startswith("cells-")),
    )


@pytest.mark.slow
def test_two_tabs_have_two_kernels(visit: Callable[..., LivePage], server: Server) -> None:
    here, there = (visit(server).open("cells.html") for _ in range(2))
    here.edit(BASE, "factor = 2", "factor = 7")
    here.run_and_wait(BASE)
    assert there.run_and_wait(PRODUCT) == "product 42"
    assert here.run_and_wait(PRODUCT) == "product 147"


def test_without_a_server_one_message_says_how_to_get_one(
    visit: Callable[..., LivePage], small_book: Path
) -> None:
    with running_server(small_book) as server:
        live = visit(server).open("cells.html")
    live.run(PRODUCT)
    live.page.locator(".live-message:visible").wait_for()
    assert "make serve" in live.message(PRODUCT)
    assert live.states() == ["built"] * 7
    assert live.output(PRODUCT) == "product 42"
    assert live.status() == "none"
    live.expect_problems("ERR_CONNECTION_REFUSED")


@pytest.mark.slow
def test_what_fails_in_the_page_says_so_and_keeps_no_kernel(live: LivePage) -> None:
    """A kernel answers here: to be told to start a server would lead the reader astray."""
    before = {session["id"] for session in live.ask_server("GET", "sessions")}
    live.page.route("**/thebe/index.js", lambda route: route.fulfill(body="throw Error('too old')"))
    live.run(BASE)
    live.cell(BASE).locator(".live-message:visible").wait_for()
    assert "thebeCore" in live.message(BASE)  # what it looked for and did not find
    assert "make serve" not in live.message(BASE)
    assert live.states() == ["built"] * 7
    assert not {session["id"] for session in live.ask_server("GET", "sessions")} - before
    live.expect_problems("too old")
    live.page.unroute_all()
    assert live.run_and_wait(BASE) == "factor 2", "the next press tries again"


def test_a_page_opened_as_a_file_is_complete_and_says_how_to_run_it(
    visit: Callable[..., LivePage], small_book: Path
) -> None:
    page = visit(SimpleNamespace(url=small_book.as_uri()), log_in=False).open("cells.html")
    assert page.output(PRODUCT) == "product 42"
    page.page.get_by_text("to run cells, open the book with make serve").wait_for()
    page.expect_problems("live.js.*blocked|ERR_FAILED")


@pytest.mark.slow
def test_a_server_that_is_full_says_what_to_do_and_loses_no_edit(
    visit: Callable[..., LivePage], small_book: Path
) -> None:
    with running_server(small_book, ("--no-browser", "--kernels", "1")) as server:
        here, there = (visit(server).open("cells.html") for _ in range(2))
        here.run_and_wait(BASE)
        there.edit(BASE, "factor = 2", "factor = 7")
        there.run(BASE)
        there.page.locator(".live-message:visible").wait_for()
        assert "Close a page of the book" in there.message(BASE)
        there.expect_problems("503")
        assert there.state(BASE) == "edited"
        assert "factor = 7" in there.code(BASE)


@pytest.mark.parametrize("width", [1280, 375, 320])
def test_nothing_sticks_out_of_the_window(
    visit: Callable[..., LivePage], server: Server, width: int
) -> None:
    live = visit(server, viewport={"width": width, "height": 800}).open("cells.html")
    live.open_editor(BASE)
    assert live.page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_run_leaves_out_the_warnings_that_the_page_leaves_out(live: LivePage) -> None:
    warn = 'import sys; print("shown"); print("a warning", file=sys.stderr)'
    live.edit(BASE, 'print("factor", Base.factor)', warn)
    assert "a warning" in live.run_and_wait(BASE)
    live.cell(BASE).evaluate('cell => cell.classList.add("tag_remove-stderr")')
    assert live.cell(BASE).get_by_text("shown", exact=True).is_visible()
    warning = live.cell(BASE).get_by_text("a warning", exact=True)
    assert (warning.count(), warning.is_visible()) == (1, False)
