"""The laws of the house: what may import what, and what no file may hold."""

import ast
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from playground.build.needs_of_modules import PAGE, needs, sentence, share
from playground.build.tab import imported
from playground.build.toc import pages_in_order

ROOT = Path(__file__).parents[1]
DISTRIBUTED = ROOT / "code/distributed"
LESSONS = sorted(path.stem for path in DISTRIBUTED.glob("[!_]*.py"))
OURS = {"distributed", "recipes", "playground", "bench"}
OFFERED = {"Group", "launch", "world"}  # by the package itself
ENGINES = {  # a folder → what its modules may import of this package
    "runtime": {"runtime"},
    "workbench": {"runtime", "workbench", "single_device", "launching", "dp", *OFFERED},
    "planner": {"runtime", "planner", "all_reduce", "model_states", "cost", "scaling"},
    "read_trace": {"runtime", "planner", "read_trace"},
    "ddp": {"runtime", "workbench", "ddp", *LESSONS, *OFFERED},
    "zero": {"runtime", "workbench", "zero", *LESSONS, *OFFERED},
    "instruments": {
        *("runtime", "workbench", "instruments", "ddp", "zero", "planner"),
        *LESSONS,
        *OFFERED,
    },
}
LONGEST = {"bucketed_ddp": 200}  # lines of a lesson's core; all others have 150 at most
TRACKED = subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
    cwd=ROOT, capture_output=True, text=True, check=True,
).stdout.splitlines()  # fmt: skip


def chapters_in_order() -> list[str]:
    return [(ROOT / f"{file}.md").read_text() for file in pages_in_order(ROOT)[1:]]


def floor_of(module: str) -> int:
    """The chapter that teaches a module: the first that shows it, or imports from it."""
    shown = re.compile(rf"code/distributed/{module}\.py|(?<!torch\.)distributed\.{module}\b")
    floors = [number for number, page in enumerate(chapters_in_order()) if shown.search(page)]
    assert floors, f"no chapter shows distributed/{module}.py"
    return floors[0]


def imports(nodes: Iterable[ast.AST]) -> set[str]:
    """The lessons and engines that these statements import, and what the package offers."""
    used = {*imported(node for each in nodes for node in ast.walk(each))}
    assert not [name for name in used if name.startswith("playground")]
    return {name.split(".")[1] for name in used if name.startswith("distributed.")}


def statements(path: Path) -> list[ast.stmt]:
    return ast.parse(path.read_text()).body


def core(lesson: str) -> list[ast.stmt]:
    """What a lesson teaches: all that comes before its `main`, without its docstring."""
    _, *body = statements(DISTRIBUTED / f"{lesson}.py")
    names = [getattr(node, "name", "") for node in body]
    return body[: names.index("main")] if "main" in names else body


def test_there_are_at_most_forty_lessons():
    assert len(LESSONS) <= 40


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_is_one_page_of_code(lesson):
    body = core(lesson)
    assert body[-1].end_lineno - body[0].lineno < LONGEST.get(lesson, 150)


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_needs_at_most_two_others_which_were_taught_before(lesson):
    needed = imports(core(lesson)) - OFFERED - {"runtime"}
    assert needed <= {*LESSONS}, "a lesson imports engines after its core"
    assert len(needed) <= 2
    for other in needed:
        assert floor_of(other) <= floor_of(lesson), f"{lesson} uses the later {other}"


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_takes_no_engine_when_it_is_imported(lesson):
    """To read it, or to copy it into a project, takes no data set, network or instrument."""
    lines = [n for n in statements(DISTRIBUTED / f"{lesson}.py") if not hasattr(n, "body")]
    assert imports(lines) <= {"runtime", *LESSONS, *OFFERED}


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_builds_on_lessons_and_on_the_engines_below_it(engine):
    assert {*ENGINES} == {path.parent.name for path in DISTRIBUTED.glob("*/__init__.py")}
    for path in sorted((DISTRIBUTED / engine).glob("*.py")):
        assert imports(statements(path)) <= ENGINES[engine], path.name


def test_the_planner_uses_recipes_only_in_its_command():
    for path in sorted((DISTRIBUTED / "planner").glob("*.py")):
        used = {name.split(".")[0] for name in imported(ast.walk(ast.parse(path.read_text())))}
        assert "recipes" not in used or path.name == "command.py"


def test_most_lessons_need_at_most_one_other_and_a_page_counts_them():
    needed = needs(ROOT)
    make = "update it: PYTHONPATH=code .venv/bin/python -m playground.build.needs_of_modules"
    assert sentence(needed) in (ROOT / PAGE).read_text(), make
    few, all_of_them = share(needed)
    assert few >= all_of_them * 4 / 5


ONCE = ("Bucket", "Plan", "Step", "Work")  # names that all of this could have
PRIVATE = {  # words that say nothing to who has not written them
    *("came", "gone", "whose", "place", "hide", "make_real", "publish", "hand_out", "keeps")
}


def named_in(path: Path) -> set[str]:
    """The variables, attributes, arguments and functions of a file."""
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    return {
        getattr(node, field)
        for node in nodes
        for field in ("id", "attr", "arg", "name")
        if isinstance(getattr(node, field, None), str)
    }


def test_names_that_all_could_have_are_one_class_each():
    files = [*DISTRIBUTED.rglob("*.py")]
    classes = re.findall(r"^class (\w+)", "\n".join(path.read_text() for path in files), re.M)
    assert {name: classes.count(name) for name in ONCE} == dict.fromkeys(ONCE, 1)
    names = [path.stem for path in files if not path.stem.startswith("_")]
    assert len(names) == len({*names}), "two modules of one name"


