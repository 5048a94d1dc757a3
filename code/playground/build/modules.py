"""Map of `code/distributed`: which chapter teaches which lesson.

    python -m playground.build.modules

updates the map, `code/distributed/README.md`, and the list in the docstring of the package.
"""

import ast
import re
import textwrap
from pathlib import Path

from playground.build.reach import ROOT
from playground.build.toc import chapters

# A page teaches the modules that it shows, even in part. Others are taught where first named.
SHOWN = r"^(?::?load: |```\{literalinclude\} )(?:\.\./)*code/distributed/(\w+)\.py"
NAMED = r"code/distributed/(\w+)\.py|distributed\.(\w+)\b"
HEAD = """\
<!-- Made from _toc.yml and the docstrings: python -m playground.build.modules -->
# Lessons, in reading order

**A file in this folder is a lesson; a folder is an engine.** A lesson teaches one idea, in at most
150 lines that end at its `main` (`bucketed_ddp`: 200). It imports at most two lessons of the
same or earlier chapters, and `runtime`. An engine does a whole job for any module and any program:
`ddp` takes its buckets from a lesson, and `zero` computes the formulas of the lessons of ZeRO with
its own parts.
"""
BEGIN, END = "in reading order:\n\n", "\n\nREADME.md in this"  # in the docstring of the package
FLOORS = {
    "runtime": "starts ranks, gives them groups, carries and counts messages; hooks on gradients",
    "ddp": "`DistributedDataParallel` and what it needs: usage, join, the order of buckets",
    "zero": "the classes `Zero1`, `Zero2`, `Zero3` and `HSDP` for any module, and checkpoints",
    "planner": "models of memory, bytes and time: plain numbers, without torch or NumPy",
    "read_trace": "what a trace of `torch.profiler` says of a step: plain Python, in a tab, too",
    "instruments": "what measures and compares: seconds of collectives, bytes that leave a host",
    "workbench": "what modules are tried on: data, networks, one training loop",
}
WHERE = {  # a place to look for, and the functions that do it in calling order
    "where a rank begins": "launching.launch runtime/rank.be_a_rank",
    "who sends the bytes of a ring": "runtime/group.Group.reduce_by all_reduce.ring",
    "where the ring adds": "runtime/transport.Transport.relay",
    "where DDP launches a bucket": "bucketed_ddp.Reducer.reduce_full_buckets",
    "where ZeRO-3 gathers a block": "zero/schedule.Schedule.pre_forward zero/blocks.Block.unshard",
    "where ZeRO-3 frees a block": "zero/schedule.Schedule.post_forward zero/blocks.Block.reshard",
    "where it frees a block in the backward pass": "zero/schedule.Schedule.post_backward",
    "where it prefetches the next": "zero/schedule.Schedule.pre_forward "
    "zero/schedule.Schedule._prefetch",
    "where it gathers a block again": "zero/schedule.Schedule.pre_backward "
    "zero/schedule.Schedule._begin_turn",
    "where ZeRO reduces a gradient": "zero/schedule.Schedule.post_backward "
    "zero/reduce_in_backward.GradientReducer.start",
    "where a shard is updated": "zero/sharded.ShardedOptimizer.step",
    "when a checkpoint is there": "checkpoint_folder.new_checkpoint",
}
MODELS = {  # quantities, and the functions that compute them
    "exposed communication, measured": "read_trace/breakdown.breakdown",
    "exposed communication, modelled": "cost.Step.exposed planner/streams.SimulatedStep.exposed",
}


def modules_by_part(root: Path) -> dict[str, list[tuple[Path, str]]]:
    """The modules of each part with the page that teaches them, in the order of the book."""
    parts = chapters(root)
    pages = {
        file: (root / f"{file}.md").read_text(encoding="utf-8")
        for files in parts.values()
        for file in files
    }
    teachers: dict[str, str] = {}
    for pattern in (SHOWN, NAMED):
        for file, page in pages.items():
            for match in re.finditer(pattern, page, re.M):
                teachers.setdefault(next(filter(None, match.groups())), file)
    found: dict[str, list[tuple[Path, str]]] = {}
    for caption, files in parts.items():
        for file in files:
            for name in dict.fromkeys(named(pages[file])):
                path = root / f"code/distributed/{name}.py"
                if teachers[name] == file and path.exists():
                    found.setdefault(caption, []).append((path, file))
    return found


def named(page: str) -> list[str]:
    """Modules that a page names, in order."""
    return [match[1] or match[2] for match in re.finditer(NAMED, page)]


def summary(path: Path) -> str:
    """The first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def title(page: Path) -> str:
    return next(line[2:] for line in page.read_text("utf-8").splitlines() if line.startswith("# "))


def link_to(function: str, root: Path) -> str:
    """Link to a function given by its module's path and its name: `zero1.ReduceInStep.reduce`."""
    module, *names = function.split(".")
    path = root / f"code/distributed/{module}.py"
    node: ast.AST = ast.parse(path.read_text(encoding="utf-8"))
    for name in names:
        inside = [one for one in ast.iter_child_nodes(node) if getattr(one, "name", "") == name]
        if not inside:
            raise LookupError(f"WHERE names {function}, but {module}.py doesn't define {name}")
        node = inside[0]
    return f"[`{'.'.join([path.stem, *names])}`]({module}.py)"


def readme(root: Path) -> str:
    """The map of `code/distributed`, in Markdown. Raises LookupError if a function is gone."""
    lines = [HEAD]
    for caption, modules in modules_by_part(root).items():
        lines.append(f"\n## {caption}\n")
        for page in dict.fromkeys(page for _, page in modules):
            lines.append(f"\n[{title(root / f'{page}.md')}](../../{page}.md)\n")
            own = [path for path, of in modules if of == page]
            lines += [f"- [`{path.stem}`]({path.name}): {summary(path)}" for path in own]
    lines += ["\n## Engines\n"]
    lines += [f"- [`{folder}/`]({folder}): {what}." for folder, what in FLOORS.items()]
    lines += ["\n## Where to look\n"]
    for what, functions in (WHERE | MODELS).items():
        lines.append(f"- {what}: " + ", then ".join(link_to(f, root) for f in functions.split()))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def contents(root: Path) -> list[str]:
    """A shorter map of a few lines, for the docstring of the package."""
    parts = modules_by_part(root).items()
    return [f"{caption}: {', '.join(path.stem for path, _ in own)}." for caption, own in parts]


def in_docstring(text: str, root: Path) -> str:
    """The text of the package's `__init__.py`, with the current map in its docstring."""
    before, begins, rest = text.partition(BEGIN)
    _, ends, after = rest.partition(END)
    wrapped = [textwrap.fill(line, 100, subsequent_indent="    ") for line in contents(root)]
    return "".join([before, begins, "\n".join(wrapped), ends, after])


def main() -> None:
    """Update the map and the docstring."""
    folder = ROOT / "code/distributed"
    (folder / "README.md").write_text(readme(ROOT), encoding="utf-8")
    package = folder / "__init__.py"
    package.write_text(in_docstring(package.read_text("utf-8"), ROOT), encoding="utf-8")


if __name__ == "__main__":
    main()
