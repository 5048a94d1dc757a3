// What the reader changed in a cell: the lines that differ from the book's, to be shown on demand.

import { element } from "./dom.js";

const TAGS = { "+": "ins", "-": "del", " ": "span" };

/** Lines as [sign, text], where the sign is "+" (the reader's), "-" (the book's) or " ". */
export function lines(bookCode, code) {
  const [a, b] = [bookCode.split("\n"), code.split("\n")];
  // common[i][j]: how many lines a[i:] and b[j:] have in common, in order
  const common = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      common[i][j] = a[i] === b[j] ? common[i + 1][j + 1] + 1
        : Math.max(common[i + 1][j], common[i][j + 1]);
  const found = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      found.push([" ", a[i]]);
      i++;
      j++;
    } else if (j === b.length || (i < a.length && common[i + 1][j] >= common[i][j + 1])) {
      found.push(["-", a[i++]]);
    } else {
      found.push(["+", b[j++]]);
    }
  }
  return found;
}

/** Show or hide what belongs to a cell, by what stands in it now. */
export function update({ node, bookCode, code }) {
  const button = node.querySelector(".live-changes");
  const place = node.querySelector(".live-diff");
  button.onclick ??= () => {
    const isOpen = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", !isOpen);
    place.hidden = isOpen;
  };
  button.hidden = code === bookCode;
  if (button.hidden) button.setAttribute("aria-expanded", false);
  place.hidden = button.getAttribute("aria-expanded") !== "true";
  if (place.dataset.code === code) return;
  place.dataset.code = code;
  place.replaceChildren(...lines(bookCode, code).map(([sign, text]) =>
    element(TAGS[sign], {}, `${sign} ${text}\n`)));
}
