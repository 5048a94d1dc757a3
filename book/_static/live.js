// What happens when a reader presses Run.
//
// The page is complete without this file: code and outputs were made when the book was built.
// This script connects the cells of one page to one kernel of the server that served the page.
// Which cell runs when is decided in live-states.js, how a cell shows it is in live-cell.js, the
// life of the kernel in live-kernel.js; the editor, the connection and the rendering of outputs
// come from thebe, through live-thebe.js.

import { drawCalculators } from "./calculator.js";
import { element } from "./dom.js";
import { noteVerdicts } from "./exercise.js";
import { cut, keepCut, pressed as pressedBefore } from "./live-again.js";
import {
  describe, keepOldOutputUntilNew, say, show, showKeptEdit, showOutput, showProgress, showWords, keepWhatItLacked,
} from "./live-cell.js";
import * as edits from "./live-edits.js";
import * as kernel from "./live-kernel.js";
import { showEnds } from "./live-lines.js";
import { announceChanges, keepColumns, lookAtOutputs, namePictures, widenPictures } from "./live-output.js";
import { hasRun, isNew, isOlder, isUnderWay, next, plan, resultOf } from "./live-states.js";
import { drawAgain, groupByRank } from "./ranks.js";
import { makeShows } from "./frames.js";
import { makeSteppers } from "./steps.js";
import { foldTracebacks } from "./tracebacks.js";

const status = document.getElementById("live-status");
const cells = [...document.querySelectorAll("div.cell[data-live]")].map(describe);

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
  }).catch((error) => {
    thebe = null; // the next press tries again
    throw new Error(`The parts that edit and run cells do not load: ${error.message}`);
  });
  return thebe;
}

// The live output has a place of its own beside the built one, which is hidden, never rewritten.
function prepareOutput(cell, parts) {
  cell.liveOutput = element("div", { class: "live-output" });
  cell.area = parts.makeOutputArea(cell.index, cell.liveOutput, () => showOutput(cell, "live"));
  cell.output.append(cell.liveOutput);
  announceChanges(cell.liveOutput);
}

// ---------------------------------------------------------------------------------- the kernel

// The cell that waits for Python says how much of it has come to this tab; null: nothing is to come.
function showHowMuchHasCome(share) {
  for (const cell of cells) if (cell.progress) showProgress(cell, null);
  if (share !== null && queue.length > 0) showProgress(queue[0], share);
}

// The kernel is empty again. Outputs stay to be read, but no cell counts as having run.
function forgetWhatRan(why) {
  for (const cell of cells.filter((cell) => cell.codeInKernel !== null)) {
    cell.codeInKernel = null;
    cell.result = ["lost", `lost: ${why}`];
    show(cell);
  }
  showQueue();
}

function restart() {
  if (!kernel.mayRestart()) return;
  emptyQueue("stopped by Restart");
  if (running?.doing === "running") change(running, "stop");
  kernel.restart();
}

// A cell has been edited, reset or run: the outputs below it may be older than its code, or no longer.
function markOlder() {
  for (const cell of cells) {
    const was = cell.isOutdated;
    cell.isOutdated = isOlder(cell, cells);
    if (cell.isOutdated !== was) show(cell);
  }
}

// ---------------------------------------------------------------------------------- running

function change(cell, event) {
  cell.doing = next(cell.doing, event);
  show(cell);
}

function press(cell) {
  if (isUnderWay(cell)) stop(cell);
  else enqueue([cell]);
}

function enqueue(pressed) {
  queue.push(...pressed.filter((cell) => !queue.includes(cell)));
  pressed.forEach((cell) => say(cell, ""));
  showQueue();
  workThroughQueue();
}

/** The cells that are to run; where Python is the tab's own, those above that need more stay out. */
function planned() {
  const can = kernel.runnable(cells);
  return plan(cells.filter((cell) => queue.includes(cell) || can.includes(cell)), queue);
}

function showQueue() {
  const waiting = planned();
  for (const cell of cells) {
    if (waiting.includes(cell) && cell.doing === "resting") change(cell, "queue");
    if (!waiting.includes(cell) && cell.doing === "queued") change(cell, "drop");
  }
}

// Cells that the reader asked for say why they will not run; those above them are as before.
function emptyQueue(why) {
  for (const cell of queue) if (why && cell.doing === "queued") cell.result = ["stopped", why];
  queue = [];
  showQueue();
}

async function workThroughQueue() {
  if (isWorking) return;
  isWorking = true;
  while (queue.length > 0) {
    try {
      await kernel.connect(queue);
      showQueue(); // what was typed meanwhile counts
      const [cell] = planned();
      if (cell) await run(cell);
    } catch (error) {
      giveUp(queue[0], error.message);
    }
  }
  isWorking = false;
}

