// A worker of the tab: the kernel, in which cells run, or one of the ranks.
//
// Each begins with the memory of a Python that the build has started, and that has imported what all
// of them need. That takes a tenth of the time.

import { startPython } from "./python.js";
import { CALLER, Mailboxes, STOPPED } from "./tab-mailboxes.js";

import("./pyodide/pyodide.asm.mjs"); // Pyodide asks for it when all else is here

onmessage = ({ data }) => {
  onmessage = null;
  begin(data).catch((error) => postMessage({ failed: error.message.trim().split("\n").at(-1) }));
};

async function begin({ rank, number, shared, memory, parts }) {
  const python = await startPython(parts, { _loadSnapshot: new Uint8Array(memory).slice() }); // which is not shared
  if (rank === undefined) beKernel(python, shared);
  else beRank(python, new Mailboxes(shared, rank), rank, number);
}

/** Lend the bytes of a Python object for as long as `use` takes. */
function lend(object, use) {
  const buffer = object.getBuffer("u8");
  try {
    return use(buffer.data);
  } finally {
    buffer.release();
  }
}

const listOf = (object) => object.toJs();

function beKernel(python, shared) {
  const boxes = shared && new Mailboxes(shared, CALLER);
  if (boxes) python.setInterruptBuffer(boxes.interrupts.subarray(CALLER, CALLER + 1));
  const mail = {
    kind: boxes ? "workers of this tab" : "taking turns in this tab, which has no shared memory",
    ranks: [],
    need(count) {
      mail.ranks = [...Array(count).keys()];
      postMessage({ need: count });
    },
    begin() {
      boxes.clear(mail.ranks);
      boxes.heed(mail.ranks);
    },
    send: (to, object) => lend(object, (data) => boxes.move({ to, data }, null, false)),
    wait(milliseconds) {
      const found = boxes.wait(mail.ranks, milliseconds < 0 ? Infinity : milliseconds);
      if (found === STOPPED) boxes.heed([CALLER]); // once is enough
      return found;
    },
    take: (source) => boxes.take(source),
    stop(ranks) {
      boxes.heed([CALLER]);
      boxes.stop(listOf(ranks));
    },
    replace: (ranks) => postMessage({ replace: listOf(ranks) }),
  };
  const page = { tell: (kind, content) => postMessage({ kind, content: JSON.parse(content) }) };
  const kernel = python.pyimport("playground.tab.kernel").start(page, mail);
  onmessage = ({ data: { code, number } }) => {
    boxes?.heed([CALLER]);
    postMessage({ reply: JSON.parse(kernel.execute(code, number)) });
  };
  postMessage({ ready: true });
}

function beRank(python, boxes, rank, number) {
  const mine = boxes.interrupts.subarray(rank, rank + 1);
  const move = (outgoing, incoming) => {
    const outcome = boxes.move(outgoing, incoming);
    if (outcome === STOPPED) Atomics.store(mine, 0, 0); // Python need not be told twice
    return outcome;
  };
  const mail = {
    send: (to, object) => lend(object, (data) => move({ to, data }, null)),
    receive: (source, object) => lend(object, (into) => move(null, { source, into })),
    exchange: (to, object, source, room) =>
      lend(object, (data) => lend(room, (into) => move({ to, data }, { source, into }))),
    tell: (object) => lend(object, (data) => boxes.move({ to: CALLER, data }, null, false)),
    hear: () => boxes.take(CALLER),
    interruptible: (yes) => python.setInterruptBuffer(yes ? mine : undefined),
  };
  python.pyimport("playground.tab.rank").serve(mail, rank, number);
}
