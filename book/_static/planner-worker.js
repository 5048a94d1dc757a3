// Python in a worker of its own: it answers a question, an address's query, with a plan as JSON.

import { startWith } from "./python.js";

const started = startWith("playground.planner.answer");
started.then(() => postMessage({ ready: true }), (error) => postMessage({ failed: error.message }));

onmessage = async ({ data }) => {
  const { answer } = await started;
  try {
    postMessage({ answer: answer(data) });
  } catch (error) { // a mistake of ours: the last line of a traceback says which
    postMessage({ failed: error.message.trim().split("\n").at(-1) });
  }
};
