// The part of a timeline that is seen.

import assert from "node:assert/strict";
import test from "node:test";

import { moved, said, zoomed } from "../../book/_static/trace-reader.js";

test("a zoom keeps what is below the pointer, and ends at both ends", () => {
  assert.deepEqual(zoomed([0, 100000], 0.5, 0.5), [25000, 50000]);
  assert.deepEqual(zoomed([25000, 50000], 0.5, 0), [25000, 25000]);
  assert.deepEqual(zoomed([0, 100000], 2), [0, 100000]);
  assert.deepEqual(zoomed([80000, 20000], 4, 1), [20000, 80000]);
  assert.equal(zoomed([0, 100000], 1e-9)[1], 20);
});

test("a timeline does not move past its ends", () => {
  assert.deepEqual(moved([50000, 20000], 0.5), [60000, 20000]);
  assert.deepEqual(moved([50000, 20000], 9), [80000, 20000]);
  assert.deepEqual(moved([50000, 20000], -9), [0, 20000]);
});

test("times are said in units of their size", () => {
  assert.deepEqual([12.4, 1234, 222222].map(said), ["12 µs", "1.234 ms", "222.2 ms"]);
});