// There is no kernel for this cell. What else was asked for and can run in the tab still does.
function giveUp(asked, why) {
  const others = kernel.runnableHere(cells).filter((cell) => cell !== asked && queue.includes(cell));
  emptyQueue(null);
  queue = others;
  showQueue();
  if (!kernel.isThere()) showStatus("none", "no kernel");
  if (asked) say(asked, why);
}

async function run(cell) {
  running = cell;
  const { code } = cell;
  cell.codeRunning = code; // its reader may edit it meanwhile
  const started = performance.now();
  const measure = () => (cell.seconds = ((performance.now() - started) / 1000).toFixed(1));
  measure();
  cell.codeCut = null;
  change(cell, "start");
  const clock = setInterval(() => {
    measure();
    showWords(cell);
  }, 100);
  announce(`cell ${cell.index + 1} is running`);
  if (isNew(cell) && !cell.standsAlone)
    for (const below of cells.slice(cell.index + 1)) below.codeInKernel = null; // to run again

  keepOldOutputUntilNew(cell);
  const above = cell.standsAlone ? [] : cells.slice(0, cell.index);
  const madeWith = above.map(({ standsAlone, codeInKernel }) => (standsAlone ? null : codeInKernel));
  const ranInTab = kernel.isInTab();
  const reply = await execute(cell, code).catch(({ message }) => ({ status: "lost", why: message }));

  clearInterval(clock);
  measure();
  running = null;
  queue = queue.filter((asked) => asked !== cell);
  showOutput(cell, "live");
  cell.codeOfOutput = code;
  cell.madeWith = madeWith;
  cell.result = resultOf(reply, cell.seconds);
  change(cell, "end");
  announce(`cell ${cell.index + 1}: ${cell.result[1]}`);
  const isDone = hasRun(cell.result, cell.mayFail);
  cell.codeInKernel = isDone ? code : null;
  markOlder();
  if (!isDone) emptyQueue("stopped: the cell above failed");
  // An edit needs what the tab has not got: another kernel may have it, or the reader is told.
  if (ranInTab && keepWhatItLacked(cell, code, reply)) enqueue([cell]);
}

async function execute(cell, code) {
  const future = kernel.execute(code, cell.index + 1);
  cell.area.future = future; // from here on, outputs appear as they arrive
  const finish = showEnds(future, cell.area, cell.liveOutput);
  cell.begun = new Promise((resolve) => future.registerMessageHook((message) => {
    if (message.header.msg_type === "execute_input") resolve();
    return true; // the message goes on to the output area
  }));
  try {
    return (await future.done).content;
  } catch { // the kernel or its answer is gone
    if (cell.doing === "stopping" || future.wasDropped) return { status: "stopped" };
    const what = kernel.isThere() ? "connection" : "kernel";
    return { status: "lost", why: `the ${what} ended during the run` };
  } finally {
    finish();
  }
}

async function stop(cell) {
  emptyQueue("stopped before it ran");
  if (cell.doing !== "running") return;
  change(cell, "stop");
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
    show(cell);
    markOlder();
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
  cell.result = cell.built;
  cell.madeWith = [];
  cell.codeCut = null;
  showOutput(cell, "built");
  say(cell, "");
  show(cell);
  markOlder();
  cell.run.focus();
}

function editAtClick(cell, event) {
  const isSelecting = !window.getSelection().isCollapsed;
  const isFinger = event.pointerType === "touch"; // a finger that scrolls should not open a keyboard
  if (cell.editor || isSelecting || isFinger || event.target.closest("button, summary")) return;
  edit(cell, { left: event.clientX, top: event.clientY });
}

// ------------------------------------------------------------------------- the page, connected

for (const cell of cells) {
  if (cut?.index === cell.index) cell.codeCut = cut.code;
  showKeptEdit(cell);
  cell.run.addEventListener("click", () => press(cell));
  cell.edit.addEventListener("click", () => edit(cell));
  cell.reset.addEventListener("click", () => reset(cell));
  cell.node.querySelector(".cell_input").addEventListener("click", (event) => editAtClick(cell, event));
}
status.querySelector(".live-run-all").addEventListener("click", () =>
  enqueue(kernel.runnable(cells)));
kernel.canRun().then((can) => { status.hidden = !can; });
status.querySelector(".live-restart").addEventListener("click", restart);
kernel.serve({
  kernelName: status.dataset.kernel,
  load: loadThebe,
  status: showStatus,
  emptied: forgetWhatRan,
  run: () => running?.area.future,
  progress: showHowMuchHasCome,
});
lookAtOutputs(foldTracebacks, groupByRank, keepColumns, makeSteppers, makeShows, drawCalculators, namePictures,
  noteVerdicts, widenPictures);
addEventListener("resize", drawAgain);
addEventListener("pagehide", () => running && keepCut({ index: running.index, code: running.codeRunning }));

// The page keeps presses from before these scripts were here.
const { earlyPresses } = window;
window.earlyPresses = null;
earlyPresses?.forEach((button) => button.click());
if (pressedBefore) enqueue(pressedBefore.map((index) => cells[index]));
