// What happens when a reader presses Run.
//
// The page is complete without this file: code and outputs were made when the book was built.
// This script connects the cells of one page to one kernel of the server that served the page.
// From thebe it takes three things: the code editor, the kernel connection and the rendering of
// outputs. Which cell runs when, and what a cell says about itself, is decided here.
"use strict";
(() => {

const bookRoot = new URL(document.documentElement.dataset.content_root, location.href);
const status = document.getElementById("live-status");
const cells = [...document.querySelectorAll("div.cell[data-live]")].map(describeCell);

let thebeParts = null; // promise of thebe's notebook, server and options; null until first needed
let session = null; // the connection to the kernel; null when there is none
let queue = []; // the cells that the reader asked for and that are not done
let running = null; // the cell whose code the kernel executes now: one of those, or one above it
let isWorking = false; // true while the loop in workThroughQueue goes on
let restarting = null; // promise of the end of a restart that the reader asked for

// ---------------------------------------------------------------------------------- the cells

function describeCell(node, index) {
  const find = (selector) => node.querySelector(selector);
  const listing = find(".cell_input").firstElementChild;
  const code = textOfListing(listing);
  return {
    node, index, listing,
    run: find(".live-run"), runLabel: find(".live-run-label"), edit: find(".live-edit"),
    reset: find(".live-reset"), stateText: find(".live-state"), message: find(".live-message"),
    output: find(".cell_output"),
    bookCode: code, // what the book says
    code, // what stands in the editor
    codeOfOutput: code, // what made the output that is shown
    codeInKernel: null, // what this kernel ran last for this cell; null: nothing that counts
    settled: ["built", "built"], // state and words to come back to after "queued" and "edited"
    area: null, // thebe's output area, made at the first run
    editor: null, // the CodeMirror instance, made at the first edit
    thebeCell: null,
  };
}

function textOfListing(listing) {
  const copy = listing.querySelector("pre").cloneNode(true);
  copy.querySelectorAll(".linenos").forEach((number) => number.remove());
  return copy.textContent.replace(/\n+$/, "");
}

function show(cell, state, words) {
  cell.node.dataset.state = state;
  cell.stateText.textContent = words;
  cell.stateText.title = state === "built" ? "This output was made when the book was built" : "";
  cell.runLabel.textContent = state === "running" || state === "queued" ? "Stop" : "Run";
  cell.reset.hidden = cell.code === cell.bookCode && cell.codeOfOutput === cell.bookCode;
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
  status.dataset.status = name;
  status.title = status.querySelector(".live-status-text").textContent = words;
  status.querySelector(".live-restart").disabled = session === null;
}

// ------------------------------------------------------------------------------ thebe, on demand

function loadThebe() {
  thebeParts ??= fetchThebe().then(setUpThebe).catch((error) => {
    thebeParts = null; // the next press tries again
    throw error;
  });
  return thebeParts;
}

function fetchThebe() {
  const script = document.createElement("script"); // brings the styles that it needs with it
  script.src = new URL("_static/thebe/index.js", bookRoot);
  document.head.append(script);
  return new Promise((resolve, reject) => {
    script.onload = resolve;
    script.onerror = () => reject(new Error("the book's copy of thebe could not be loaded"));
  });
}

function setUpThebe() {
  const { api } = window.thebeCore;
  // Not thebe.bootstrap(): it turns all cells into editors, pairs outputs by their position in the
  // page, rewrites built outputs and must talk to a server before a reader may edit.
  const config = api.makeConfiguration({
    mathjaxUrl: "", // no second MathJax, least of all from another host
    savedSessionOptions: { enabled: false },
    serverSettings: { baseUrl: bookRoot.href, token: "", appendToken: false },
  });
  const rendermime = api.makeRenderMimeRegistry(config.mathjax);
  rendermime.removeMimeType("application/json"); // its renderer fails; the text beside it is shown
  keepColoursOut(rendermime);
  const blocks = cells.map((cell) => ({ id: `live-${cell.index}`, source: cell.code }));
  const notebook = api.setupNotebookFromBlocks(blocks, config, rendermime);
  cells.forEach((cell, index) => prepareOutput(cell, notebook.cells[index]));
  return { notebook, rendermime, config, server: null };
}

// Tracebacks name colours for one kind of terminal; the page has two themes and its own colours.
function keepColoursOut(rendermime) {
  const { sanitizer } = rendermime;
  const withoutStyle = (html) => html.replace(/(<span[^>]*) style="[^"]*"/g, "$1");
  rendermime.sanitizer = { sanitize: (html, rules) => sanitizer.sanitize(withoutStyle(html), rules) };
}

// The live output has a place of its own beside the built one, which is hidden, never rewritten.
function prepareOutput(cell, thebeCell) {
  cell.thebeCell = thebeCell;
  cell.area = thebeCell.area;
  cell.liveOutput = document.createElement("div");
  cell.liveOutput.className = "live-output";
  thebeCell.attachToDOM(cell.liveOutput);
  cell.output.append(cell.liveOutput);
  cell.area.model.changed.connect(() => {
    if (cell.area.model.length > 0) showOutput(cell, "live");
  });
}

// ---------------------------------------------------------------------------------- the kernel

function askServer(method, path, body, options = {}) {
  const xsrf = document.cookie.match(/(?:^|; )_xsrf=([^;]*)/)?.[1];
  return fetch(new URL(`api/${path}`, bookRoot), {
    method,
    headers: { "Content-Type": "application/json", ...(xsrf && { "X-XSRFToken": xsrf }) },
    body: body && JSON.stringify(body),
    ...options,
  });
}

async function startSession() {
  // The name is new each time, so that two tabs (or a lost kernel) never share a session.
  const page = location.pathname.split("/").pop().replace(/\.html$/, "") || "index";
  const path = `${page}-${Math.random().toString(36).slice(2)}.ipynb`;
  const kernel = { name: status.dataset.kernel };
  const answer = await askServer("POST", "sessions", { path, name: path, type: "notebook", kernel })
    .catch(() => null);
  if (answer?.ok) return answer.json();
  throw new Error(answer?.status === 403
    ? "The server does not know this browser. Open the address that `make serve` printed, "
      + "with its token, once."
    : "No kernel answers here. Run `make serve` in the book's folder and open the address that "
      + "it prints. Until then, all outputs stay as they were built.");
}

async function connect() {
  await restarting;
  if (session && await isAlive(session)) return;
  if (session) lose(session, "the kernel ended");
  showStatus("starting");
  const [model, thebe] = await Promise.all([startSession(), loadThebe()]);
  thebe.server ??= window.thebeCore.api.connectToJupyter(thebe.config);
  session = await thebe.server.connectToExistingSession(model, thebe.rendermime);
  thebe.notebook.attachSession(session);
  keepWidgetsHere(session);
  watch(session);
}

function isAlive({ kernel }) {
  if (kernel.isDisposed || kernel.status === "dead") return false;
  return askServer("GET", `kernels/${kernel.id}`).then((answer) => answer.ok, () => false);
}

// Widgets that thebe brings along work; for others it would ask another host, so they stay text.
function keepWidgetsHere({ manager }) {
  manager._loader.requested = true;
  manager._loader.resolveFn({});
}

function watch(watched) {
  const { kernel } = watched;
  const isCurrent = () => session === watched && !restarting;
  kernel.statusChanged.connect((_, state) => {
    if (!isCurrent()) return;
    if (state === "idle") showStatus("ready");
    if (state === "busy") showStatus("busy");
    if (state === "dead") lose(watched, "the kernel ended");
    if (state === "autorestarting") {
      endSession(); // the server starts it again, but a press in that moment would be lost
      lose(watched, "the kernel died");
    }
  });
  kernel.connectionStatusChanged.connect((_, state) => {
    if (!isCurrent()) return;
    if (state === "connecting") showStatus("starting", "connecting");
    if (state === "connected") showStatus(running ? "busy" : "ready");
    if (state === "disconnected") lose(watched, "the connection was lost");
  });
  kernel.disposed.connect(() => isCurrent() && lose(watched, "the kernel ended"));
}

function lose(lost, why) {
  session = null; // first: what follows makes the lost session report its own end
  lost.dispose();
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

// A cell that was asked for waits, and so do those above it, from the first that is new on: what
// is new to the kernel, or was edited, may change what all cells below it do.
function showWhatWaits() {
  const firstNew = cells.findIndex(isNewToKernel);
  for (const asked of queue) {
    const above = firstNew < 0 ? [] : cells.slice(firstNew, asked.index);
    for (const cell of [...above, asked]) if (cell !== running) show(cell, "queued", "queued");
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
  const cell = cells.slice(0, asked.index).find(isNewToKernel) ?? asked;
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
  if (isNewToKernel(cell)) cells.slice(cell.index + 1).forEach(needsToRunAgain);

  keepOldOutputUntilNew(cell);
  const reply = await execute(cell, code);

  clearInterval(clock);
  running = null;
  cell.isStopping = false;
  showOutput(cell, "live");
  cell.codeOfOutput = code;
  cell.codeInKernel = reply.status === "ok" ? code : null;
  settle(cell, ...outcome(reply, seconds()));
  announce(`cell ${cell.index + 1}: ${cell.settled[1]}`);
  return reply.status === "ok";
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
    return { status: restarting ? "restarted" : "lost" }; // the kernel went away under the run
  }
}

function outcome(reply, seconds) {
  if (reply.status === "ok") return ["ran", `ran here, ${seconds} s`];
  if (reply.ename === "KeyboardInterrupt") return ["stopped", `stopped after ${seconds} s`];
  if (reply.status === "error") return ["failed", `failed after ${seconds} s: ${reply.ename}`];
  if (reply.status === "lost") return ["lost", "lost: the kernel ended during the run"];
  return ["stopped", "stopped: the kernel was started again"];
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
  const thebe = await loadThebe().catch((error) => say(cell, error.message));
  if (!thebe) return;
  if (!cell.editor) makeEditor(cell);
  cell.editor.refresh(); // so that it knows where its lines stand
  cell.editor.focus();
  if (point) cell.editor.setCursor(cell.editor.coordsChar(point, "window"));
}

function makeEditor(cell) {
  const place = { source: cell.listing, output: cell.liveOutput };
  const codeMirrorConfig = {
    lineNumbers: false,
    indentUnit: 4,
    viewportMargin: Infinity, // all lines are in the page, so that it can be searched
    screenReaderLabel: `Code of cell ${cell.index + 1}. Shift+Enter runs it, Escape leaves it.`,
  };
  cell.thebeCell.source = cell.code;
  const notebook = { getCellById: () => cell.thebeCell };
  window.thebe.renderAllCells({ codeMirrorConfig }, notebook, [{ id: "live", placeholders: place }]);
  cell.output.append(cell.liveOutput);
  cell.editor = cell.node.querySelector(".CodeMirror").CodeMirror;
  cell.editor.setOption("extraKeys", keysOf(cell));
  cell.editor.on("change", () => {
    cell.code = cell.editor.getValue();
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
  cell.editor?.getWrapperElement().closest(".thebe-cell").replaceWith(cell.listing);
  cell.editor = null;
  cell.code = cell.codeOfOutput = cell.bookCode;
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
  cell.run.addEventListener("click", () => press(cell));
  cell.edit.addEventListener("click", () => edit(cell));
  cell.reset.addEventListener("click", () => reset(cell));
  cell.node.querySelector(".cell_input").addEventListener("click", (event) => editAtClick(cell, event));
}
status.querySelector(".live-run-all").addEventListener("click", () => enqueue(cells));
status.querySelector(".live-restart").addEventListener("click", restart);
window.addEventListener("pagehide", endSession);

})();
