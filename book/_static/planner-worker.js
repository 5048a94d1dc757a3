// Python in a worker of its own: it answers a question, an address's query, with a plan as JSON.

import { loadPyodide } from "./pyodide/pyodide.mjs";

const MB = 1e6;
let arrived = 0;
let told = 0;

function tell() {
  if (arrived < told) return;
  told = arrived + MB;
  postMessage({ progress: `Fetching Python for this tab: ${Math.floor(arrived / MB)} of 14 MB …` });
}

/** The same answer; what of it has arrived is told. */
function counted(response) {
  if (!response.body) return response;
  const count = new TransformStream({
    transform(piece, controller) {
      arrived += piece.length;
      tell();
      controller.enqueue(piece);
    },
  });
  const { status, statusText, headers } = response;
  return new Response(response.body.pipeThrough(count), { status, statusText, headers });
}

async function start() {
  const get = globalThis.fetch;
  globalThis.fetch = async (...what) => counted(await get(...what));
  const modules = fetch(new URL("planner.zip", import.meta.url));
  const python = await loadPyodide({ indexURL: new URL("pyodide/", import.meta.url).href });
  globalThis.fetch = get;
  postMessage({ progress: "Starting Python …" });
  const answer = await modules;
  if (!answer.ok) throw new Error(`planner.zip: ${answer.status}`);
  python.unpackArchive(await answer.arrayBuffer(), "zip", { extractDir: "/book" });
  python.runPython("import sys; sys.path.insert(0, '/book')");
  return python.pyimport("playground.planner.answer").answer;
}

const started = start();
started.then(() => postMessage({ ready: true }), (error) => postMessage({ failed: error.message }));

onmessage = async ({ data }) => {
  const answer = await started;
  try {
    postMessage({ answer: answer(data) });
  } catch (error) { // a mistake of ours: the last line of a traceback says which
    postMessage({ failed: error.message.trim().split("\n").at(-1) });
  }
};
