// The memory of a Python that has started and imported what the workers of a tab do, for
// `tab.py`: node python_memory.mjs PYODIDE PYTHON.ZIP OUT

import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [pyodide, modules, out] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${pyodide}/pyodide.mjs`));
const { MODULES } = await import("../../../book/_static/python-parts.js");

const python = await loadPyodide({ _makeSnapshot: true, env: { HOME: "/home/pyodide" } });
python.FS.writeFile(MODULES, readFileSync(modules));
python.runPython(`
import sys
sys.path.insert(0, "${MODULES}")
import playground.tab.kernel, playground.tab.rank, playground.tab.turns
`);
writeFileSync(out, python.makeMemorySnapshot());
