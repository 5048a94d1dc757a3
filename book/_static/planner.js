// The planner's form: it hands what a reader chooses to Python and shows what comes back. What is
// planned, drawn and said is code/playground/planner; Python starts in a worker, at the first touch.

const LARGEST = 1e6; // bytes of a config.json that are read
const CALM = 60; // ms: letters that are typed, or a slider that is dragged, are one question

/** What differs from the defaults, as it stands in the address. */
export function queryOf(entries, defaults) {
  return new URLSearchParams(entries.filter(([name, value]) => value !== defaults[name])).toString();
}

/** The names of `query` that the planner knows: an address may have others. */
export function known(query, defaults) {
  return [...new URLSearchParams(query)].filter(([name]) => name in defaults);
}

function defaultOf(control) {
  if (control.type === "checkbox") return control.defaultChecked ? "on" : "";
  if (!control.options) return control.defaultValue;
  return [...control.options].find((option) => option.defaultSelected).value;
}

class Planner {
  constructor(root) {
    this.root = root;
    this.form = root.querySelector("form");
    this.status = root.querySelector(".planner-status");
    this.answer = root.querySelector(".planner-answer");
    this.controls = [...this.form.elements].filter((control) => control.name);
    this.defaults = Object.fromEntries(this.controls.map((c) => [c.name, defaultOf(c)]));
    this.waiting = null; // the question that comes next; a newer one takes its place
    this.busy = false;
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("input", (event) => this.changed(event.target));
    this.form.addEventListener("pointerdown", (event) => event.pointerType === "mouse" && this.start());
    for (const part of [this.form, this.answer]) part.addEventListener("click", (event) => this.clicked(event));
    const asked = known(location.search, this.defaults);
    if (asked.length) this.take(asked);
  }

  /** Set the form to these entries and ask; one that no list has is Python's to refuse. */
  take(entries) {
    const state = { ...this.defaults, ...Object.fromEntries(entries) };
    for (const control of this.controls) {
      const value = state[control.name];
      if (control.type === "checkbox") control.checked = value === "on";
      else if (!control.options || [...control.options].some((o) => o.value === value)) control.value = value;
    }
    this.follow();
    this.ask(queryOf(Object.entries(state), this.defaults));
  }

  entries() {
    return this.controls.map((c) => [c.name, c.type === "checkbox" ? (c.checked ? "on" : "") : c.value.trim()]);
  }

  /** The text of a chosen file goes into its field, and it is the model now. */
  async read(control) {
    const [file] = control.files;
    if (!file) return;
    const text = await file.slice(0, LARGEST).text(); // weights, chosen by mistake, stay where they are
    this.form.elements[control.dataset.reads].value = text;
    this.form.elements.model.value = "file";
    this.changed(this.form.elements.model);
  }

