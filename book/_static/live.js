// What happens when a reader presses Run.
//
// The page is complete without this file: code and outputs were made when the book was built.
// This script connects the cells of one page to one kernel of the server that served the page.
// Which cell runs when, and what a cell says about itself, is decided here; the editor, the kernel
// connection and the rendering of outputs come from thebe, through live-thebe.js.
"use strict";
(() => {

const NO_SERVER = "No kernel answers here. Run `make serve` in the book's folder and open the address "
  + "that it prints. Until then, all outputs stay as they were built.";
const UNKNOWN_READER = "The server does not know this browser. Open the address that `make serve` "
  + "printed, with its token, once.";

const bookRoot = new URL(document.documentElement.dataset.content_root, location.href);
const status = document.getElementById("live-status");
const cells = [...document.querySelectorAll("div.cell[data-live]")].map(describeCell);

let thebe = null; // promise of live-thebe.js, ready to use; null until first needed
let session = null; // the connection to the kernel; null when there is none
let queue = []; // the cells that the reader asked for and that are not done
let running = null; // the cell whose code the kernel executes now: one of those, or one above it
let isWorking = false; // true while the loop in workThroughQueue goes on
let restarting = null; // promise of the end of a restart that the reader asked for

// ---------------------------------------------------------------------------------- the cells

function describeCell(node, index) {
  const find = (selector) => node.querySelector(selector);
  const listing = find(".cell_input").firstElementChild;
  const bookCode = textOfListing(listing);
  const code = window.liveEdits.read(index, bookCode);
  return {
    node, index, listing,
    run: find(".live-run"), runLabel: find(".live-run-label"), runTitle: find(".live-run").title,
    edit: find(".live-edit"),
    reset: find(".live-reset"), stateText: find(".live-state"), message: find(".live-message"),
    output: find(".cell_output"),
    bookCode, // what the book says
    bookListing: listing.querySelector("pre").innerHTML, // the same, in colours
    code, // what stands in the editor, or did when the reader was here before
    codeOfOutput: bookCode, // what made the output that is shown
    codeInKernel: null, // what this kernel ran last for this cell; null: nothing that counts
    settled: ["built", "built"], // state and words to come back to after "queued" and "edited"
    area: null, // thebe's output area, made at the first run
    editor: null, // the CodeMirror instance, made at the first edit
    mayFail: node.classList.contains("tag_raises-exception"), // its error is what it shows
    standsAlone: node.classList.contains("tag_exercise"), // needs no cell, and no cell needs it
    runWord: find(".live-run-label").textContent,
  };
}

function textOfListing(listing) {
  const copy = listing.querySelector("pre").cloneNode(true);
  copy.querySelectorAll(".linenos").forEach((number) => number.remove());
  return copy.textContent.replace(/\n+$/, "");
}

// What the reader wrote on an earlier visit. The editor comes only when it is asked for.
function showKeptEdit(cell) {
  if (cell.code === cell.bookCode) return;
  cell.listing.querySelector("pre").textContent = cell.code;
  showSettled(cell);
}

function show(cell, state, words) {
  cell.node.dataset.state = state;
  cell.stateText.textContent = words;
  cell.stateText.title = state === "built" ? "This output was made when the book was built" : "";
  cell.runLabel.textContent = isUnderWay(cell) ? "Stop" : cell.runWord;
  cell.run.title = isUnderWay(cell) ? "Interrupt this cell and drop what waits" : cell.runTitle;
  cell.reset.hidden = cell.code === cell.bookCode && cell.codeOfOutput === cell.bookCode;
  window.liveDiff.update(cell);
}

function settle(cell, state, words) {
  cell.settled = [state, words];
  showSettled(cell);
}

function showSettled(cell) {
  if (cell.code !== cell.codeOfOutput) show(cell, "edited", "edited, not run yet");
  else show(cell, ...cell.settled);
}

function say(cell, message) {
  cell.message.textContent = message;
  cell.message.hidden = !message;
}

function announce(words) {
  status.querySelector(".live-announce").textContent = words;
}

function showStatus(name, words = name) {
  if (name !== "ready" && name !== "busy") announce(`kernel: ${words}`);
  status.dataset.status = name;
  status.title = status.querySelector(".live-status-text").textContent = words;
  status.querySelector(".live-restart").disabled = session === null;
}

// ------------------------------------------------------------------------------ thebe, on demand

function loadThebe() {
  thebe ??= import(new URL("_static/live-thebe.js", bookRoot)).then(async (parts) => {
    await parts.load(bookRoot, cells.map((cell) => cell.code));
    cells.forEach((cell) => prepareOutput(cell, parts));
    return parts;
  }).catch(() => {
    thebe = null; // the next press tries again
    throw new Error(NO_SERVER);
  });
  return thebe;
}

// The live output has a place of its own beside the built one, which is hidden, never rewritten.
function prepareOutput(cell, parts) {
  cell.liveOutput = document.createElement("div");
  cell.liveOutput.className = "live-output";
  cell.area = parts.makeOutputArea(cell.index, cell.liveOutput, () => showOutput(cell, "live"));
  cell.output.append(cell.liveOutput);
}

// ---------------------------------------------------------------------------------- the kernel

const server = window.liveServer;
const askServer = (...request) => server.ask(...request);

async function startSession() {
  // The name is new each time, so that two tabs (or a lost kernel) never share a session.
  const page = location.pathname.split("/").pop().replace(/\.html$/, "") || "index";
  const path = `${page}-${Math.random().toString(36).slice(2)}.ipynb`;
  const kernel = { name: status.dataset.kernel };
  const ask = () => askServer("POST", "sessions", { path, name: path, type: "notebook", kernel })
    .catch(() => null);
  let answer = await ask();
  const binder = server.binder();
  if (binder && ![200, 201, 403, 503].includes(answer?.status)) {
    await server.askBinder(binder, (words) => showStatus("starting", words));
    answer = await ask();
  }
  if (answer?.ok) return answer.json();
  if (answer?.status === 503) throw new Error((await answer.json()).message); // it is full
  throw new Error(answer?.status === 403 ? UNKNOWN_READER : NO_SERVER);
}

async function connect() {
  await restarting;
  if (session && await isAlive(session)) return;
  if (session) lose(session, "the kernel ended");
  showStatus("starting");
  const [model, parts] = await Promise.all([startSession(), loadThebe()]);
  session = await parts.connectTo(model);
  watch(session);
}

function isAlive({ kernel }) {
  if (kernel.isDisposed || kernel.status === "dead") return false;
  return askServer("GET", `kernels/${kernel.id}`).then((answer) => answer.ok, () => false);
}

function watch(watched) {
  const { kernel } = watched;
  const isCurrent = () => session === watched;
  kernel.statusChanged.connect((_, state) => {
    if (!isCurrent()) return;
    if (state === "dead") lose(watched, "the kernel ended");
    else if (state === "autorestarting") waitForRestartedKernel(kernel);
    else if (state === "idle" && !restarting) showStatus("ready");
    else if (state === "busy" && !restarting) showStatus("busy");
  });
  kernel.connectionStatusChanged.connect((_, state) => {
    if (isCurrent() && state === "disconnected") lose(watched, "the connection was lost");
  });
  kernel.disposed.connect(() => isCurrent() && lose(watched, "the kernel ended"));
}

// The server starts a kernel that died again. What is sent before that one is ready gets lost.
async function waitForRestartedKernel(kernel) {
  forgetWhatRan("the kernel died");
  showStatus("lost", "died, starting again");
  restarting = new Promise((resolve) => {
    kernel.statusChanged.connect((_, state) => state === "idle" && resolve());
    kernel.disposed.connect(resolve);
  });
  await restarting;
  restarting = null;
  if (session) showStatus("ready", "ready, nothing has run in it");
}

function lose(lost, why) {
  session = null; // first: what follows makes the lost session report its own end
  thebe.then((parts) => parts.disconnect(lost));
  forgetWhatRan(why);
  showStatus("lost", `lost: ${why}`);
}

// The kernel is empty again. Outputs stay to be read, but no cell counts as having run.
function forgetWhatRan(why) {
  for (const cell of cells.filter((cell) => cell.codeInKernel !== null)) {
    cell.codeInKernel = null;
    cell.settled = ["lost", `lost: ${why}`];
    if (!isUnderWay(cell)) showSettled(cell);
  }
  showWhatWaits();
}

async function restart() {
  if (!session || restarting) return;
  emptyQueue("stopped by Restart");
  if (running) running.isStopping = true;
  forgetWhatRan("ran before the restart");
  showStatus("starting", "restarting");
  const restarted = session;
  restarting = restarted.restart().then(
    () => showStatus("ready", "ready, nothing has run in it"),
    () => session === restarted && lose(restarted, "it could not be restarted"),
  );
  await restarting;
  restarting = null;
}

// Nobody can come back to the kernel of a page that was left, so it should not live on.
function endSession() {
  if (!session) return;
  askServer("DELETE", `sessions/${session.id}`, null, { keepalive: true }).catch(() => {});
}

// ---------------------------------------------------------------------------------- running

function press(cell) {
  if (isUnderWay(cell)) stop(cell);
  else enqueue([cell]);
}

function isUnderWay(cell) {
  return ["queued", "running"].includes(cell.node.dataset.state);
}

function enqueue(pressed) {
  queue.push(...pressed.filter((cell) => !queue.includes(cell)));
  pressed.forEach((cell) => say(cell, ""));
  showWhatWaits();
  workThroughQueue();
}

function isNewToKernel(cell) {
  return cell.codeInKernel !== cell.code;
}

function needed(asked) {
  return asked.standsAlone ? [] : cells.slice(0, asked.index).filter((cell) => !cell.standsAlone);
}

// A cell that was asked for waits, and so do those above it, from the first that is new on: what
// is new to the kernel, or was edited, may change what all cells below it do.
function showWhatWaits() {
  for (const asked of queue) {
    const above = needed(asked);
    const firstNew = above.findIndex(isNewToKernel);
    const waiting = firstNew < 0 ? [] : above.slice(firstNew);
    for (const cell of [...waiting, asked]) if (cell !== running) show(cell, "queued", "queued");
  }
}

async function workThroughQueue() {
  if (isWorking) return;
  isWorking = true;
  try {
    while (queue.length > 0) {
      await connect();
      if (queue.length > 0) await runNext(queue[0]);
    }
  } catch (error) {
    const [asked] = queue;
    emptyQueue(null);
    showStatus("none", "no kernel");
    if (asked) say(asked, error.message);
  }
  isWorking = false;
}

async function runNext(asked) {
  const cell = needed(asked).find(isNewToKernel) ?? asked;
  const succeeded = await runNow(cell);
  if (cell === queue[0]) queue.shift();
  if (!succeeded) emptyQueue("stopped: the cell above failed");
}

// Cells that the reader asked for say why they will not run; those above them are as before.
function emptyQueue(why) {
  const asked = queue;
  queue = [];
  for (const cell of cells.filter((cell) => cell.node.dataset.state === "queued")) {
    if (asked.includes(cell) && why) settle(cell, "stopped", why);
    else showSettled(cell);
  }
}

async function runNow(cell) {
  running = cell;
  const { code } = cell;
  const started = performance.now();
  const seconds = () => ((performance.now() - started) / 1000).toFixed(1);
  const verb = () => (cell.isStopping ? "stopping" : "running");
  const tick = () => show(cell, "running", `${verb()}, ${seconds()} s`);
  const clock = setInterval(tick, 100);
  tick();
  announce(`cell ${cell.index + 1} is running`);
  if (isNewToKernel(cell) && !cell.standsAlone) cells.slice(cell.index + 1).forEach(needsToRunAgain);

  keepOldOutputUntilNew(cell);
  const reply = await execute(cell, code);

  clearInterval(clock);
  running = null;
  cell.isStopping = false;
  showOutput(cell, "live");
  cell.codeOfOutput = code;
  settle(cell, ...outcome(reply, seconds()));
  announce(`cell ${cell.index + 1}: ${cell.settled[1]}`);
  const hasRun = reply.status === "ok" || (cell.mayFail && cell.settled[0] === "failed");
  cell.codeInKernel = hasRun ? code : null;
  return hasRun;
}

function needsToRunAgain(cell) {
  cell.codeInKernel = null;
}

async function execute(cell, code) {
  try {
    const future = session.kernel.requestExecute({ code, stop_on_error: true });
    cell.area.future = future; // from here on, outputs appear as they arrive
    cell.begun = new Promise((resolve) => future.registerMessageHook((message) => {
      if (message.header.msg_type === "execute_input") resolve();
      return true; // the message goes on to the output area
    }));
    return (await future.done).content;
  } catch {
    return { status: cell.isStopping ? "stopped" : "lost" }; // the kernel went away under the run
  }
}

function outcome({ status, ename }, seconds) {
  if (status === "ok") return ["ran", `ran here, ${seconds} s`];
  if (status === "lost") return ["lost", "lost: the kernel ended during the run"];
  if (status === "error" && ename !== "KeyboardInterrupt")
    return ["failed", `failed, ${seconds} s: ${ename}`];
  return ["stopped", `stopped, ${seconds} s`];
}

async function stop(cell) {
  emptyQueue("stopped before it ran");
  if (cell !== running || cell.isStopping) return;
  cell.isStopping = true;
  await cell.begun; // an interrupt that comes before the code does is lost
  await session?.kernel.interrupt().catch(() => {});
}

// ---------------------------------------------------------------------------------- outputs

function keepOldOutputUntilNew(cell) {
  cell.output.closest("details")?.setAttribute("open", "");
  if (cell.output.dataset.showing !== "live") return; // the built output stays by itself
  cell.ghost = cell.liveOutput.cloneNode(true);
  cell.ghost.className = "live-output live-ghost";
  cell.output.append(cell.ghost);
  showOutput(cell, "ghost");
}

function showOutput(cell, which) {
  cell.output.dataset.showing = which;
  if (which !== "ghost") cell.ghost?.remove();
}

// ---------------------------------------------------------------------------------- editing

async function edit(cell, point) {
  const parts = await loadThebe().catch((error) => say(cell, error.message));
  if (!parts) return;
  if (!cell.editor) openEditor(cell, parts);
  cell.editor.focus();
  if (point) cell.editor.setCursor(cell.editor.coordsChar(point, "window"));
}

function openEditor(cell, parts) {
  const label = `Code of cell ${cell.index + 1}. Shift+Enter runs it, Escape leaves it.`;
  const made = parts.makeEditor(cell.index, cell.listing, cell.liveOutput, cell.code, label);
  cell.editor = made.editor;
  cell.removeEditor = made.remove;
  cell.editor.setOption("extraKeys", keysOf(cell));
  cell.editor.on("change", () => {
    cell.code = cell.editor.getValue();
    window.liveEdits.write(cell.index, cell.bookCode, cell.code);
    if (!isUnderWay(cell)) showSettled(cell);
  });
}

function keysOf(cell) {
  const run = () => press(cell);
  return {
    ...cell.editor.getOption("extraKeys"), // thebe's completion
    "Shift-Enter": run,
    "Ctrl-Enter": run,
    "Cmd-Enter": run,
    "Shift-Tab": "indentLess",
    Tab: (editor) => editor.execCommand(editor.somethingSelected() ? "indentMore" : "insertSoftTab"),
    Esc: () => cell.run.focus(), // the way out for who has no mouse: Esc, then Tab
  };
}

function reset(cell) {
  cell.removeEditor?.();
  cell.editor = null;
  cell.code = cell.codeOfOutput = cell.bookCode;
  cell.listing.querySelector("pre").innerHTML = cell.bookListing;
  window.liveEdits.write(cell.index, cell.bookCode, cell.code);
  showOutput(cell, "built");
  say(cell, "");
  if (!isUnderWay(cell)) settle(cell, "built", "built");
  cell.run.focus();
}

function editAtClick(cell, event) {
  const isSelecting = !window.getSelection().isCollapsed;
  const isFinger = event.pointerType === "touch"; // a finger that scrolls should not open a keyboard
  if (cell.editor || isSelecting || isFinger || event.target.closest("button, summary")) return;
  edit(cell, { left: event.clientX, top: event.clientY });
}

// ---------------------------------------------------------------------------------- the buttons

for (const cell of cells) {
  showKeptEdit(cell);
  cell.run.addEventListener("click", () => press(cell));
  cell.edit.addEventListener("click", () => edit(cell));
  cell.reset.addEventListener("click", () => reset(cell));
  cell.node.querySelector(".cell_input").addEventListener("click", (event) => editAtClick(cell, event));
}
status.querySelector(".live-run-all").addEventListener("click", () => enqueue(cells));
status.querySelector(".live-restart").addEventListener("click", restart);
window.addEventListener("pagehide", endSession);

})();