@pytest.mark.parametrize("path", sorted(DISTRIBUTED.rglob("*.py")), ids=lambda path: path.stem)
def test_names_are_words_of_the_field(path):
    found = named_in(path)
    assert not found & PRIVATE
    assert "left" not in found or "right" in found  # a side, and not a remainder


def docstrings(path: Path) -> list[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    return [ast.get_docstring(node) or "" for node in nodes if isinstance(node, kinds)]


def defined_in(path: Path) -> set[str]:
    """Functions, classes, variables and attributes that a file defines, at any depth."""
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    found = {n.name for n in nodes if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    found |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    stored = [n for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]
    return found | {n.attr for n in stored}


FILE = r"`([\w./]+\.(?:py|md|js|sh|csv))`"
OF_DEEPSPEED = {"stage_1_and_2.py"}
MODULE_FILES = {path.stem: path for path in DISTRIBUTED.rglob("[!_]*.py")}


@pytest.mark.parametrize("path", sorted(DISTRIBUTED.rglob("*.py")), ids=lambda path: path.stem)
def test_docstrings_name_only_what_there_is(path):
    text = "\n".join(docstrings(path))
    for name in {*re.findall(FILE, text)} - OF_DEEPSPEED:
        assert any(f"/{file}".endswith(f"/{name}") for file in TRACKED), name
    in_files = re.findall(rf"`(\w+)`\s+in\s+{FILE}", text)
    in_modules = re.findall(r"`(\w+)\.(\w+)`", re.sub(FILE, "", text))
    for module, name in [*in_modules, *((Path(file).stem, name) for name, file in in_files)]:
        if module in MODULE_FILES:
            assert name in defined_in(MODULE_FILES[module]), f"{module} has no {name}"


@pytest.mark.parametrize("folder", ["", *ENGINES])
def test_a_package_says_which_of_its_modules_do_what(folder):
    package = DISTRIBUTED / folder
    there = {path.stem for folder in (package, DISTRIBUTED) for path in folder.iterdir()}
    (text, *_) = docstrings(package / "__init__.py")
    assert {*re.findall(r"`(\w+)`", text)} <= there


RUN = ("ddp", "instruments", "planner", "zero")  # their files are run as scripts, too
SCRIPTS = ["code/distributed", *(f"code/distributed/{name}" for name in RUN)]


@pytest.mark.parametrize("folder", [*SCRIPTS, "code/scripts", "code/scripts/launch"])
def test_a_script_hides_no_module_of_python(folder):
    """Its folder comes first on the path, and Python 3.14 unzips with its own `compression`."""
    names = {path.stem for path in (ROOT / folder).iterdir() if not path.name.startswith("_")}
    assert names.isdisjoint({*sys.stdlib_module_names, "compression"})


RUN_ELSEWHERE = [
    *ROOT.glob("tests/gpu/*.py"),
    *ROOT.glob("tests/lab/*.py"),
    *ROOT.glob("bench/*.py"),
]


@pytest.mark.parametrize("path", RUN_ELSEWHERE, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_needs_gpus_or_time_names_only_what_there_is(path):
    """`make test` doesn't run these files, so a renamed function would fail where it costs most."""
    modules = {}  # name in the file → a module of this project
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    for node in nodes:
        if not isinstance(node, ast.ImportFrom) or (node.module or "").split(".")[0] not in OURS:
            continue
        package = importlib.import_module(node.module)
        for alias in node.names:
            if hasattr(package, "__path__") and find_spec(f"{node.module}.{alias.name}"):
                importlib.import_module(f"{node.module}.{alias.name}")
            assert hasattr(package, alias.name), f"{node.module} has no {alias.name}"
            if isinstance(found := getattr(package, alias.name), ModuleType):
                modules[alias.asname or alias.name] = found
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            assert module is None or hasattr(module, node.attr), ast.unparse(node)


def test_the_lock_file_says_what_not_where_from():
    packages = json.loads((ROOT / "book/web/package-lock.json").read_text())["packages"]
    for name, package in packages.items():
        assert "resolved" not in package
        assert name == "" or package["integrity"].startswith("sha512-")


AT_THE_ROOT = [
    "README.md",
    "LICENSE",
    "CITATION.cff",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Makefile",
    "pyproject.toml",
    "requirements.txt",
    "_config.yml",
    "_toc.yml",
    "book",
    "code",
    "exercises",
    "requirements",
    "tests",
    "bench",
]


def test_the_root_has_what_a_visitor_looks_for_and_no_more():
    visible = {name.split("/")[0] for name in TRACKED if not name.startswith(".")}
    assert sorted(visible) == sorted(AT_THE_ROOT)


def test_nothing_generated_is_committed():
    for name in TRACKED:
        assert not name.startswith(("_build/", "book/web/node_modules/", ".venv/"))
        assert not name.endswith((".ipynb", ".min.js", ".pyc"))


def test_no_file_promises_a_host_on_which_the_book_was_never_tried():
    """GitHub's forwarding of ports changes `Host` or `Origin`, and the server checks both."""
    name = "code" + "spaces"
    texts = {
        file: (ROOT / file).read_bytes().lower() for file in TRACKED if (ROOT / file).is_file()
    }
    assert [file for file, text in texts.items() if name.encode() in text] == []


def test_the_page_on_running_the_book_says_what_was_recorded():
    from bench.set_up import ON_PAGE, PARTS, record_of

    for part, (_, said_of) in PARTS.items():
        assert said_of(json.loads(record_of(part).read_text())) in ON_PAGE.read_text()


def test_the_readme_is_read_in_two_minutes():
    assert len((ROOT / "README.md").read_text().split()) <= 500


def test_no_two_tests_have_one_file_name():
    """pytest imports them by their names alone: the second would be an error."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    assert not [name for name in names if names.count(name) > 1]
