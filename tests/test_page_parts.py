"""What is made and not written: the map, the modules' reference, the line under a title."""

import ast
import sys
from pathlib import Path

import pytest
from docutils import nodes
from docutils.utils import new_document
from nbformat import NotebookNode
from nbformat.notebooknode import from_dict
from pybtex.database import parse_string

from playground.build import modules
from playground.build.toc import core_path, pages_in_order

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "book/_ext"))

import downloads  # type: ignore[import-not-found]  # noqa: E402
import live  # type: ignore[import-not-found]  # noqa: E402
import opening  # type: ignore[import-not-found]  # noqa: E402
import outputs  # type: ignore[import-not-found]  # noqa: E402
import pages  # type: ignore[import-not-found]  # noqa: E402
import whole  # type: ignore[import-not-found]  # noqa: E402


def function(text: str) -> ast.FunctionDef:
    node = ast.parse(text).body[0]
    assert isinstance(node, ast.FunctionDef)
    return node


def record(text: str) -> ast.ClassDef:
    node = ast.parse(text).body[0]
    assert isinstance(node, ast.ClassDef)
    return node


def test_every_taught_module_is_in_the_reference_once_and_under_its_chapter():
    found = [entry for part in modules.modules_by_part(ROOT).values() for entry in part]
    names = [path.stem for path, _ in found]
    assert sorted(names) == sorted(p.stem for p in ROOT.glob("code/distributed/[!_]*.py"))
    page_of = {path.stem: page for path, page in found}
    assert page_of["bucketed_ddp"] == "book/ddp/buckets"


def test_a_page_teaches_what_it_shows_and_not_what_another_one_mentions():
    found = [entry for part in modules.modules_by_part(ROOT).values() for entry in part]
    page_of = {path.stem: page for path, page in found}
    assert "distributed/launching.py" in (ROOT / "book/maintainers/runtime.md").read_text()
    assert page_of["launching"] == "book/first_steps/several_processes"


def test_the_map_of_the_package_is_made_of_what_is_there():
    make = "make it anew: .venv/bin/python -m playground.build.modules"
    package = (ROOT / "code/distributed/__init__.py").read_text()
    assert modules.readme(ROOT) == (ROOT / "code/distributed/README.md").read_text(), make
    assert modules.in_docstring(package, ROOT) == package, make


def test_a_function_that_the_map_sends_to_has_to_be_there():
    found = modules.link_to("bucketed_ddp.Bucket.reduce", ROOT)
    assert found == "[`bucketed_ddp.Bucket.reduce`](bucketed_ddp.py)"
    with pytest.raises(LookupError, match="doesn't define launched"):
        modules.link_to("bucketed_ddp.Bucket.launched", ROOT)


def test_a_signature_is_what_a_caller_writes():
    assert pages.arguments(function("def f(self, a: int, *, b=2): ..."), True) == "a: int, *, b=2"
    assert pages.arguments(function("def f(a, b): ..."), False) == "a, b"
    assert (
        pages.fields(record("class R(NamedTuple):\n  a: int\n  b: int = 1"))
        == "(a: int, b: int = 1)"
    )
    assert pages.fields(record("class C:\n  def __init__(self, n): ...")) == "(n)"
    assert pages.fields(record("class C: ...")) == ""


def test_a_docstring_stays_plain_text():
    blocks = pages.docstring_nodes("One `x` *here*.\n\n    x[n] → y[n]\n\nEnd.")
    assert [type(block).__name__ for block in blocks] == ["paragraph", "literal_block", "paragraph"]
    assert blocks[0].astext() == "One x *here*."
    assert blocks[1].astext() == "    x[n] → y[n]"


def test_the_time_counts_what_a_reader_sees_and_is_asked_to_do():
    def code(text: str) -> nodes.literal_block:
        return nodes.literal_block(text, text)

    cell = nodes.container("", code("a = 1\n\nb = 2"), nb_element="cell_code_source")
    page = nodes.section("", nodes.paragraph("", "Four words of prose."), cell)
    page += nodes.container("", code("1\n2\n3"), nb_element="cell_code_output")
    page += opening.HideCodeCellNode("", code("c = 3"))
    page += nodes.container("", nodes.paragraph("", "An answer."), classes=["dropdown"])
    assert opening.amount(page) == opening.Amount(words=4, lines=2, cells=1, tasks=1)


@pytest.mark.parametrize("mode", ["all", "input", "input+output"])
def test_folded_code_takes_no_time_before_it_is_folded_in_the_page(mode: str):
    """The landing page adds up what was read of the chapters: there, cells are only marked."""
    code = nodes.container("", nodes.literal_block("a", "a"), nb_element="cell_code_source")
    page = nodes.section("", nodes.container("", code, nb_element="cell_code", hide_mode=mode))
    assert opening.amount(page) == opening.Amount()


def test_recorded_outputs_leave_out_where_ranks_ran_unless_it_is_elsewhere():
    def printed(text: str) -> NotebookNode:
        return from_dict({"output_type": "stream", "name": "stdout", "text": text})

    found = [printed("4 ranks · gloo · CPU\n"), printed("1 rank · gloo · CPU\nsaid\n")]
    found += [printed("2 ranks · nccl · a GPU each\n")]
    kept = [output["text"] for output in outputs.without_where(found)]
    assert kept == ["said\n", "2 ranks · nccl · a GPU each\n"]


