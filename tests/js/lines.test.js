// What a page keeps of output that has many lines.
import assert from "node:assert/strict";
import test from "node:test";
import { Ends, showEnds } from "../../book/_static/live-lines.js";

const numbers = (from, to) => Array.from({ length: to - from }, (_, index) => `${from + index}\n`).join("");

// All that is shown of these pieces in the end, with two lines at each end.
function shown(...pieces) {
  const ends = new Ends(2);
  return pieces.map((text) => ends.take(text)).join("") + ends.give();
}

test("a few lines are all shown, as they come", () => {
  const ends = new Ends(2);
  assert.equal(ends.take("0\n1"), "0\n1");
  assert.equal(ends.take("\n"), "\n");
  assert.ok(!ends.isHolding);
  assert.equal(shown("0\n1\n2\n3\n"), "0\n1\n2\n3\n");
  assert.equal(shown("0\n1\n2\n3\nunfinished"), "0\n1\n2\n3\nunfinished");
});

test("of many lines both ends are shown, and how many are left out", () => {
  assert.equal(shown("0\n1\n2\n3\n4\n"), "0\n1\n… 1 line is left out …\n3\n4\n");
  assert.equal(shown(numbers(0, 2004)), "0\n1\n… 2,000 lines are left out …\n2002\n2003\n");
});

test("however the text is cut into pieces, the same is shown", () => {
  const text = `${numbers(0, 9)}the end`;
  for (let first = 0; first <= text.length; first++)
    for (let second = first; second <= text.length; second++)
      assert.equal(shown(text.slice(0, first), text.slice(first, second), text.slice(second)),
        "0\n1\n… 5 lines are left out …\n7\n8\nthe end");
});

test("what is kept does not grow with what is printed", () => {
  const ends = new Ends(2);
  for (let line = 0; line < 1000; line++) ends.take(numbers(0, 300));
  assert.equal(ends.last.length, 3);
  for (let step = 0; step < 1000; step++) ends.take(`${step} %\r`);
  assert.equal(ends.last.at(-1), "999 %\r");
});

test("a text of a million lines is taken at once", () => {
  assert.match(shown("x\n".repeat(1e6)), /… 999,996 lines are left out …/);
});

test("something else that is shown comes after the lines before it", () => {
  globalThis.document = { createElement: () => ({ setAttribute() {}, append() {}, remove() {} }) };
  const added = [];
  let hook;
  const area = { model: { add: (output) => added.push(output) } };
  const finish = showEnds({ registerMessageHook: (given) => (hook = given) }, area, { append() {} });
  const say = (kind, content) => hook({ header: { msg_type: kind }, content });
  const stream = { name: "stdout", text: "x\n".repeat(2000) };
  assert.equal(say("stream", stream), true);
  assert.equal(stream.text, "x\n".repeat(500));
  assert.equal(say("stream", { name: "stdout", text: "y\n" }), false, "the area gets no more of it");
  assert.equal(say("display_data", {}), true);
  assert.equal(added.length, 1);
  assert.match(added[0].text, /^… 1,001 lines are left out …\n(x\n)+y\n$/);
  finish();
  assert.equal(added.length, 1);
});
