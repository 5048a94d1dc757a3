// Python in a worker of a page: Pyodide, and the modules of this book that need no library.

import { loadPyodide } from "./pyodide/pyodide.mjs";
import { MODULES, counting } from "./python-parts.js";

const indexURL = new URL("pyodide/", import.meta.url).href;

/** A `fetch` that tells how many megabytes have come. */
function counted(get, tell) {
  const total = { arrived: 0, told: -1 };
  return async (...what) => counting(await get(...what), tell, total);
}

/** Python with the book's modules; `tell(megabytes)` as it arrives; `options` are Pyodide's. */
export async function startPython(tell, options = {}) {
  const get = globalThis.fetch;
  globalThis.fetch = counted(get, tell);
  try {
    const modules = fetch(new URL("python.zip", import.meta.url)).then(bytesOf);
    const python = await loadPyodide({ indexURL, ...options });
    python.FS.writeFile(MODULES, await modules);
    if (!options._loadSnapshot) python.runPython(`import sys; sys.path.insert(0, "${MODULES}")`);
    return python;
  } finally {
    globalThis.fetch = get;
  }
}

async function bytesOf(answer) {
  if (!answer.ok) throw new Error(`${answer.url}: ${answer.status}`);
  return new Uint8Array(await answer.arrayBuffer());
}
