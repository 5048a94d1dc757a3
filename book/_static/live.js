// What happens when a reader presses Run.
//
// The page is complete without this file: code and outputs were made when the book was built.
// This script connects the cells of one page to one kernel of the server that served the page.
// Which cell runs when is decided here. What a cell says about itself is in live-cell.js, the life of
// the kernel in live-kernel.js; the editor, the connection and the rendering of outputs come from
// thebe, through live-thebe.js.
import * as liveCell from "./live-cell.js";
import * as edits from "./live-edits.js";
import * as kernel from "./live-kernel.js";
import { NONE } from "./live-server.js";

const status = document.getElementById("live-status");
const { show, settle, showSettled, say, isUnderWay, showOutput } = liveCell;
const cells = [...document.querySelectorAll("div.cell[data-live]")].map(liveCell.describe);

let thebe = null; // promise of live-thebe.js, ready to use; null until first needed
let queue = []; // the cells that the reader asked for and that are not done
let running = null; // the cell whose code the kernel executes now: one of those, or one above it
let isWorking = false; // true while the loop in workThroughQueue goes on

// --------------------------------------------------------------------------------- the status

function announce(words) {
  status.querySelector(".live-announce").textContent = words;
}

function showStatus(name, words = name) {
  if (name !== "ready" && name !== "busy") announce(`kernel: ${words}`);
  status.dataset.status = name;
  status.title = status.querySelector(".live-status-text").textContent = words;
  status.querySelector(".live-restart").disabled = !kernel.isThere();
}

// ------------------------------------------------------------------------------ thebe, on demand

function loadThebe() {
  thebe ??= import("./live-thebe.js").then(async (parts) => {
    await parts.load(cells.map((cell) => cell.code));
    cells.forEach((cell) => prepareOutput(cell, parts));
    return parts;
  }).catch(() => {
    thebe = null; // the next press tries again
    throw new Error(NONE);
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

// The kernel is empty again. Outputs stay to be read, but no cell counts as having run.
function forgetWhatRan(why) {
  for (const cell of cells.filter((cell) => cell.codeInKernel !== null)) {
    cell.codeInKernel = null;
    cell.settled = ["lost", `lost: ${why}`];
    if (!isUnderWay(cell)) showSettled(cell);
  }
  showWhatWaits();
}

function restart() {
  if (!kernel.mayRestart()) return;
  emptyQueue("stopped by Restart");
  if (running) running.isStopping = true;
  kernel.restart();
}

// ---------------------------------------------------------------------------------- running

function press(cell) {
  if (isUnderWay(cell)) stop(cell);
  else enqueue([cell]);
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
      await kernel.connect();
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

  liveCell.keepOldOutputUntilNew(cell);
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
    const future = kernel.execute(code);
    cell.area.future = future; // from here on, outputs appear as they arrive
    cell.begun = new Promise((resolve) => future.registerMessageHook((message) => {
      if (message.header.msg_type === "execute_input") resolve();
      return true; // the message goes on to the output area
    }));
    return (await future.done).content;
  } catch {
    return { status: cell.isStopping ? "stopped" : "lost" }; // the kernel or its answer is gone
  }
}

function outcome({ status, ename }, seconds) {
  if (status === "ok") return ["ran", `ran here, ${seconds} s`];
  if (status === "lost")
    return ["lost", `lost: the ${kernel.isThere() ? "connection" : "kernel"} ended during the run`];
  if (status === "error" && ename !== "KeyboardInterrupt")
    return ["failed", `failed, ${seconds} s: ${ename}`];
  return ["stopped", `stopped, ${seconds} s`];
}

async function stop(cell) {
  emptyQueue("stopped before it ran");
  if (cell !== running || cell.isStopping) return;
  cell.isStopping = true;
  await cell.begun; // an interrupt that comes before the code does is lost
  await kernel.interrupt();
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
    edits.write(cell.index, cell.bookCode, cell.code);
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
  edits.write(cell.index, cell.bookCode, cell.code);
  showOutput(cell, "built");
  say(cell, "");
  if (!isUnderWay(cell)) settle(cell, "built", cell.builtWords);
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
  liveCell.showKeptEdit(cell);
  cell.run.addEventListener("click", () => press(cell));
  cell.edit.addEventListener("click", () => edit(cell));
  cell.reset.addEventListener("click", () => reset(cell));
  cell.node.querySelector(".cell_input").addEventListener("click", (event) => editAtClick(cell, event));
}
status.querySelector(".live-run-all").addEventListener("click", () => enqueue(cells));
status.querySelector(".live-restart").addEventListener("click", restart);
kernel.serve({
  kernelName: status.dataset.kernel,
  load: loadThebe,
  status: showStatus,
  emptied: forgetWhatRan,
  run: () => running?.area.future,
});

