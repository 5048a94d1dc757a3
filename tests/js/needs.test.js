// Whether a cell can run in a tab, by what it imports.

import assert from "node:assert/strict";
import test from "node:test";
import { importsOf, lacks, lacksOf, namesMadeBy } from "../../book/_static/tab-needs.js";

const KNOWN = {
  standard: ["os", "array", "random"],
  carried: ["cloudpickle"],
  modules: { distributed: null, "distributed.parts": null, "distributed.collective_times": "torch", "playground.show.tables": null },
};

test("imports are found wherever they stand", () => {
  const code = "import os, numpy as np  # both\nfrom array import array\n\ndef f():\n    import torch.distributed as dist\n"
    + "from distributed.parts import (\n    cut_up,  # views\n    others,\n)\nx = 'important'\n";
  assert.deepEqual(importsOf(code),
    ["os", "numpy", "array", "torch.distributed", "distributed.parts.cut_up", "distributed.parts.others"]);
});

test("what a tab has, a cell may use", () => {
  assert.deepEqual(lacks("import os, random\nfrom distributed import launch, world, parts", KNOWN), []);
  assert.deepEqual(lacks("from distributed.parts import cut_up as cut\nfrom playground.show.tables import Table", KNOWN), []);
});

test("what it lacks is named by the library, once", () => {
  assert.deepEqual(lacks("import numpy as np\nimport torch\nimport torch.nn as nn", KNOWN), ["numpy", "torch"]);
  assert.deepEqual(lacks("from distributed.collective_times import OPS", KNOWN), ["torch"]);
  assert.deepEqual(lacks("from distributed import collective_times", KNOWN), ["torch"]);
  assert.deepEqual(lacks("from bench.phone import x", KNOWN), ["bench"]);
});

test("the names that a cell leaves behind", () => {
  const code = "import torch.nn as nn, os\nfrom a import (\n    b as c,\n    d,  # last\n)\nfor i, (x, y) in z:\n    total += 1\n    half = x\n"
    + "with world(2) as run:\n    seconds: float = 1\ndef f(p):\n    local = 1\n    return local\nclass K:\n    field = 2\nu == v\nk, *rest = call(name=3)\n";
  assert.deepEqual([...namesMadeBy(code)].sort(),
    ["K", "c", "d", "f", "half", "i", "k", "nn", "os", "rest", "run", "seconds", "x", "y"]);
});

test("a cell needs what one above needs whose names it uses", () => {
  const cells = [
    { code: "import torch\nmodel = torch.nn.Linear(1, 1)\nn = 3" },
    { code: "weights = model.weight" },
    { code: "print(weights)" },
    { code: "print(other.model, 'model', f(model=1))  # model" },
    { code: "[n + 1 for n in range(3)]" },
    { code: "def g():\n    n = 4\n    return n" },
    { code: "model = 1" },
    { code: "print(model)" },
    { code: "print(n)", standsAlone: true },
  ];
  assert.deepEqual(lacksOf(cells, KNOWN),
    [["torch"], ["torch"], ["torch"], [], [], [], [], [], []]);
});
