// Tracebacks, folded to what the reader can use: frames in a cell or in the book's modules stay
// open, those of Python and its libraries between them are one line that unfolds.

(() => {

const FRAME_HEAD = /^(?:Cell In\[\d+\], line \d+|File .+:\d+, in )/;
const OF_THE_BOOK = /^Cell In|\/code\/(?:distributed|playground)\//;

/** Stretches of a traceback's text: { start, end, frames }, where frames counts the foreign ones. */
function stretchesOf(text) {
  const stretches = [{ start: 0, end: 0, frames: 0 }];
  let isForeign = false;
  for (const line of text.split(/(?<=\n)/)) {
    const isHead = FRAME_HEAD.test(line);
    if (isHead) isForeign = !OF_THE_BOOK.test(line);
    let last = stretches.at(-1);
    if (isForeign !== last.frames > 0) {
      last = { start: last.end, end: last.end, frames: 0 };
      stretches.push(last);
    }
    if (isForeign && isHead) last.frames += 1;
    last.end += line.length;
    if (!line.trim()) isForeign = false; // an empty line ends a frame: source lines are numbered
  }
  return joined(stretches.filter(({ start, end }) => start < end), text);
}

/** Foreign frames that only empty lines separate are one stretch. */
function joined(stretches, text) {
  const result = [];
  for (const stretch of stretches) {
    const [before, between] = [result.at(-2), result.at(-1)];
    if (stretch.frames && before?.frames && !text.slice(between.start, between.end).trim()) {
      result.pop();
      before.end = stretch.end;
      before.frames += stretch.frames;
    } else if (stretch.frames && between?.frames) {
      between.end = stretch.end;
      between.frames += stretch.frames;
    } else result.push(stretch);
  }
  return result;
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
  const copy = document.createElement("pre");
  copy.append(range.cloneContents());
  return copy;
}

function foldTraceback(pre) {
  const text = pre.textContent;
  if (pre.dataset.traceback === text || !text.includes("Traceback (most recent call last)")) return;
  if (pre.nextSibling?.className === "traceback-folded") pre.nextSibling.remove();
  const stretches = stretchesOf(text);
  pre.dataset.traceback = text; // also says that it is hidden, if something is folded
  pre.toggleAttribute("data-is-folded", stretches.some(({ frames }) => frames > 0));
  if (!pre.hasAttribute("data-is-folded")) return;
  const view = document.createElement("div");
  view.className = "traceback-folded";
  for (const stretch of stretches) {
    const copy = copyOf(pre, stretch);
    if (stretch.frames === 0) {
      view.append(copy);
      continue;
    }
    const details = document.createElement("details");
    const summary = document.createElement("summary");
    summary.textContent = `${stretch.frames} more in Python and its libraries`;
    details.append(summary, copy);
    view.append(details);
  }
  pre.after(view);
}

function foldAll() {
  document.querySelectorAll(".cell_output pre:not(.traceback-folded pre)").forEach(foldTraceback);
}

for (const output of document.querySelectorAll(".cell_output"))
  new MutationObserver(foldAll).observe(output, { childList: true, characterData: true, subtree: true });
foldAll();

})();
