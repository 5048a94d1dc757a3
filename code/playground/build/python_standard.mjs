// The modules of Python's own that Pyodide has, as JSON, for `tab.py`: node python_standard.mjs PYODIDE

import { pathToFileURL } from "node:url";

const { loadPyodide } = await import(pathToFileURL(`${process.argv[2]}/pyodide.mjs`));
const python = await loadPyodide({ env: { HOME: "/home/pyodide" } });
console.log(python.runPython(`
import json, sys
from importlib.util import find_spec
json.dumps(sorted(name for name in sys.stdlib_module_names if find_spec(name)))
`));
