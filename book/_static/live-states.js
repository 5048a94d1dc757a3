// What a cell is doing, what it says of itself, and which cells run next: decisions, and no page.

/**
 * What a cell is doing → what may happen to it → what it does then.
 *
 * Beside it a cell keeps its result, [state, words]: how its output came about (built, ran, failed,
 * stopped, lost). A cell that leaves the queue without having run says that again.
 */
export const TRANSITIONS = {
  resting: { queue: "queued" },
  queued: { start: "running", drop: "resting" },
  running: { stop: "stopping", end: "resting" },
  stopping: { end: "resting" },
};

/** What a cell does after this has happened to it. */
export function next(doing, event) {
  const then = TRANSITIONS[doing][event];
  if (!then) throw new Error(`"${event}" cannot happen to a cell that is ${doing}`);
  return then;
}

export const isUnderWay = ({ doing }) => doing !== "resting";

/** The state and the words that a cell shows. */
export function shown({ doing, waitsFor, seconds, code, codeOfOutput, codeCut, result, isEmpty, isOutdated }) {
  if (doing === "queued") return ["queued", waitsFor || "queued"];
  if (doing !== "resting") return ["running", `${doing}, ${seconds} s`];
  const ofTheBook = isEmpty ? "" : ", and this output is the book's";
  if (code === codeCut) return ["lost", `its run ended when the page was left${ofTheBook}`];
  const [state, words] = result;
  if (code !== codeOfOutput && state !== "built") return ["edited", "edited since it ran"];
  if (code !== codeOfOutput) return ["edited", `edited${ofTheBook || ", not run since the page was opened"}`];
  if (isOutdated && GREEN_OR_RED.has(state)) return ["outdated", `${words}, before the code above changed`];
  return result;
}

const GREEN_OR_RED = new Set(["ran", "failed"]); // states that speak of the output that is shown

/**
 * Is this output older than the code above it, which has been edited or reset since? `madeWith` is
 * what the kernel had run of each cell above; null: nothing that counts.
 */
export function isOlder({ madeWith }, cells) {
  return madeWith.some((code, index) => code !== null && code !== cells[index].code);
}

/** The result of a run, from the kernel's reply; a run without one is "lost" and says why. */
export function resultOf({ status, ename, why, where = "here" }, seconds) {
  if (status === "ok") return ["ran", `ran ${where}, ${seconds} s`];
  if (status === "lost") return ["lost", `lost: ${why}`];
  if (status === "error" && ename !== "KeyboardInterrupt")
    return ["failed", `failed, ${seconds} s: ${ename}`];
  return ["stopped", `stopped, ${seconds} s`];
}

/** Has a cell with this result made all that cells below need? One that may fail has, if it failed. */
export const hasRun = ([state], mayFail) => state === "ran" || (mayFail && state === "failed");

/** Would this cell change what those below it do? It never ran as it stands, or it has to again. */
export const isNew = ({ code, codeInKernel }) => code !== codeInKernel;

/**
 * The cells that are to run, in order, each once, so that those in `queue` have what they need: the
 * cells above them, from the first that is new on. What stands alone needs no cell, and no cell
 * needs it. `cells` are all of the page, in its order.
 */
export function plan(cells, queue) {
  const planned = new Set();
  let firstToRunAgain = cells.length; // all from here on come after one that is new
  for (const asked of queue) {
    for (const [index, cell] of cells.entries()) {
      if (cell !== asked && (asked.standsAlone || cell.standsAlone)) continue;
      const isDue = cell === asked || isNew(cell) || index >= firstToRunAgain;
      if (isDue) planned.add(cell);
      if (isDue && isNew(cell) && !cell.standsAlone) firstToRunAgain = Math.min(firstToRunAgain, index + 1);
      if (cell === asked) break;
    }
  }
  return [...planned];
}
