// What a cell is doing, and which cells run next.
import assert from "node:assert/strict";
import test from "node:test";
import { TRANSITIONS, hasRun, isOlder, isUnderWay, next, plan, resultOf, shown } from "../../book/_static/live-states.js";

// Cells as letters: "a" ran as it stands, "A" is new to the kernel, "(a)" stands alone.
function page(letters) {
  return letters.split(" ").map((letter) => {
    const name = letter.replace(/[()]/g, "");
    const codeInKernel = name === name.toLowerCase() ? name : null;
    return { code: name, codeInKernel, standsAlone: letter !== name };
  });
}

function planned(letters, ...asked) {
  const cells = page(letters);
  const queue = asked.map((name) => cells.find(({ code }) => code === name));
  assert.ok(!queue.includes(undefined));
  return plan(cells, queue).map(({ code }) => code).join(" ");
}

test("a run is queued, started, perhaps stopped, and ends", () => {
  const through = (...events) => events.reduce(next, "resting");
  assert.equal(through("queue"), "queued");
  assert.equal(through("queue", "drop"), "resting");
  assert.equal(through("queue", "start"), "running");
  assert.equal(through("queue", "start", "end"), "resting");
  assert.equal(through("queue", "start", "stop"), "stopping");
  assert.equal(through("queue", "start", "stop", "end"), "resting");
});

test("whatever else happens to a cell is a mistake of ours, which names both", () => {
  const events = new Set(Object.values(TRANSITIONS).flatMap(Object.keys));
  for (const doing of Object.keys(TRANSITIONS))
    for (const event of events)
      if (!(event in TRANSITIONS[doing])) assert.throws(() => next(doing, event), RegExp(`${event}.*${doing}`));
  assert.throws(() => next("resting", "start"), /"start" cannot happen to a cell that is resting/);
});

test("a cell shows what it is doing, else that it was edited, else what came of its last run", () => {
  const cell = { doing: "resting", code: "x", codeOfOutput: "x", seconds: "0.4", result: ["ran", "ran here"] };
  assert.deepEqual(shown(cell), ["ran", "ran here"]);
  assert.deepEqual(shown({ ...cell, code: "y" }), ["edited", "edited since it ran"]);
  const built = { ...cell, result: ["built", "recorded"] };
  assert.deepEqual(shown(built), ["built", "recorded"]);
  assert.deepEqual(shown({ ...built, code: "y" }), ["edited", "edited, and this output is the book's"]);
  assert.deepEqual(shown({ ...built, code: "y", isEmpty: true }),
    ["edited", "edited, not run since the page was opened"]);
  assert.deepEqual(shown({ ...cell, isOutdated: true }), ["outdated", "ran here, before the code above changed"]);
  assert.deepEqual(shown({ ...built, isOutdated: true }), ["built", "recorded"]);
  assert.deepEqual(shown({ ...cell, isOutdated: true, code: "y" }), ["edited", "edited since it ran"]);
  const cut = "its run ended when the page was left";
  assert.deepEqual(shown({ ...built, codeCut: "x" }), ["lost", `${cut}, and this output is the book's`]);
  assert.deepEqual(shown({ ...built, codeCut: "y", code: "y", isEmpty: true }), ["lost", cut]);
  assert.deepEqual(shown({ ...built, codeCut: "z", code: "y" })[0], "edited");
  assert.deepEqual(shown({ ...cell, code: "y", doing: "queued" }), ["queued", "queued"]);
  assert.deepEqual(shown({ ...cell, code: "y", doing: "running" }), ["running", "running, 0.4 s"]);
  assert.deepEqual(shown({ ...cell, doing: "stopping" }), ["running", "stopping, 0.4 s"]);
  assert.deepEqual(["resting", "queued", "running", "stopping"].map((doing) => isUnderWay({ doing })),
    [false, true, true, true]);
});

test("an output is older than the code above it if that has changed since", () => {
  const cells = page("a b c");
  const isOlderThan = (...madeWith) => isOlder({ madeWith }, cells);
  assert.ok(!isOlderThan());
  assert.ok(!isOlderThan("a", "b"));
  assert.ok(!isOlderThan(null, "b"), "nothing of the first cell was in the kernel");
  assert.ok(isOlderThan("a", "x"));
});

test("the kernel's reply becomes a result", () => {
  assert.deepEqual(resultOf({ status: "ok" }, "0.4"), ["ran", "ran here, 0.4 s"]);
  assert.deepEqual(resultOf({ status: "error", ename: "ValueError" }, "0.4"), ["failed", "failed, 0.4 s: ValueError"]);
  for (const reply of [{ status: "error", ename: "KeyboardInterrupt" }, { status: "aborted" }, { status: "stopped" }])
    assert.deepEqual(resultOf(reply, "0.4"), ["stopped", "stopped, 0.4 s"]);
  assert.deepEqual(resultOf({ status: "lost", why: "the kernel ended" }, "0.4"), ["lost", "lost: the kernel ended"]);
});

test("a cell has run if it ended, or failed as it may, and not if it was stopped or lost", () => {
  const states = ["ran", "failed", "stopped", "lost"];
  assert.deepEqual(states.map((state) => hasRun([state, ""], false)), [true, false, false, false]);
  assert.deepEqual(states.map((state) => hasRun([state, ""], true)), [true, true, false, false]);
});

test("a cell runs after those above it that are new, and after all that follow them", () => {
  assert.equal(planned("A B C", "C"), "A B C");
  assert.equal(planned("a b c", "c"), "c");
  assert.equal(planned("a B c d e", "d"), "B c d");
  assert.equal(planned("a b c D", "c"), "c", "what stands below is not needed");
  assert.equal(planned("a b c", ...[]), "");
});

test("cells keep the order in which they were asked for, and run once", () => {
  assert.equal(planned("a b c", "c", "a"), "c a");
  assert.equal(planned("A B C", "C", "A", "B"), "A B C");
  assert.equal(planned("a b C d", "d", "b"), "C d b");
  assert.equal(planned("a B c d", "B", "d"), "B c d");
});

test("an exercise needs no cell, and no cell needs it", () => {
  assert.equal(planned("A (B) C", "B"), "B");
  assert.equal(planned("A (B) C", "C"), "A C");
  assert.equal(planned("a (B) c", "B", "c"), "B c", "nor does it make those below it run again");
});

test("to plan changes no cell", () => {
  const cells = page("A b C");
  const before = structuredClone(cells);
  plan(cells, [cells[2]]);
  assert.deepEqual(cells, before);
});
