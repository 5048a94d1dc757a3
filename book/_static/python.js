// Python in a worker of a page: Pyodide, and the modules of this book that need no library.

import { loadPyodide } from "./pyodide/pyodide.mjs";
import { Counter, MODULES, SIZE, fetchParts } from "./python-parts.js";

const indexURL = new URL("pyodide/", import.meta.url).href;

/** Python with the book's modules, from what `fetchParts` gives; `options` are Pyodide's. */
export async function startPython({ program, files }, options = {}) {
  const give = handing(program, files);
  try {
    const python = await loadPyodide({ indexURL, ...options });
    python.FS.writeFile(MODULES, new Uint8Array(files["python.zip"]));
    if (!options._loadSnapshot) python.runPython(`import sys; sys.path.insert(0, "${MODULES}")`);
    return python;
  } finally {
    give.back();
  }
}

/** One of the book's modules, for the worker of a tool; its page is told how far that is. */
export async function startWith(module) {
  const parts = await fetchParts(new Counter((arrived) => {
    postMessage({ progress: `Fetching Python for this tab: ${arrived} of ${SIZE} MB …` });
  }));
  postMessage({ progress: "Starting Python …" });
  return (await startPython(parts)).pyimport(module);
}

/** Until `back()`, Pyodide gets what it asks the network for from here: one page starts it often. */
function handing(program, files) {
  const { fetch } = globalThis;
  const { instantiateStreaming } = WebAssembly;
  globalThis.fetch = async (url) => {
    const name = String(url).slice(String(url).lastIndexOf("pyodide/"));
    if (name.endsWith(".wasm")) return new Response();
    return name in files ? new Response(files[name]) : fetch(url);
  };
  WebAssembly.instantiateStreaming = async (_, imports) =>
    ({ module: program, instance: await WebAssembly.instantiate(program, imports) });
  return {
    back() {
      globalThis.fetch = fetch;
      WebAssembly.instantiateStreaming = instantiateStreaming;
    },
  };
}
