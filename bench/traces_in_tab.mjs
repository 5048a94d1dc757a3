// A trace read by Pyodide as in a reader's tab: node traces_in_tab.mjs PYODIDE PYTHON_ZIP TRACE
// prints seconds, those of them that the processor worked, events and the bytes of Python's memory as JSON.

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [pyodide, ours, trace] = process.argv.slice(2);
const PIECE = 1 << 22;
const { loadPyodide } = await import(pathToFileURL(`${pyodide}/pyodide.mjs`));
const python = await loadPyodide({ env: { HOME: "/home/pyodide" } });
python.FS.writeFile("/home/pyodide/code.zip", new Uint8Array(readFileSync(ours)));
python.runPython('import sys; sys.path.insert(0, "/home/pyodide/code.zip")');
const reading = python.pyimport("playground.trace_reader.answer").Reading("");
const bytes = new Uint8Array(readFileSync(trace));
const started = performance.now();
const worked = process.cpuUsage();
reading.begin("rank0.json.gz");
let wrong = "";
for (let at = 0; at < bytes.length && !wrong; at += PIECE) wrong = reading.feed(bytes.slice(at, at + PIECE));
wrong ||= reading.end();
if (wrong) throw new Error(wrong);
reading.answer("{}");
const seconds = (performance.now() - started) / 1000;
const { user, system } = process.cpuUsage(worked);
const processor = (user + system) / 1e6;
console.log(JSON.stringify({ seconds, processor, memory: python._module.HEAP8.length, events: reading.traces.get(0).events }));
