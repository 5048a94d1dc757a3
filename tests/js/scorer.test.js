// The order of search results.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import vm from "node:vm";

const place = {};
vm.runInNewContext(readFileSync(new URL("../../book/_ext/scorer.js", import.meta.url), "utf8"), place);
const score = (page, before) => place.Scorer.score([page, "title", "", null, before, "file"]);

test("a chapter that only mentions a word comes before a function that has its name", () => {
  assert.ok(score("book/ddp/overlap", 2) > score("book/maintainers/runtime", 1000 - 1));
  assert.ok(score("book/maintainers/runtime", 2) > score("book/reference/api", 100));
  assert.equal(score("book/ddp/overlap", 15), 15);
});
