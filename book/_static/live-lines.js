// Output of many lines: a page shows the first and the last ones, in memory that does not grow.

import { element } from "./dom.js";

const ENDS = 500; // lines that are shown at each end; tens of thousands would freeze a page
const PAUSE = 100; // ms, the least between two drawings of the last lines
const OTHERS = new Set(["display_data", "execute_result", "error"]); // what an output area appends

/** One stream of a run: its first lines go on at once, the last ones are kept. */
export class Ends {
  constructor(most = ENDS) {
    this.most = most;
    this.room = most; // first lines that may still come
    this.last = [""]; // the lines after those; the last of them has not ended
    this.leftOut = 0;
  }

  /** What is to be shown of this text at once. */
  take(text) {
    let end = 0;
    for (; this.room > 0; this.room -= 1) {
      const found = text.indexOf("\n", end);
      if (found === -1) return text;
      end = found + 1;
    }
    this.keep(text.slice(end));
    return text.slice(0, end);
  }

  keep(text) {
    const lines = (this.last.pop() + text).split("\n");
    this.last = this.last.concat(lines.map(lastState));
    const surplus = Math.max(0, this.last.length - 1 - this.most);
    this.leftOut += surplus;
    this.last = this.last.slice(surplus);
  }

  get isHolding() {
    return this.leftOut > 0 || this.last.length > 1 || this.last[0] !== "";
  }

  /** The line that says how many are left out, and the last lines. */
  get rest() {
    const { leftOut } = this;
    const line = leftOut ? `… ${leftOut.toLocaleString("en-US")} line${leftOut > 1 ? "s are" : " is"} left out …\n` : "";
    return line + this.last.join("\n");
  }

  /** The same, which is then no longer kept. */
  give() {
    const { rest } = this;
    this.last = [""];
    this.leftOut = 0;
    return rest;
  }
}

/** A line without what carriage returns have overwritten, as in a bar of progress. */
const lastState = (line) => line.slice(line.lastIndexOf("\r", line.length - 2) + 1);

/**
 * Have the output area of a run show the two ends of what is printed. Until the run ends, or shows
 * something else, the last lines are in a place of their own below the area. Returns what to call
 * when the run is over, whether or not its kernel has said so.
 */
export function showEnds(future, area, place) {
  let streams = new Map(); // name → its ends
  let timer = null;
  const view = element("div", { class: "live-tail jp-OutputArea-output",
    "data-mime-type": "application/vnd.jupyter.stdout" }, element("pre"));
  const draw = () => {
    timer = null;
    view.firstChild.textContent = [...streams.values()].map(({ rest }) => rest).join("");
    if (!view.isConnected) place.append(view);
  };
  const remove = () => {
    clearTimeout(timer);
    timer = null;
    view.remove();
  };
  const finish = () => {
    remove();
    for (const [name, ends] of streams)
      if (ends.isHolding) area.model.add({ output_type: "stream", name, text: ends.give() });
  };
  future.registerMessageHook(({ header, content }) => {
    const kind = header.msg_type;
    if (kind === "clear_output") {
      remove();
      streams = new Map();
    }
    const isOver = kind === "status" && content.execution_state === "idle";
    if (OTHERS.has(kind) || isOver) finish();
    if (kind !== "stream") return true;
    if (!streams.has(content.name)) streams.set(content.name, new Ends());
    const ends = streams.get(content.name);
    content.text = ends.take(content.text);
    if (ends.isHolding) timer ??= setTimeout(draw, PAUSE);
    return content.text !== "";
  });
  return finish;
}
