// The kernel in the reader's own tab: where no server answers, cells run here.
//
// It is to live-kernel.js what a session of Jupyter's is: it executes code and gives a future, whose
// messages are Jupyter's. Python runs in workers, one for the cells and one for each rank.

import { Counter, SIZE, fetchParts } from "./python-parts.js";
import { CALLER, Mailboxes, makeMemory } from "./tab-mailboxes.js";

const USUAL = 4; // ranks, which are started as soon as a cell that wants some is there
const TO_STOP = 2000; // ms; what has not stopped by then is ended
const CALM = 50; // ms between two pieces of output

/** What execute gives: messages as they come, and the reply in the end. */
export class Run {
  constructor(code, number) {
    this.code = code;
    this.number = number;
    this.hooks = [];
    this.texts = { stdout: "", stderr: "" };
    this.done = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
    this.done.catch(() => {});
  }

  registerMessageHook(hook) {
    this.hooks.push(hook);
  }

  tell(kind, content) {
    if (kind === "stream") {
      this.texts[content.name] += content.text;
      this.timer ??= setTimeout(() => this.flush(), CALM);
      return;
    }
    this.flush();
    this.pass(kind, { metadata: {}, transient: {}, ...content });
  }

  flush() {
    clearTimeout(this.timer);
    this.timer = null;
    for (const [name, text] of Object.entries(this.texts)) if (text) this.pass("stream", { name, text });
    this.texts = { stdout: "", stderr: "" };
  }

  pass(kind, content) {
    const message = { header: { msg_type: kind }, parent_header: {}, metadata: {}, content };
    const goesOn = this.hooks.map((hook) => hook(message)); // each may keep it from the output
    if (goesOn.every((on) => on !== false)) this.onIOPub?.(message);
  }

  end(content) {
    this.flush();
    this.resolve({ content });
  }

  dispose() {
    this.reject(new Error("the run is over"));
  }
}

export class TabKernel {
  /** `page.progress(share)` is told while Python comes, `page.ended(why)` when it is gone. */
  constructor(page, known) {
    this.page = page;
    this.known = known; // what tab.json says
    this.shared = globalThis.crossOriginIsolated ? makeMemory() : null;
    this.ranks = [];
    this.wanted = 0;
    this.started = 0; // workers, so far
    this.run = null;
  }

  get where() {
    const { used } = this;
    return used ? `in your browser, ${used} ${this.shared ? "workers" : "ranks in turn"}` : "in your browser";
  }

  // ------------------------------------------------------------ workers

  async start() {
    const whole = SIZE + this.known.memory; // MB
    const counter = new Counter((arrived) => this.page.progress(Math.min(1, arrived / whole)));
    this.parts = fetchParts(counter);
    this.memory = this.remember(counter);
    const ready = new Promise((resolve, reject) => {
      this.kernel = this.startWorker({}, this.memory, (said) => {
        if (said.ready) resolve();
        else if (said.failed) reject(new Error(`Python did not start in this tab: ${said.failed}`));
        else this.heard(said);
      });
    });
    this.want(this.wanted);
    await Promise.all([this.parts, this.memory]);
    await ready;
  }

  /** A worker, which begins with `memory` when that is there; it brings its scripts meanwhile. */
  startWorker(place, memory, hear) {
    const worker = new Worker(new URL("tab-worker.js", import.meta.url), { type: "module" });
    worker.onmessage = ({ data }) => hear(data);
    worker.onerror = (event) => hear({ failed: event.message || "its files do not arrive" });
    this.started += 1;
    const number = this.started;
    Promise.all([memory, this.parts]).then(
      ([found, parts]) => worker.postMessage({ ...place, number, shared: this.shared, memory: found, parts }),
      () => {}, // start says why
    );
    return worker;
  }

  /** Have so many ranks, as soon as the kernel is on its way. */
  want(count) {
    this.wanted = Math.max(this.wanted, this.shared ? count : 0);
    if (!this.kernel) return;
    while (this.ranks.length < this.wanted) this.ranks.push(this.startRank(this.ranks.length));
  }

  startRank(rank) {
    return this.startWorker({ rank }, this.memory, ({ failed }) => failed && this.end(`a rank did not start: ${failed}`));
  }

  replace(ranks) {
    const boxes = new Mailboxes(this.shared, CALLER);
    for (const rank of ranks) {
      this.ranks[rank].terminate();
      boxes.forget(rank);
      this.ranks[rank] = this.startRank(rank);
    }
  }

  // ------------------------------------------------------------ what the kernel says

  heard({ kind, content, reply, need, replace, failed }) {
    if (need) {
      this.used = Math.max(this.used ?? 0, need);
      this.want(need);
    }
    if (replace) this.replace(replace);
    if (kind) this.run?.tell(kind, content);
    if (reply) this.over({ ...reply, where: this.where });
    if (failed) this.end(failed);
  }

  over(content) {
    clearTimeout(this.stopping);
    const { run } = this;
    this.run = null;
    run?.end(content);
  }

  // ------------------------------------------------------------ what the page asks

  execute(code, number) {
    this.run = new Run(code, number);
    this.used = 0;
    this.foresee(code);
    const { run } = this;
    setTimeout(() => { // when somebody listens
      run.pass("execute_input", { code });
      this.kernel?.postMessage({ code, number });
    });
    return run;
  }

  /** Start what a cell will need before it is run. */
  foresee(code) {
    if (/\b(launch|world)\(/.test(code)) this.want(USUAL);
  }

  interrupt() {
    if (!this.run) return;
    const end = () => {
      this.over({ status: "error", ename: "KeyboardInterrupt" });
      this.end("it did not stop by itself");
    };
    if (!this.shared) return end();
    new Mailboxes(this.shared, CALLER).stop([CALLER]);
    this.stopping = setTimeout(end, TO_STOP);
  }

  /** End all workers. */
  end(why) {
    for (const worker of [this.kernel, ...this.ranks]) worker?.terminate();
    this.kernel = null;
    this.ranks = [];
    this.run?.dispose();
    this.run = null;
    if (why) this.page.ended(why);
  }

  /** What the build kept of a started Python. */
  async remember(counter) {
    const name = `python-memory.bin?${this.known.digest}`;
    const answer = await fetch(new URL(name, import.meta.url));
    if (!answer.ok) throw new Error(`${answer.url}: ${answer.status}`);
    const whole = counter.counted(answer).body.pipeThrough(new DecompressionStream("gzip"));
    const bytes = new Uint8Array(await new Response(whole).arrayBuffer());
    const memory = new (this.shared ? SharedArrayBuffer : ArrayBuffer)(bytes.length);
    new Uint8Array(memory).set(bytes);
    return memory;
  }
}
