// Messages between workers that share memory.

import assert from "node:assert/strict";
import test from "node:test";
import { Worker } from "node:worker_threads";
import { CALLER, DONE, LATE, Mailboxes, STOPPED, makeMemory } from "../../book/_static/tab-mailboxes.js";

const pair = (memory = makeMemory()) => [0, 1].map((me) => new Mailboxes(memory, me));
const bytes = (length, first = 0) => Uint8Array.from({ length }, (_, i) => first + i);

test("a message comes as it was sent, an empty one too", () => {
  const [a, b] = pair();
  for (const length of [0, 1, 5, 60_000, 60_000]) { // the last one goes around the end of the ring
    assert.equal(a.move({ to: 1, data: bytes(length, 7) }, null), DONE);
    const into = new Uint8Array(length);
    assert.equal(b.move(null, { source: 0, into }), DONE);
    assert.deepEqual(into, bytes(length, 7));
  }
});

test("a message of another length is told, and not read", () => {
  const [a, b] = pair();
  a.move({ to: 1, data: bytes(12) }, null);
  assert.equal(b.move(null, { source: 0, into: new Uint8Array(16) }), 12);
});

test("waiting ends when its time is up, or when somebody says so", () => {
  const memory = makeMemory();
  const [, b] = pair(memory);
  assert.equal(b.wait([0], 5), LATE);
  new Mailboxes(memory, CALLER).stop([1]);
  assert.equal(b.move(null, { source: 0, into: new Uint8Array(1) }), STOPPED);
  assert.equal(b.interrupts[1], 2);
  b.heed([1]);
  assert.equal(b.wait([0], 5), LATE);
});

test("what was sent before a call is thrown away", () => {
  const [a, b] = pair();
  a.move({ to: 1, data: bytes(3) }, null);
  b.clear([0, 1]);
  assert.equal(b.available(0), 0);
});

test("two workers exchange more than the ring between them holds", async () => {
  const memory = makeMemory();
  const code = `
    import { Mailboxes } from ${JSON.stringify(new URL("../../book/_static/tab-mailboxes.js", import.meta.url).href)};
    import { parentPort, workerData } from "node:worker_threads";
    const { memory, me } = workerData;
    const data = new Uint8Array(300_000).fill(me + 1);
    const into = new Uint8Array(300_000);
    const outcome = new Mailboxes(memory, me).move({ to: 1 - me, data }, { source: 1 - me, into });
    parentPort.postMessage([outcome, into[0], into[299_999]]);`;
  const url = new URL(`data:text/javascript,${encodeURIComponent(code)}`);
  const heard = await Promise.all([0, 1].map((me) => new Promise((resolve, reject) => {
    const worker = new Worker(url, { workerData: { memory, me } });
    worker.on("message", resolve).on("error", reject);
  })));
  assert.deepEqual(heard, [[DONE, 2, 2], [DONE, 1, 1]]);
});
