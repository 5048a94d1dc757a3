// Recorded runs of a collective, step by step: playground/show/steps.py recorded them, this draws.
//
// A part of an array is a cell with a slot for each rank. A filled slot says that this rank's numbers
// are in it; a partial sum is hatched, a complete one is framed. The bar counts what a rank has sent.

import { element } from "./dom.js";

const PAUSE = 1400; // ms between two steps while it plays
const FLIGHT = 650; // ms that a message is seen to travel
const WIDTH = 640, LEFT = 76, RIGHT = 150, TOP = 8;
let figures = 0; // patterns need names that no other figure on the page has

const count = (bits) => bits.toString(2).replaceAll("0", "").length;

/** What rank r has sent after each step, in arrays: [step][rank]. */
export function sentAfter({ arrays, messages }) {
  const sent = arrays.map((ranks) => ranks.map(() => 0));
  for (const [step, from, , start, end] of messages)
    for (let later = step; later < arrays.length; later++)
      sent[later][from] += (end - start) / arrays[0][from].length;
  return sent;
}

/** A drawing of one state of a run; `flying` says how far the messages of the next step are, 0 to 1. */
export function drawing({ arrays, messages }, step, colours, id, flying = 0) {
  const ranks = arrays[0].length;
  const parts = arrays[0][0].length;
  const wide = (WIDTH - LEFT - RIGHT) / parts;
  const tall = Math.min(44, 300 / ranks);
  const box = (rank, part) => [LEFT + part * wide + 3, TOP + rank * (tall + 12), wide - 6, tall];
  const cell = ([x, y, w, h], bits) => {
    const complete = count(bits) === ranks;
    const slots = arrays[0].map((_, rank) => {
      const filled = (bits >> rank) & 1;
      const look = filled ? `fill="${colours[rank % colours.length]}"` : 'class="steps-slot"';
      const hatched = filled && !complete ? `mask="url(#${id}-hatched)"` : "";
      return `<rect x="${x + (rank * w) / ranks}" y="${y}" width="${w / ranks}" height="${h}" ${look} ${hatched}/>`;
    });
    const frame = `class="steps-part${complete ? " steps-complete" : ""}"`;
    return `<g>${slots.join("")}<rect ${frame} x="${x}" y="${y}" width="${w}" height="${h}" rx="3"/></g>`;
  };
  const sent = sentAfter({ arrays, messages });
  const most = Math.max(2, ...sent.at(-1));
  const bar = (x) => (x / most) * (RIGHT - 28);
  const barLeft = WIDTH - RIGHT + 20;
  const height = TOP + ranks * (tall + 12) + 24;
  let out = `<defs><pattern id="${id}-stripes" width="6" height="6" patternTransform="rotate(45)"
    patternUnits="userSpaceOnUse"><rect width="6" height="6" fill="#777"/><rect width="3" height="6" fill="#fff"/></pattern>
    <mask id="${id}-hatched"><rect width="100%" height="100%" fill="url(#${id}-stripes)"/></mask></defs>`;
  for (let rank = 0; rank < ranks; rank++) {
    const middle = TOP + rank * (tall + 12) + tall / 2;
    out += `<circle cx="14" cy="${middle}" r="6" fill="${colours[rank % colours.length]}"/>
      <text x="26" y="${middle + 5}">rank ${rank}</text>`;
    arrays[step][rank].forEach((bits, part) => { out += cell(box(rank, part), bits); });
    out += `<rect class="steps-track" x="${barLeft}" y="${middle - 6}" width="${bar(most)}" height="12" rx="6"/>
      <rect class="steps-sent" x="${barLeft}" y="${middle - 6}" width="${bar(sent[step][rank])}" height="12" rx="6"/>`;
  }
  const least = (2 * (ranks - 1)) / ranks;
  const line = barLeft + bar(least);
  out += `<line class="steps-bound" x1="${line}" x2="${line}" y1="${TOP}" y2="${height - 26}"/>
    <text class="steps-note" x="${LEFT}" y="${height - 6}">each array in ${parts} parts</text>
    <text class="steps-note" x="${barLeft}" y="${height - 6}">sent, of ${most.toFixed(1)} arrays</text>`;
  if (flying > 0) {
    const eased = flying * flying * (3 - 2 * flying);
    for (const [of, from, to, start, end] of messages) {
      if (of !== step + 1) continue;
      const far = Math.abs(to - from) > 1;
      for (let part = start; part < end; part++) {
        const [x, y, w, h] = box(from, part);
        const bend = far ? Math.sin(Math.PI * eased) * -26 : 0;
        out += cell([x + bend, y + (box(to, part)[1] - y) * eased, w, h], arrays[step][from][part]);
      }
    }
  }
  return { height, out };
}

