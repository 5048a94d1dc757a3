// What stands in the address of a plan.

import assert from "node:assert/strict";
import test from "node:test";
import { known, queryOf } from "../../book/_static/planner.js";

const DEFAULTS = { model: "llama-3-70b", nodes: "8", network: "" };

test("an address has what differs from the defaults", () => {
  assert.equal(queryOf([["model", "llama-3-70b"], ["nodes", "8"], ["network", ""]], DEFAULTS), "");
  assert.equal(queryOf([["nodes", "2"], ["network", "400 GB"]], DEFAULTS), "nodes=2&network=400+GB");
});

test("of an address the planner takes what it knows, as it stands there", () => {
  assert.deepEqual(known("?nodes=2&utm=x&model=%3Cb%3E", DEFAULTS), [["nodes", "2"], ["model", "<b>"]]);
  assert.deepEqual(known("", DEFAULTS), []);
  assert.deepEqual(known("?constructor=1", Object.assign(Object.create(null), DEFAULTS)), []);
});
