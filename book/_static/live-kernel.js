// The kernel of a page: started at the first press, watched, restarted, ended with the page.
//
// It is a server's. Where none answers, and a cell's imports allow it, it is the tab's own: see
// live-tab.js. If they do not, it is a Binder's, if the book names one.
//
// What a kernel's fate means for cells is live.js's business; it hands in what to call:
// `load()` brings live-thebe.js, `status(name, words)` is to be shown, `emptied(why)` says that
// nothing counts as having run, `run()` is the run that the page waits for,
// `progress(share)` says how much of Python has come to the tab.

import { wasReloaded } from "./live-again.js";
import { needsOf } from "./live-cell.js";
import { UNKNOWN_READER, ask as askServer, askBinder, binder, noneFor, runsCells } from "./live-server.js";
import { listen, untilReady } from "./live-signals.js";

const ON_ITS_WAY = 2000; // ms that an answer may take after it could have been there

let session = null; // the connection to the kernel; null when there is none
let stopWatching; // disconnects what listens to it
let restarting = null; // promise of the end of a restart
let page; // what live.js handed in
let tab = null; // live-tab.js, once no server has answered

/** A session for this cell; null where it can run in the tab. */
async function startSession(kernelName, cell) {
  // The name is new each time, so that two tabs (or a lost kernel) never share a session.
  const name = location.pathname.split("/").pop().replace(/\.html$/, "") || "index";
  const path = `${name}-${Math.random().toString(36).slice(2)}.ipynb`;
  const body = { path, name: path, type: "notebook", kernel: { name: kernelName } };
  const ask = () => askServer("POST", "sessions", body).catch(() => null);
  let answer = await runsCells() ? await ask() : null;
  const machines = binder();
  if (!isFromJupyter(answer)) {
    await loadTab();
    const lacking = needsOf(cell);
    if (lacking.length === 0) return null;
    if (!machines) throw new Error(noneFor(lacking));
    await askBinder(machines, (words) => page.status("starting", words));
    answer = await ask();
  }
  if (answer?.ok) return answer.json();
  if (answer?.status === 503) throw new Error((await answer.json()).message); // it is full
  throw new Error(answer?.status === 403 ? UNKNOWN_READER : noneFor([]));
}

async function loadTab() {
  try {
    tab ??= await import("./live-tab.js");
  } catch { // there is no host any longer
    throw new Error(noneFor([]));
  }
}

/** A proxy whose server is gone answers, too, but not with what a program could read. */
function isFromJupyter(answer) {
  const isJson = answer?.headers.get("Content-Type")?.includes("json");
  return answer?.ok || (isJson && [403, 503].includes(answer.status));
}

/** Have a kernel that can run the first of `queue`, which are cells of a page. */
export async function connect(queue) {
  const [cell] = queue;
  const pressed = queue.map(({ index }) => index);
  await restarting;
  const isForTab = !session && (tab || wasReloaded); // where no server has answered before
  if (isForTab && needsOf(cell).length === 0) {
    await loadTab();
    return connectToTab(cell.code, pressed);
  }
  if (session && await whatItDoes(session)) return;
  if (session) lose(session, "the kernel ended");
  page.status("starting");
  const loading = page.load(); // meanwhile
  loading.catch(() => {}); // where no kernel answers, that is what the reader has to know
  const model = await startSession(page.kernelName, cell);
  if (model === null) return connectToTab(cell.code, pressed);
  if (tab?.isThere()) {
    tab.end();
    page.emptied("it ran in this tab, and now there is a kernel");
  }
  try {
    session = await (await loading).connectTo(model);
  } catch (error) {
    await endSession(model);
    throw error;
  }
  watch(session);
}

async function connectToTab(code, pressed) {
  const loading = page.load();
  loading.catch(() => {}); // it is awaited below
  await tab.connect(page, code, pressed);
  await loading;
}

// "idle", "busy" and so on, as the server sees it; null when there is no such kernel.
async function whatItDoes({ kernel }) {
  if (kernel.isDisposed || kernel.status === "dead") return null;
  const answer = await askServer("GET", `kernels/${kernel.id}`).catch(() => null);
  return answer?.ok ? (await answer.json()).execution_state : null;
}

