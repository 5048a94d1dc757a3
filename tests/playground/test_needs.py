"""Whether a cell can run in a reader's tab, by what it imports and what it uses."""

import ast
import symtable
import sys

import pytest

from playground.build.needs import lack_in, names, needs
from playground.build.tab import imported

LACK = lack_in(sys.stdlib_module_names)


def of_one(code: str) -> list[str]:
    return needs([(code, False)], LACK)[0]


def test_imports_are_found_wherever_they_stand():
    code = """import os, numpy as np  # both
from array import array
def f():
    import torch.distributed as dist
from distributed.all_reduce import (
    cut_up,  # views
    others,
)
x = 'import important'
"""
    parts = ["distributed.all_reduce.cut_up", "distributed.all_reduce.others"]
    assert {*imported(ast.walk(ast.parse(code)))} == {
        "os",
        "numpy",
        "array",
        "torch.distributed",
        *parts,
    }


@pytest.mark.parametrize(
    ("code", "needed"),
    [
        ("import os, random\nfrom distributed import launch, world", []),
        ("import numpy as np\nimport torch\nimport torch.nn as nn", ["numpy", "torch"]),
        ("from distributed.ddp.wrapper import DistributedDataParallel", ["torch"]),
        ("from distributed import ddp", ["torch"]),
        ("from distributed.cost import step_ddp", []),
        ("from bench.live import x", ["bench"]),
        ("%matplotlib inline", []),
    ],
)
def test_what_a_tab_has_a_cell_may_use_and_what_it_lacks_is_named_once(code, needed):
    assert of_one(code) == needed


def test_the_names_that_a_cell_leaves_behind():
    code = """import torch.nn as nn, os
from a import b as c
for i, (x, y) in z:
    total += 1
with world(2) as run:
    seconds: float = 1
def f(p):
    local = 1
    return local + far
class K:
    field = 2
u == v
k, *rest = call(name=3)
"""
    made, used = names(symtable.symtable(code, "cell", "exec"))
    assert made == {
        *["K", "c", "f", "i", "k", "nn", "os", "rest", "run", "seconds", "total", "x", "y"]
    }
    assert {"z", "world", "u", "v", "call", "far"} <= used
    assert not used & {"local", "field", "name", "p"}


def test_a_cell_needs_what_one_above_needs_whose_names_it_uses():
    cells = [
        ("import torch\nmodel = torch.nn.Linear(1, 1)\nn = 3", False),
        ("weights = model.weight", False),
        ("print(weights)", False),
        ("print(other.model, 'model', f(model=1))  # model", False),
        ("[n + 1 for n in range(3)]", False),
        ("def g():\n    n = 4\n    return n", False),
        ("def h():\n    return n", False),
        ("model = 1", False),
        ("print(model)", False),
        ("print(n)", True),
    ]
    torch: list[list[str]] = [["torch"]]
    assert needs(cells, LACK) == [*torch * 3, [], [], [], *torch, [], [], []]


def test_what_a_cell_needs_stands_in_one_order_in_every_build():
    libraries = [f"library_{letter}" for letter in "abcdefgh"]
    above = [(f"import {name}", False) for name in libraries]
    assert needs([*above, (f"print({', '.join(libraries)})", False)], LACK)[-1] == libraries
