// Python in a worker of its own: it answers a question, an address's query, with a plan as JSON.

import { startPython } from "./python.js";
import { Counter, SIZE, fetchParts } from "./python-parts.js";

async function start() {
  const parts = await fetchParts(new Counter((arrived) => {
    postMessage({ progress: `Fetching Python for this tab: ${arrived} of ${SIZE} MB …` });
  }));
  postMessage({ progress: "Starting Python …" });
  const python = await startPython(parts);
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