function watch(watched) {
  const { kernel } = watched;
  let isCut = false;
  stopWatching = listen(
    [kernel.statusChanged, (_, state) => {
      if (state === "dead") lose(watched, "the kernel ended");
      else if (state === "autorestarting") waitForRestartedKernel(kernel);
      else if (state === "idle" && !restarting) page.status("ready");
      else if (state === "busy" && !restarting) page.status("busy");
    }],
    [kernel.connectionStatusChanged, (_, state) => {
      if (state === "disconnected") lose(watched, "the connection was lost");
      else if (state === "connecting" && !restarting) {
        isCut = true;
        page.status("lost", "connection lost, trying again");
      } else if (state === "connected" && isCut) {
        isCut = false;
        goOn(watched);
      }
    }],
    [kernel.disposed, () => lose(watched, "the kernel ended")],
  );
}

// The connection is back, and the kernel is the same. What it said meanwhile is lost; a run that
// has ended meanwhile will not say so again.
async function goOn(watched) {
  const run = page.run();
  const state = await whatItDoes(watched);
  if (session !== watched) return;
  if (state === null) return lose(watched, "the kernel ended");
  page.status(state === "busy" ? "busy" : "ready");
  if (state === "busy") return;
  await new Promise((resolve) => setTimeout(resolve, ON_ITS_WAY));
  if (page.run() === run) run?.dispose(); // it counts as lost
}

// The server starts a kernel that died again. What is sent before that one is ready gets lost.
async function waitForRestartedKernel(kernel) {
  page.emptied("the kernel died");
  page.status("lost", "died, starting again");
  restarting = untilReady(kernel);
  await restarting;
  restarting = null;
  if (session) page.status("ready", "ready, nothing has run in it");
}

function lose(lost, why) {
  session = null;
  stopWatching(); // first: what follows makes the lost session report its own end
  page.load().then((parts) => parts.disconnect(lost));
  page.emptied(why);
  page.status("lost", `lost: ${why}`);
}

// A kernel that is interrupted before the code begins drops the run, and is idle without an answer.
export function execute(code, number) {
  if (!session) return tab.execute(page, code, number);
  const future = session.kernel.requestExecute({ code, stop_on_error: true });
  future.registerMessageHook(({ header, content }) => {
    const isOver = header.msg_type === "status" && content.execution_state === "idle";
    if (isOver) setTimeout(() => drop(future), ON_ITS_WAY);
    return true; // the message goes on
  });
  return future;
}

function drop(future) {
  future.wasDropped = true;
  future.dispose();
}

export async function restart() {
  page.emptied("ran before the restart");
  if (!session) {
    tab.end();
    return page.status("none", "no kernel");
  }
  page.status("starting", "restarting");
  const restarted = session;
  restarting = restarted.restart().then(
    () => page.status("ready", "ready, nothing has run in it"),
    () => session === restarted && lose(restarted, "it could not be restarted"),
  );
  await restarting;
  restarting = null;
}

// Nobody can come back to the kernel of a page that was left, so it should not live on.
function endSession({ id }) {
  return askServer("DELETE", `sessions/${id}`, null, { keepalive: true }).catch(() => {});
}

export function serve(handedIn) {
  page = handedIn;
  window.addEventListener("pagehide", () => session && endSession(session));
}

export const isInTab = () => session === null && Boolean(tab?.isThere());

export const isThere = () => session !== null || isInTab();
export const mayRestart = () => isThere() && !restarting;
export const interrupt = () => (isInTab() ? tab.interrupt() : session?.kernel.interrupt().catch(() => {}));

/** Whether a cell can run: in this tab, on a Binder's machine, or on the server of the page. */
export async function canRun() {
  const canInTab = document.getElementById("live-status").dataset.inTab === "true";
  return canInTab || binder() !== null || runsCells();
}

/** Those of a page's cells that could run in the kernel that is there. */
export const runnable = (cells) => (isInTab() ? tab.runnable(cells) : cells);

/** Those that can run in the tab, where no server has answered. */
export const runnableHere = (cells) => (session === null ? (tab?.runnable(cells) ?? []) : []);