function button(label, text, onclick) {
  const made = element("button", { type: "button", "aria-label": label }, text);
  made.onclick = onclick;
  return made;
}

function slider(label, min, max, value, oninput) {
  const input = element("input", { type: "range", min, max, value, "aria-label": label });
  input.oninput = () => oninput(Number(input.value));
  return input;
}

function makeStepper(figure) {
  const { colours, start, runs } = JSON.parse(figure.dataset.steps);
  const id = `steps-${++figures}`;
  const sizes = Object.keys(runs).map(Number);
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  let run = runs[start];
  let step = 0;
  let timer = null;
  let flight = 0;

  const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  picture.setAttribute("role", "img");
  const caption = element("p", { class: "steps-caption" });
  const said = element("p", { class: "live-unseen", "aria-live": "polite" });
  const last = () => run.words.length - 1;

  function paint(state, flying = 0) {
    const { height, out } = drawing(run, state, colours, id, flying);
    picture.setAttribute("viewBox", `0 0 ${WIDTH} ${height}`);
    picture.innerHTML = out;
  }
  function show(next, animated = false) {
    const before = step;
    step = Math.max(0, Math.min(last(), next));
    caption.textContent = run.words[step];
    picture.setAttribute("aria-label", run.words[step]);
    if (!timer) said.textContent = run.words[step];
    steps.max = last();
    steps.value = step;
    steps.setAttribute("aria-valuetext", `step ${step} of ${last()}`);
    back.disabled = step === 0;
    forward.disabled = step === last();
    const mine = ++flight;
    if (!animated || calm.matches || step !== before + 1) return paint(step);
    const began = performance.now();
    const frame = (now) => {
      if (mine !== flight || !figure.isConnected) return;
      const done = Math.max(0, now - began) / FLIGHT;
      if (done >= 1) return paint(step);
      paint(before, Math.max(done, 1e-3));
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }
  function pause() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
    play.setAttribute("aria-label", "play all steps");
  }
  function toggle() {
    if (timer) return pause();
    if (step === last()) show(0);
    timer = setInterval(() => {
      if (!figure.isConnected) return clearInterval(timer);
      show(step + 1, true);
      if (step === last()) pause();
    }, PAUSE);
    play.textContent = "Pause";
    play.setAttribute("aria-label", "pause");
    show(step + 1, true);
  }
  const go = (next, animated = false) => { pause(); show(next, animated); };

  const back = button("one step back", "◀", () => go(step - 1));
  const play = button("play all steps", "Play", toggle);
  const forward = button("one step forward", "▶", () => go(step + 1, true));
  const steps = slider("step", 0, last(), 0, (value) => go(value));
  const bar = element("div", { class: "steps-bar" }, back, play, forward, steps);
  if (sizes.length > 1) {
    const number = element("output", {}, String(start));
    const ranks = slider("ranks", 0, sizes.length - 1, sizes.indexOf(start), (value) => {
      run = runs[sizes[value]];
      number.textContent = sizes[value];
      ranks.setAttribute("aria-valuetext", `${sizes[value]} ranks`);
      go(0);
    });
    ranks.setAttribute("aria-valuetext", `${start} ranks`);
    bar.append(element("label", {}, "ranks ", ranks, " ", number));
  }
  figure.tabIndex = 0;
  figure.addEventListener("keydown", (event) => {
    if (event.target.type === "range" && event.key !== " ") return; // it has keys of its own
    const act = { ArrowRight: () => go(step + 1, true), ArrowLeft: () => go(step - 1),
      Home: () => go(0), End: () => go(last()), " ": toggle }[event.key];
    if (!act || (event.target.tagName === "BUTTON" && event.key === " ")) return;
    event.preventDefault();
    event.stopPropagation(); // arrow keys would turn the page
    act();
  });
  matchMedia("print").addEventListener("change", (print) => {
    if (print.matches) go(Math.floor(last() / 2)); // paper shows how it comes about
  });
  figure.prepend(bar, picture, caption, said);
  figure.classList.add("steps-ready");
  show(0);
}

export function makeSteppers(root) {
  root.querySelectorAll(".steps:not(.steps-ready)").forEach(makeStepper);
}
