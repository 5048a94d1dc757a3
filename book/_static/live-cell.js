// A cell as the page has it, and what it says about itself: built, edited, queued, running, ran.
import * as diff from "./live-diff.js";
import * as edits from "./live-edits.js";

export function describe(node, index) {
  const find = (selector) => node.querySelector(selector);
  const listing = find(".cell_input").firstElementChild;
  const bookCode = textOfListing(listing);
  const code = edits.read(index, bookCode);
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
    builtWords: find(".live-state").textContent, builtTitle: find(".live-state").title,
    settled: ["built", find(".live-state").textContent], // state and words to come back to after "queued" and "edited"
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
export function showKeptEdit(cell) {
  if (cell.code === cell.bookCode) return;
  cell.listing.querySelector("pre").textContent = cell.code;
  showSettled(cell);
}

export function show(cell, state, words) {
  cell.node.dataset.state = state;
  cell.stateText.textContent = words;
  cell.stateText.title = state === "built" ? cell.builtTitle : "";
  cell.runLabel.textContent = isUnderWay(cell) ? "Stop" : cell.runWord;
  cell.run.title = isUnderWay(cell) ? "Interrupt this cell and drop what waits" : cell.runTitle;
  cell.reset.hidden = cell.code === cell.bookCode && cell.codeOfOutput === cell.bookCode;
  diff.update(cell);
}

export function settle(cell, state, words) {
  cell.settled = [state, words];
  showSettled(cell);
}

export function showSettled(cell) {
  if (cell.code !== cell.codeOfOutput) show(cell, "edited", "edited, not run yet");
  else show(cell, ...cell.settled);
}

export function say(cell, message) {
  cell.message.textContent = message;
  cell.message.hidden = !message;
}

export function isUnderWay(cell) {
  return ["queued", "running"].includes(cell.node.dataset.state);
}

export function keepOldOutputUntilNew(cell) {
  cell.output.closest("details")?.setAttribute("open", "");
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

