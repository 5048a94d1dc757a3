// The reader of traces: it hands files to Python in a worker and shows what comes back. Nothing
// leaves the tab. What is read, drawn and said is code/playground/trace_reader.

const WIDE = 100000; // of a timeline, in its own units
const NEAREST = WIDE / 5000; // how far one can zoom in

/** The part of a timeline that is seen after a zoom by `factor` around `middle` (0 to 1 of it). */
export function zoomed([left, wide], factor, middle = 0.5) {
  const next = Math.min(WIDE, Math.max(NEAREST, wide * factor));
  return moved([left + (wide - next) * middle, next], 0);
}

/** The same part, moved by a share of itself, and no further than the timeline goes. */
export function moved([left, wide], share) {
  return [Math.min(WIDE - wide, Math.max(0, left + share * wide)), wide];
}

/** A time in µs, in as many digits as one reads. */
export function said(time) {
  return time < 1000 ? `${Math.round(time)} µs` : `${(time / 1000).toPrecision(4)} ms`;
}

class Timeline {
  constructor(root, ask) {
    this.root = root;
    this.lanes = root.querySelector(".traces-lanes");
    this.what = root.querySelector(".traces-what");
    this.end = Number(root.dataset.end); // µs
    this.part = [0, WIDE];
    this.ask = ask;
    root.addEventListener("click", ({ target }) => this.press(target.dataset.zoom));
    this.lanes.addEventListener("keydown", (event) => this.key(event));
    this.lanes.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.lanes.addEventListener("pointerdown", (event) => this.drag(event));
  }

  show(part) {
    this.part = part;
    for (const lane of this.lanes.querySelectorAll("svg")) lane.setAttribute("viewBox", `${part[0]} 0 ${part[1]} 10`);
    const [first, last] = this.lanes.querySelectorAll(".traces-axis span");
    first.textContent = said((part[0] / WIDE) * this.end);
    last.textContent = said(((part[0] + part[1]) / WIDE) * this.end);
  }

  press(how) {
    if (how === "in") this.show(zoomed(this.part, 0.5));
    if (how === "out") this.show(zoomed(this.part, 2));
    if (how === "left") this.show(moved(this.part, -0.5));
    if (how === "right") this.show(moved(this.part, 0.5));
    if (how === "all") this.show([0, WIDE]);
  }

  key(event) {
    const how = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "all" }[event.key];
    if (!how) return;
    event.preventDefault();
    this.press(how);
  }

  /** Only with Ctrl, as maps do it: else a page could not be scrolled past the timeline. */
  wheel(event) {
    if (!event.ctrlKey) return;
    event.preventDefault();
    this.show(zoomed(this.part, event.deltaY < 0 ? 0.7 : 1.4, this.where(event)));
  }

  /** Where a pointer is, as a share of what is seen. */
  where(event) {
    const box = this.lanes.querySelector("svg").getBoundingClientRect();
    return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  }

  drag(event) {
    const lane = event.target.closest("svg");
    if (!lane || event.button) return;
    const [from, part] = [this.where(event), this.part];
    let far = 0;
    const move = (next) => {
      far = Math.max(far, Math.abs(this.where(next) - from));
      if (far > 0.005) this.show(moved(part, from - this.where(next)));
    };
    const up = () => {
      window.removeEventListener("pointermove", move);
      if (far > 0.005) return;
      const time = ((part[0] + from * part[1]) / WIDE) * this.end;
      this.ask({ rank: Number(lane.dataset.rank), lane: lane.dataset.lane, time });
    };
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", up, { once: true });
  }
}

class TraceReader {
  constructor(root) {
    this.root = root;
    this.form = root.querySelector("form");
    this.status = root.querySelector(".traces-status");
    this.answer = root.querySelector(".traces-answer");
    this.drop = root.querySelector(".traces-drop");
    this.examples = [...root.querySelectorAll("[data-example]")];
    this.isRead = false; // whether Python has read anything: what stands there first is the build's
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("change", (event) => this.changed(event.target));
    for (const button of this.examples) button.addEventListener("click", () => this.example(button));
    for (const kind of ["dragenter", "dragover"]) this.drop.addEventListener(kind, (event) => this.over(event, true));
    this.drop.addEventListener("dragleave", (event) => this.over(event, false));
    this.drop.addEventListener("drop", (event) => {
      this.over(event, false);
      this.read({ files: [...event.dataTransfer.files] });
    });
    this.timeline();
  }

  over(event, isOver) {
    event.preventDefault();
    this.drop.classList.toggle("traces-over", isOver);
  }

  changed(control) {
    if (control.type === "file") return control.files.length && this.read({ files: [...control.files] });
    if (this.isRead) return this.ask({});
    return this.example(this.examples.find((button) => button.ariaPressed === "true"));
  }

  example(button) {
    this.read({ examples: button.dataset.example.split(" ") }, button);
  }

  read(question, pressed = null) {
    for (const each of this.examples) each.setAttribute("aria-pressed", String(each === pressed));
    this.ask(question);
  }

  // ------------------------------------------------------------ Python

  ask(question) {
    if (!this.worker) {
      this.say("Fetching Python for this tab …");
      this.worker = new Worker(new URL("trace-reader-worker.js", import.meta.url), { type: "module" });
      this.worker.onmessage = ({ data }) => this.heard(data);
      this.worker.onerror = (event) => this.heard({ failed: event.message || "its files do not arrive" });
    }
    const asked = JSON.stringify(Object.fromEntries([...new FormData(this.form)].filter(([, v]) => typeof v === "string")));
    if (!question.at) this.root.setAttribute("aria-busy", "true");
    this.worker.postMessage({ root: this.root.dataset.root, asked, ...question });
  }

  heard({ progress, failed, answer, found }) {
    if (progress) return this.say(progress);
    if (found !== undefined) return (this.lanes.what.textContent = found);
    this.root.removeAttribute("aria-busy");
    const { error, said: sentence, html } = answer ? JSON.parse(answer) : {};
    if (failed || error) return this.say(failed ?? error, true);
    this.isRead = true;
    this.answer.innerHTML = html;
    this.timeline();
    this.say("");
    this.root.dataset.shows = sentence;
  }

  say(text, isWrong = false) {
    this.status.classList.toggle("traces-wrong", isWrong);
    if (this.status.textContent !== text) this.status.textContent = text;
  }

  timeline() {
    this.lanes = new Timeline(this.answer.querySelector(".traces-timeline"), (at) => this.worker && this.ask({ at }));
  }
}

if (globalThis.document) {
  for (const root of document.querySelectorAll(".traces")) new TraceReader(root);
}
