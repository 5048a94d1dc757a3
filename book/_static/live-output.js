// What the cells put out, and the event that says when it has changed: "live:output", on the
// document for what the build put out, and on the output of a cell for what a run does.

const PAUSE = 100; // ms, the least between two events of an output that grows

/** Call each `look(root)` with the document now, and with each output that a run changes. */
export function lookAtOutputs(...looks) {
  for (const look of looks) document.addEventListener("live:output", ({ target }) => look(target));
  document.dispatchEvent(new Event("live:output"));
}

/** Say that an output has changed, whenever it has: at once, and then once in a pause. */
export function announceChanges(output) {
  let isPause = false;
  let hasChanged = false; // in the pause
  const say = () => {
    hasChanged = isPause;
    if (isPause) return;
    isPause = true;
    output.dispatchEvent(new Event("live:output", { bubbles: true }));
    observer.takeRecords(); // what the listeners made of it is no news
    setTimeout(() => {
      isPause = false;
      if (hasChanged) say();
    }, PAUSE);
  };
  const observer = new MutationObserver(say);
  observer.observe(output, { childList: true, characterData: true, subtree: true });
}

const LONG = 100; // characters, more than a line with columns has: prose has to wrap

/** Whether a text has columns: several lines in which words are three blanks apart or more. */
export function hasColumns(text) {
  const lines = text.split("\n");
  return lines.filter((line) => /\S {3,}\S/.test(line)).length > 1 && lines.every((line) => line.length <= LONG);
}

/** Lines with columns stay whole, and scroll where the page is narrow. */
export function keepColumns(root) {
  for (const text of root.querySelectorAll(".cell_output pre"))
    text.classList.toggle("columns", hasColumns(text.textContent));
}

const WIDE = 480; // pixels, as in _ext/live.py

/** Wide drawings fill the page, as those do that came with the book. */
export function widenPictures(root) {
  for (const picture of root.querySelectorAll(".live-output img[src^='data:image/svg']")) {
    const look = () => picture.classList.toggle("wide", picture.naturalWidth >= WIDE);
    if (picture.complete) look();
    else picture.addEventListener("load", look, { once: true });
  }
}

/** A kernel says nothing about its pictures; of the built ones beside them the author has. */
export function namePictures(root) {
  const cell = root.closest?.("[data-live]");
  const built = cell?.querySelectorAll(".cell_output > :not(.live-output) img[alt]");
  const made = cell ? root.querySelectorAll("img") : [];
  for (const [index, picture] of made.entries())
    picture.alt ||= built[index]?.alt || `Picture ${index + 1} that cell ${cell.dataset.live} made`;
}
