// What a figure of recorded steps shows: counted, hatched, framed.

import assert from "node:assert/strict";
import { test } from "node:test";

import { drawing, leftHost, sentAfter, widthIn } from "../../book/_static/steps.js";

// Two ranks, arrays of two parts; rank 0 sends part 0, which is added, and gets it back complete.
const RUN = {
  arrays: [[[1, 1], [2, 2]], [[1, 1], [3, 2]], [[3, 1], [3, 2]]],
  messages: [[1, 0, 1, 0, 1], [2, 1, 0, 0, 1]],
};
const COLOURS = ["red", "blue"];
const times = (text, what) => text.split(what).length - 1;

test("what a rank has sent is counted in arrays", () => {
  assert.deepEqual(sentAfter(RUN), [[0, 0], [0.5, 0], [0.5, 0.5]]);
});

test("a part with some ranks' numbers is hatched, one with all is framed", () => {
  const before = drawing(RUN, 0, COLOURS, "a").out;
  assert.equal(times(before, "url(#a-hatched)"), 4);
  assert.equal(times(before, "steps-complete"), 0);
  const after = drawing(RUN, 2, COLOURS, "a").out;
  assert.equal(times(after, "steps-complete"), 2);
  assert.equal(times(after, "url(#a-hatched)"), 2);
});

test("what is only moved is filled by whose it is, and has no bound", () => {
  const moved = { arrays: [[[1, 1], [0, 0]], [[1, 1], [0, 1]]], messages: [[1, 0, 1, 1, 2]] };
  const after = drawing(moved, 1, COLOURS, "a").out;
  assert.equal(times(after, "url(#a-hatched)"), 0);
  assert.equal(times(after, 'fill="red"'), 1 + 3); // rank 0's dot, and three parts
  assert.equal(times(after, "steps-bound"), 0);
  assert.equal(times(drawing(RUN, 0, COLOURS, "a").out, "steps-bound"), 0, "not all complete");
});

test("a message on its way is one more cell, with its sender's numbers", () => {
  const still = drawing(RUN, 0, COLOURS, "a").out;
  const moving = drawing(RUN, 0, COLOURS, "a", 0.5).out;
  assert.equal(times(moving, "steps-part") - times(still, "steps-part"), 1);
  assert.equal(times(moving, 'fill="red"') - times(still, 'fill="red"'), 1);
});

test("hosts stand apart, and a line says what has left each of them", () => {
  const messages = [[1, 0, 1, 0, 2], [2, 0, 2, 0, 1], [2, 2, 0, 1, 2]];
  const row = [1, 2, 4, 8].map((bits) => [bits, bits]);
  const run = { arrays: [row, row, row], messages };
  assert.deepEqual([0, 1, 2].map((step) => leftHost({ ...run, perHost: 2 }, step)), [0, 0, 0.5]);
  const [one, two] = [run, { ...run, perHost: 2 }].map((of) => drawing(of, 2, COLOURS, "a"));
  assert.ok(two.height > one.height);
  assert.equal(times(two.out, "Each host has sent 0.50 arrays to others."), 1);
  assert.equal(times(one.out, "Each host"), 0);
});

test("it is as wide as its box, and its words keep their size", () => {
  assert.deepEqual([340, 600, 838].map(widthIn), [350, 640, 838]);
  const { out } = drawing(RUN, 0, COLOURS, "a", 0, 838);
  const right = Math.max(...[...out.matchAll(/x="([\d.]+)" y="[\d.]+" width="([\d.]+)"/g)]
    .map(([, x, width]) => Number(x) + Number(width)));
  assert.ok(right > 700 && right <= 838, right);
  assert.equal(times(out, "arrays sent (minimum: 1.00)"), 0, "not all complete");
});
