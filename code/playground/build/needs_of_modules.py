"""What one takes along with a taught module: the others that it imports, and theirs.

    python -m playground.build.needs_of_modules

prints it for each, with the lines of all of them, and counts them in the README. `runtime` comes
with every one; what only a demonstration or a type checker imports is not counted.
"""

import ast
import re
from pathlib import Path

from playground.build.reach import ROOT

SENTENCE = r"\d+ of the \d+ need only\n`runtime/` and at most one other"  # in the README
OFFERED = {"launch": "launching", "world": "launching"}  # by the package itself, and not counted


def imports_of(path: Path, modules: set[str]) -> set[str]:
    """The taught modules that a module imports as soon as it is imported itself."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module == "distributed":
            found |= {alias.name for alias in node.names if alias.name not in OFFERED}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.removeprefix("distributed."))
    return found & modules - {path.stem}


def needs(root: Path) -> dict[str, set[str]]:
    """Module → the taught modules without which it cannot be imported."""
    paths = {path.stem: path for path in sorted(root.glob("code/distributed/[!_]*.py"))}
    direct = {name: imports_of(path, {*paths}) for name, path in paths.items()}
    found = {}
    for name in paths:
        needed, new = set[str](), direct[name]
        while new:
            needed |= new
            new = set[str]().union(*(direct[other] for other in new)) - needed
        found[name] = needed
    return found


def sentence(needed: dict[str, set[str]]) -> str:
    """What the README says of it."""
    few = sum(len(others) <= 1 for others in needed.values())
    return f"{few} of the {len(needed)} need only\n`runtime/` and at most one other"


def main() -> None:
    """A line for each module, those that need the fewest first; and the README's sentence anew."""
    needed, readme = needs(ROOT), ROOT / "README.md"
    readme.write_text(re.sub(SENTENCE, sentence(needed), readme.read_text("utf-8")), "utf-8")
    lines = {
        name: len((ROOT / f"code/distributed/{name}.py").read_text("utf-8").splitlines())
        for name in needed
    }
    for name in sorted(needed, key=lambda name: (len(needed[name]), name)):
        others = sorted(needed[name])
        total = sum(lines[each] for each in (name, *others))
        print(f"{name:26}{total:6} lines  {len(others):2} others  {', '.join(others)}")
    print(sentence(needed).replace("\n", " "))


if __name__ == "__main__":
    main()