  changed(control) {
    if (control.dataset.reads) return this.read(control);
    if (control.dataset.sets) this.form.elements[control.dataset.sets].value = 2 ** control.value;
    this.follow();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(queryOf(this.entries(), this.defaults)), CALM);
  }

  /** Sliders stand where the numbers are, and the shape is there for who has a model of their own. */
  follow() {
    for (const slider of this.form.querySelectorAll("[data-sets]")) {
      const { value } = this.form.elements[slider.dataset.sets];
      if (value > 0) slider.value = Math.log2(value);
      slider.setAttribute("aria-valuetext", value);
    }
    const shape = this.form.querySelector("[data-model]");
    shape.hidden = this.form.elements.model.value !== shape.dataset.model;
    const more = this.form.querySelector("details");
    more.open ||= [...more.querySelectorAll("[name]")].some(
      (control) => (control.type === "checkbox" ? control.checked : control.value !== defaultOf(control)));
  }

  // ------------------------------------------------------------ Python

  start() {
    if (this.worker) return;
    this.say("Fetching Python for this tab …");
    this.busy = true;
    this.worker = new Worker(new URL("planner-worker.js", import.meta.url), { type: "module" });
    this.worker.onmessage = ({ data }) => this.heard(data);
    this.worker.onerror = (event) => this.heard({ failed: event.message || "its files do not arrive" });
  }

  ask(query) {
    this.waiting = query;
    this.start();
    if (!this.busy) this.send();
  }

  send() {
    this.busy = true;
    this.worker.postMessage(this.waiting);
    this.waiting = null;
  }

  heard({ progress, ready, failed, answer }) {
    if (progress) return this.say(progress);
    if (failed) {
      this.worker.terminate();
      this.worker = null; // the next touch tries again
      this.root.removeAttribute("aria-busy");
      return this.say(`Python did not start in this tab: ${failed}. The plan below is an older one.`);
    }
    this.busy = false;
    if (ready) this.say(this.waiting === null ? "Python is ready." : "Planning …");
    if (this.waiting !== null) this.send(); // what was asked since counts, and not this
    else if (answer) this.show(JSON.parse(answer));
  }

  /** A line for the eye and the ear; a plan's sentence, which stands below, for the ear alone. */
  say(text, isBelow = false) {
    this.status.classList.toggle("live-unseen", isBelow);
    if (this.status.textContent !== text) this.status.textContent = text;
  }

  show({ query, said, html, errors }) {
    for (const { name } of this.controls) {
      const control = this.form.querySelector(`#planner-${name}`); // the one that a reader sees
      const line = this.form.querySelector(`#planner-${name}-wrong`);
      const wrong = errors?.[name] ?? "";
      line.textContent = wrong;
      line.hidden = !wrong;
      if (wrong) control.setAttribute("aria-invalid", "true");
      else control.removeAttribute("aria-invalid");
    }
    this.answer.classList.toggle("planner-old", Boolean(errors));
    if (errors) {
      const [[name, message]] = Object.entries(errors);
      const { labels } = this.form.querySelector(`#planner-${name}`);
      return this.say(`${labels[0].textContent}: ${message}. The plan below is the last one that made sense.`);
    }
    const open = this.answer.querySelector(".planner-copy[aria-pressed=true]")?.textContent;
    this.answer.innerHTML = html;
    for (const button of this.answer.querySelectorAll(".planner-copy")) {
      if (button.textContent === open) this.unfold(button);
    }
    this.say(said, true);
    this.root.dataset.shows = query;
    const kept = new URLSearchParams(query).get("config"); // the fewest fields that say the same
    if (kept) this.form.elements.config.value = kept;
    history.replaceState(history.state, "", (query ? `?${query}` : location.pathname) + location.hash);
  }

  // ------------------------------------------------------------ links and copies

  clicked(event) {
    const way = event.target.closest(".planner-way");
    const button = event.target.closest(".planner-copy");
    if (way && !(event.ctrlKey || event.metaKey || event.shiftKey)) {
      event.preventDefault();
      this.take(known(new URL(way.href).search, this.defaults));
      this.form.elements.model.focus({ preventScroll: true }); // the link goes with its plan
    }
    if (button) this.copy(button);
  }

  unfold(button) {
    for (const other of this.answer.querySelectorAll(".planner-copy")) {
      other.setAttribute("aria-pressed", String(other === button));
    }
    const blocks = this.answer.querySelectorAll(".planner-text");
    for (const [number, block] of blocks.entries()) block.hidden = String(number) !== button.dataset.copy;
    const block = blocks[button.dataset.copy];
    if (block) block.tabIndex = 0; // the theme takes it from what does not scroll, as nothing hidden does
    return block;
  }

  async copy(button) {
    const block = this.unfold(button);
    const text = block ? block.textContent : location.href;
    try {
      await navigator.clipboard.writeText(text);
      this.say(`Copied: ${button.textContent}.`);
    } catch { // a browser that does not let a page copy
      if (block) getSelection().selectAllChildren(block);
      this.say(block ? "Selected: press Ctrl+C to copy." : "The link is this page's address.");
    }
  }
}

if (globalThis.document) {
  for (const root of document.querySelectorAll(".planner")) new Planner(root);
}
