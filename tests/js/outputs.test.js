// What is made of outputs and edits: columns of ranks, folded tracebacks, lines that differ.
import assert from "node:assert/strict";
import test from "node:test";
import { lines } from "../../book/_static/live-diff.js";
import { hasColumns } from "../../book/_static/live-output.js";
import { isBetterByRank, piecesOf } from "../../book/_static/ranks.js";
import { stretchesOf } from "../../book/_static/tracebacks.js";

const diff = (book, code) => lines(book.join("\n"), code.join("\n")).map((line) => line.join(""));

test("a diff keeps what both have and tells the book's lines from the reader's", () => {
  assert.deepEqual(diff(["a", "b", "c"], ["a", "b", "c"]), [" a", " b", " c"]);
  assert.deepEqual(diff(["a", "b", "c"], ["a", "x", "y", "c"]), [" a", "-b", "+x", "+y", " c"]);
  assert.deepEqual(diff(["a", "b"], ["b", "a"]), ["-a", " b", "+a"]);
  assert.deepEqual(diff(["a"], ["a", "", "a"]), [" a", "+", "+a"]);
});

test("a diff holds both texts whole, and no shorter one does, for all short texts", () => {
  const texts = [[""]];
  for (const text of texts) if (text.length < 4) texts.push(...["a", "b"].map((line) => [...text, line]));
  for (const book of texts) {
    for (const code of texts) {
      const found = lines(book.join("\n"), code.join("\n"));
      const without = (sign) => found.filter((line) => line[0] !== sign).map(([, text]) => text);
      assert.deepEqual(without("+"), book);
      assert.deepEqual(without("-"), code);
      assert.equal(found.filter(([sign]) => sign === " ").length, inCommon(book, code));
    }
  }
});

// The most lines that two texts have in common, in order, by trying all choices of the first's.
function inCommon(a, b) {
  let most = 0;
  for (let choice = 0; choice < 2 ** a.length; choice++) {
    const chosen = a.filter((_, index) => choice & (2 ** index));
    let found = 0;
    for (const line of b) if (line === chosen[found]) found++;
    if (found === chosen.length) most = Math.max(most, found);
  }
  return most;
}

const said = (...ranks) => ranks.map((rank) => `[rank ${rank}] of ${rank}\n`).join("");

test("lines of ranks are grouped where they stand together, and others stay between", () => {
  const [first, between, second, ...rest] = piecesOf(`${said(1, 0, 1)}between\n\n${said(12)}`);
  assert.deepEqual([...first.ranks], [[1, ["of 1", "of 1"]], [0, ["of 0"]]]);
  assert.deepEqual(first.plain, ["[rank 1] of 1", "[rank 0] of 0", "[rank 1] of 1"]);
  assert.deepEqual(between, { plain: ["between", ""] });
  assert.deepEqual([...second.ranks], [[12, ["of 12"]]]);
  assert.deepEqual(rest, []);
});

test("grouping by rank pays from three lines of each on, for two to eight ranks", () => {
  const isBetter = (...ranks) => isBetterByRank(piecesOf(said(...ranks))[0]);
  assert.ok(isBetter(0, 1, 0, 1, 0, 1));
  assert.ok(!isBetter(0, 1, 0, 1, 0), "one rank has but two lines");
  assert.ok(!isBetter(0, 0, 0), "one rank");
  assert.ok(isBetter(...[0, 1, 2, 3, 4, 5, 6, 7].flatMap((rank) => [rank, rank, rank])));
  assert.ok(!isBetter(...[0, 1, 2, 3, 4, 5, 6, 7, 8].flatMap((rank) => [rank, rank, rank])));
  assert.ok(!isBetterByRank(piecesOf("no rank\nat all")[0]));
});

const HEAD = "ValueError     Traceback (most recent call last)\n";
const CELL = "Cell In[3], line 2\n      1 x = 1\n----> 2 f(x)\n\n";
const BOOK = "File /home/me/book/code/distributed/launching.py:12, in launch(fn)\n---> 12 fn()\n\n";
const LIBRARY = "File /usr/lib/python3.12/json/decoder.py:33, in decode(s)\n---> 33 scan(s)\n\n";
const END = "ValueError: no\n";

function folded(text) {
  const stretches = stretchesOf(text);
  assert.equal(stretches.map(({ start, end }) => text.slice(start, end)).join(""), text, "nothing is lost");
  return stretches.map(({ start, end, frames }) => [text.slice(start, end), frames]);
}

test("frames of cells and of the book stay, those of libraries are one stretch that knows how many", () => {
  assert.deepEqual(folded(HEAD + CELL + BOOK + END), [[HEAD + CELL + BOOK + END, 0]]);
  assert.deepEqual(folded(HEAD + CELL + LIBRARY + LIBRARY + END),
    [[HEAD + CELL, 0], [LIBRARY + LIBRARY.trimEnd() + "\n\n", 2], [END, 0]]);
  assert.deepEqual(folded(HEAD + LIBRARY + BOOK + LIBRARY + END),
    [[HEAD, 0], [LIBRARY, 1], [BOOK, 0], [LIBRARY, 1], [END, 0]]);
});

test("the message of an error is never folded, though it may look like a frame's code", () => {
  const text = `${HEAD}${CELL}${LIBRARY}ValueError: two\nlines\n`;
  assert.deepEqual(folded(text).at(-1), ["ValueError: two\nlines\n", 0]);
});

test("an output has columns if words of several lines are far apart", () => {
  assert.ok(hasColumns("        GB fits\nDDP     160 no\nZeRO-3   64 yes"));
  assert.ok(!hasColumns("    an indented line\n    and another one"));
  assert.ok(!hasColumns("AssertionError          Traceback (most recent call last)\nCell In[1], line 1"));
  assert.ok(!hasColumns("rank 0: 12 ms\nrank 1:  8 ms"));
  const sentence = `Rank 1 comes last: ${"it spends time elsewhere ".repeat(5)}`;
  assert.ok(!hasColumns(`rank    step   compute\n   0  206 ms        1%\n   1  205 ms        1%\n${sentence}`));
});
