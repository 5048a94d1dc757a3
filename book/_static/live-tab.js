// Where no server answers: the kernel in the reader's own tab, for cells that need no library.

import { needsOf } from "./live-cell.js";
import { reloadFor, wasReloaded } from "./live-again.js";
import { TabKernel } from "./tab-kernel.js";

let kernel = null;
let starting = null; // promise of the kernel's start

/** Those of a page's cells that lack nothing. */
export const runnable = (cells) => cells.filter((cell) => needsOf(cell).length === 0);

/** Have a kernel; `page` is live-kernel.js's, `pressed` are the cells to run after a reload. */
export async function connect(page, code, pressed) {
  if (kernel) return;
  await isolate(pressed);
  page.status("starting", "starts in this tab");
  const ended = (why) => {
    kernel = null;
    page.emptied(why);
    page.status("lost", `ended in this tab: ${why}`);
  };
  const known = await fetch(new URL("tab.json", import.meta.url)).then((answer) => answer.json());
  const made = new TabKernel({ progress: page.progress, ended }, known);
  made.foresee(code);
  starting = made.start();
  try {
    await starting;
  } catch (error) {
    made.end();
    throw error;
  } finally {
    page.progress(null);
  }
  kernel = made;
  page.status("ready", "in this tab");
}

// A host of files sends no headers that give workers shared memory. A worker of ours that stands
// before it does, from the next load of the page on.
async function isolate(pressed) {
  if (globalThis.crossOriginIsolated || wasReloaded || !navigator.serviceWorker) return;
  try {
    const worker = new URL("../service-worker.js", import.meta.url);
    const { active, waiting, installing } = await navigator.serviceWorker.register(worker);
    await untilActive(active ?? waiting ?? installing);
  } catch {
    return; // a private window: ranks take turns
  }
  await reloadFor(pressed);
}

async function untilActive(worker) {
  while (worker.state !== "activated") {
    if (worker.state === "redundant") throw new Error("it could not be installed");
    await new Promise((resolve) => worker.addEventListener("statechange", resolve, { once: true }));
  }
}

/** Run code; what comes back is as a kernel's future. */
export function execute(page, code, number) {
  page.status("busy", "in this tab");
  const run = kernel.execute(code, number);
  const rest = () => kernel && page.status("ready", "in this tab");
  run.done.then(rest, rest);
  return run;
}

export const interrupt = () => kernel?.interrupt();
export const isThere = () => kernel !== null;

/** End it; the next run starts another one. */
export function end() {
  kernel?.end();
  kernel = null;
}
