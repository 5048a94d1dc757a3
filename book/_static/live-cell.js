// A cell of the page: where its parts are, what is known of it, how it shows what it is doing.

import { element } from "./dom.js";
import * as diff from "./live-diff.js";
import * as edits from "./live-edits.js";
import { isUnderWay, shown } from "./live-states.js";

export function describe(node, index) {
  const find = (selector) => node.querySelector(selector);
  const listing = find(".cell_input").firstElementChild;
  const bookCode = textOfListing(listing);
  const built = ["built", find(".live-state").textContent];
  return {
    node, index, listing, built,
    run: find(".live-run"), runTitle: find(".live-run").title,
    runLabel: find(".live-run-label"), runWord: find(".live-run-label").textContent,
    edit: find(".live-edit"),
    reset: find(".live-reset"),
    stateText: find(".live-state"), builtTitle: find(".live-state").title,
    message: find(".live-message"),
    output: find(".cell_output"),
    bookCode, // what the book says
    bookListing: listing.querySelector("pre").innerHTML, // the same, in colours
    code: edits.read(index, bookCode), // what stands in the editor, or did when the reader was here before
    codeOfOutput: bookCode, // what made the output that is shown
    codeCut: null, // what ran when the page was left, and did not come to its end
    madeWith: [], // what the kernel had run of each cell above when the output was made
    isOutdated: false, // the output is older than the code above
    isEmpty: find(".cell_output").classList.contains("live-empty"), // the book has no output for it
    codeInKernel: null, // what this kernel ran last for this cell; null: nothing that counts
    doing: "resting", // see live-states.js
    waitsFor: "", // what a queued cell says, if there is more to say
    result: built, // of its last run: state and words
    seconds: null, // for how long it has been running
    area: null, // thebe's output area, made at the first run
    editor: null, // the CodeMirror instance, made at the first edit
    mayFail: node.classList.contains("tag_raises-exception"), // its error is what it shows
    needs: node.dataset.needs.split(" ").filter(Boolean), // libraries that a tab has not got
    lacked: null, // the code that found one missing there, and which
    standsAlone: node.classList.contains("tag_exercise"), // needs no cell, and no cell needs it
  };
}

/** The libraries that a cell needs as it is written now, and a tab has not got. */
export const needsOf = ({ code, lacked, needs }) => (lacked?.code === code ? [lacked.library] : needs);

/** Keep what Python in a tab did not find; null where that is not why it failed. */
export function keepWhatItLacked(cell, code, { ename, evalue }) {
  const missing = ename === "ModuleNotFoundError" && evalue.match(/'(\w+)/);
  cell.lacked = missing ? { code, library: missing[1] } : null;
  return cell.lacked;
}

function textOfListing(listing) {
  const copy = listing.querySelector("pre").cloneNode(true);
  copy.querySelectorAll(".linenos").forEach((number) => number.remove());
  return copy.textContent.replace(/\n+$/, "");
}

// What the reader wrote on an earlier visit. The editor comes only when it is asked for.
export function showKeptEdit(cell) {
  if (cell.code !== cell.bookCode) cell.listing.querySelector("pre").textContent = cell.code;
  if (cell.code !== cell.bookCode || cell.codeCut !== null) show(cell);
}

export function show(cell) {
  const [state] = shown(cell);
  cell.node.dataset.state = state;
  if (state === "failed") cell.output.closest("details")?.setAttribute("open", "");
  cell.stateText.title = state === "built" ? cell.builtTitle : "";
  cell.runLabel.textContent = isUnderWay(cell) ? "Stop" : cell.runWord;
  cell.run.title = isUnderWay(cell) ? "Interrupt this cell and drop what waits" : cell.runTitle;
  cell.node.toggleAttribute("data-changed", cell.codeOfOutput !== cell.bookCode); // of what made the output
  cell.reset.hidden = cell.code === cell.bookCode && cell.codeOfOutput === cell.bookCode;
  showWords(cell);
  diff.update(cell);
}

export function showWords(cell) {
  [, cell.stateText.textContent] = shown(cell);
}

/** How much of Python has come, while the cell waits for it; null: it waits no longer. */
export function showProgress(cell, share) {
  cell.waitsFor = share === null ? "" : `fetching Python, ${Math.round(100 * share)}%`;
  if (share !== null && !cell.progress) {
    cell.progress = element("progress", { class: "live-progress", "aria-label": "Python for this tab" });
    cell.message.before(cell.progress);
  }
  if (cell.progress) cell.progress.value = share ?? 0;
  if (share === null) {
    cell.progress?.remove();
    cell.progress = null;
  }
  showWords(cell);
}

export function say(cell, message) {
  cell.message.textContent = message;
  cell.message.hidden = !message;
}

export function keepOldOutputUntilNew(cell) {
  if (cell.output.dataset.showing !== "live") return; // the built output stays by itself
  cell.ghost = cell.liveOutput.cloneNode(true);
  cell.ghost.className = "live-output live-ghost";
  cell.output.append(cell.ghost);
  showOutput(cell, "ghost");
}

export function showOutput(cell, which) {
  cell.output.dataset.showing = which;
  if (which !== "ghost") cell.ghost?.remove();
}
