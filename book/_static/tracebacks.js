// Tracebacks, folded to what the reader can use: frames in a cell or in the book's modules stay
// open, those of Python and its libraries between them are one line that unfolds.

import { element } from "./dom.js";

const FRAME_HEAD = /^(?:Cell In\[\d+\], line \d+|File .+:\d+, in )/;
const OF_THE_BOOK = /^Cell In|\/code\/(?:distributed|playground)\//;

/** Stretches of a traceback's text: { start, end, frames }, where frames counts the foreign ones. */
export function stretchesOf(text) {
  const stretches = [];
  let last = { start: 0, end: 0 };
  let isForeign = false;
  let isOver = false; // an empty line ends a frame: source lines are numbered
  for (const line of text.split(/(?<=\n)/)) {
    const isHead = FRAME_HEAD.test(line);
    if (isHead) isForeign = !OF_THE_BOOK.test(line);
    else if (isOver && line.trim()) isForeign = false;
    isOver = !line.trim();
    if (last.frames > 0 !== isForeign || !stretches.length) {
      last = { start: last.end, end: last.end, frames: 0 };
      stretches.push(last);
    }
    if (isHead && isForeign) last.frames += 1;
    last.end += line.length;
  }
  return stretches;
}

function pointAt(pre, offset) {
  const walker = document.createTreeWalker(pre, NodeFilter.SHOW_TEXT);
  let left = offset;
  while (walker.nextNode()) {
    if (left <= walker.currentNode.length) return [walker.currentNode, left];
    left -= walker.currentNode.length;
  }
  return [pre, pre.childNodes.length];
}

function copyOf(pre, { start, end }) {
  const range = document.createRange();
  range.setStart(...pointAt(pre, start));
  range.setEnd(...pointAt(pre, end));
  return element("pre", {}, range.cloneContents());
}

function fold(pre) {
  const text = pre.textContent;
  if (pre.dataset.traceback === text || !text.includes("Traceback (most recent call last)")) return;
  if (pre.nextSibling?.className === "traceback-folded") pre.nextSibling.remove();
  const stretches = stretchesOf(text);
  pre.dataset.traceback = text; // also says that it is hidden, if something is folded
  pre.toggleAttribute("data-is-folded", stretches.some(({ frames }) => frames > 0));
  if (!pre.hasAttribute("data-is-folded")) return;
  pre.after(element("div", { class: "traceback-folded" }, ...stretches.map((stretch) => {
    const copy = copyOf(pre, stretch);
    if (stretch.frames === 0) return copy;
    const words = `${stretch.frames} more in Python and its libraries`;
    return element("details", {}, element("summary", {}, words), copy);
  })));
}

export function foldTracebacks(root) {
  root.querySelectorAll(".cell_output pre:not(.traceback-folded pre)").forEach(fold);
}