@pytest.mark.parametrize(
    ("code", "alone"), [("import a\nfrom b import c", True), ("import a\na()", False), ("", False)]
)
def test_a_cell_of_imports_alone_is_known(code: str, alone: bool):
    source = nodes.container("", nodes.literal_block(code, code), nb_element="cell_code_source")
    assert live.only_imports(nodes.container("", source, nb_element="cell_code")) == alone


def test_minutes_are_told_to_read_and_to_do():
    found = opening.Amount(words=2000, lines=50, cells=10, tasks=3)
    assert found.to_read == 2000 / opening.WORDS + 50 / opening.LINES == 12
    assert found.to_do == 25  # 12, 4 for the cells and 6 for the tasks are 22


def test_an_exercise_takes_the_minutes_that_it_says():
    said = nodes.paragraph("", "", nodes.emphasis("", "15 minutes · easy"))
    assert opening.amount(said).minutes == 15
    assert opening.Amount(words=2000, minutes=70).to_do == 80
    assert opening.amount(nodes.emphasis("", "Fifteen of 20 minutes")).minutes == 0


def test_a_contraction_and_a_number_are_one_word_each():
    assert opening.amount(nodes.Text("It doesn't hide: 1,250 tokens – or more.")).words == 7


def test_the_core_path_is_in_the_order_of_the_book_and_each_chapter_has_a_result():
    found = core_path(ROOT)
    assert next(iter(found)) == "book/first_steps/one_device"
    assert "book/ddp/overlap" in found
    assert [*found] == [page for page in pages_in_order(ROOT) if page in found]
    assert all(result.endswith(".") for result in found.values())


def test_other_chapters_come_after_one_of_the_core_path():
    assert opening.core_chapter_before(ROOT, "book/ddp/buckets") == "book/ddp/overlap"
    assert opening.core_chapter_before(ROOT, "book/first_steps/one_device") is None


def test_what_run_loads_is_counted_from_what_the_tab_fetches(tmp_path):
    (tmp_path / "_static").mkdir()
    (tmp_path / "_static/tab.json").write_text('{"memory": 6.7}')
    assert opening.megabytes(ROOT, tmp_path) == 20


def test_a_notebook_has_terms_and_citations_as_plain_words():
    entries = parse_string(
        "@misc{li2020, author={Li, Shen and Zhao, Y. and Varma, R.}, year={2020}}", "bibtex"
    ).entries
    text = "A {term}`rank`, {term}`ranks <rank>`: {cite:t}`li2020{§3}` {cite:p}`li2020`."
    assert downloads.plain(text, entries) == (
        "A rank, ranks: Li et al. (2020, §3) (Li et al., 2020)."
    )


def test_a_short_name_in_a_table_stays_whole_and_a_long_one_gives_way():
    texts = ("torchrun", "init_process_group")
    names = [nodes.literal("", text) for text in texts]
    beside = nodes.literal("", "a_name_as_long_as_a_line_of_a_phone")
    page = new_document("page")
    page += [nodes.entry("", nodes.paragraph("", "", *names)), nodes.paragraph("", "", beside)]
    whole.keep_whole(None, page, "page")
    assert [name["classes"] for name in (*names, beside)] == [["whole"], [], []]
    assert names[1].astext() == "init_<wbr>process_<wbr>group"


def test_a_number_keeps_its_unit_and_a_stage_its_number():
    page = new_document("page")
    line = nodes.paragraph("", "With ZeRO-3 it is 80\nGB, 5 % less, in 2 steps of 3 ms (")
    line += [nodes.math("", "2N"), nodes.Text(" on "), nodes.literal("", "--a 8 GB")]
    page += line
    whole.keep_whole(None, page, "page")
    assert [part.astext() for part in line] == [
        "With ", "ZeRO-3", " it is 80\xa0GB, 5\xa0% less, in 2 steps of 3\xa0ms ", "(2N", " on ",
        "--a 8 GB",
    ]  # fmt: skip
    kept = [part.astext() for part in line.findall(nodes.Element) if "whole" in part["classes"]]
    assert kept == ["ZeRO-3", "(2N", "--a 8 GB"]


def test_a_number_in_a_tables_code_stays_whole():
    assert whole.SEAM.split("set_torch==2.10.0") == ["set_", "torch==2.10.0"]
    assert whole.SEAM.split("betas=0.95") == ["betas=", "0.95"]


def test_a_stage_in_a_table_that_a_cell_has_made_stays_whole():
    page = new_document("page")
    for html in ('<table class="table"><td>ZeRO-3</td></table>', "<p>ZeRO-3</p>"):
        page += nodes.raw("", html, format="html")
    whole.keep_whole(None, page, "page")
    made, other = (part.astext() for part in page)
    assert made == '<table class="table"><td><span class="whole">ZeRO-3</span></td></table>'
    assert other == "<p>ZeRO-3</p>"
