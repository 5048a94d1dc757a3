// Recorded runs of a collective, step by step: playground/show/steps.py recorded them, this draws.
//
// A part of an array is a cell with a slot for each rank. A filled slot says that this rank's numbers
// are in it; a partial sum is hatched, a complete one is framed. Where nothing is ever added, a cell is
// filled by the rank whose numbers it has. The bar counts what a rank has sent, and where all get a sum
// of arrays, a dashed line says what nobody can do without. Where the ranks are on hosts, a line between
// two hosts counts what each has sent to others. On a phone the drawing is narrower, and its words as large.

import { element } from "./dom.js";
import { addStepper } from "./stepper.js";

const FLIGHT = 650; // ms that a message is seen to travel
const WIDTH = 640, NARROW = 350, LEFT = 76, TOP = 8, BETWEEN = 26;
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

/** What host 0 has sent to others up to a step, in arrays; the hosts have the same share. */
export function leftHost({ arrays, messages, perHost }, step) {
  const left = messages.filter(([of, from, to]) => of <= step && from < perHost && to >= perHost);
  return left.reduce((sum, [, from, , start, end]) => sum + (end - start) / arrays[0][from].length, 0);
}

/** How wide to draw in so many pixels: words keep their size, and cells take what is left. */
export const widthIn = (room) => (room < 480 ? NARROW : Math.max(WIDTH, room));

/** A drawing of one state of a run; `flying` says how far the messages of the next step are, 0 to 1. */
export function drawing(run, step, colours, id, flying = 0, width = WIDTH) {
  const { arrays, messages, perHost } = run;
  const ranks = arrays[0].length;
  const parts = arrays[0][0].length;
  const right = width < WIDTH ? 90 : 150;
  const wide = (width - LEFT - right) / parts;
  const gap = Math.min(3, wide / 12);
  const tall = Math.min(44, 300 / ranks);
  const host = (rank) => (perHost ? Math.floor(rank / perHost) : 0);
  const top = (rank) => TOP + rank * (tall + 12) + host(rank) * BETWEEN;
  const box = (rank, part) => [LEFT + part * wide + gap, top(rank), wide - 2 * gap, tall];
  const adds = arrays.some((state) => state.some((row) => row.some((bits) => count(bits) > 1)));
  const cell = ([x, y, w, h], bits) => {
    const place = `x="${x}" y="${y}" width="${w}" height="${h}"`;
    if (!adds) {
      const look = bits ? `fill="${colours[Math.log2(bits) % colours.length]}"` : 'class="steps-slot"';
      return `<g><rect ${place} ${look}/><rect class="steps-part" ${place} rx="3"/></g>`;
    }
    const complete = count(bits) === ranks;
    const slots = arrays[0].map((_, rank) => {
      const filled = (bits >> rank) & 1;
      const look = filled ? `fill="${colours[rank % colours.length]}"` : 'class="steps-slot"';
      const hatched = filled && !complete ? `mask="url(#${id}-hatched)"` : "";
      return `<rect x="${x + (rank * w) / ranks}" y="${y}" width="${w / ranks}" height="${h}" ${look} ${hatched}/>`;
    });
    const frame = `class="steps-part${complete ? " steps-complete" : ""}"`;
    return `<g>${slots.join("")}<rect ${frame} ${place} rx="3"/></g>`;
  };
  const sent = sentAfter({ arrays, messages });
  const most = Math.max(2, ...sent.at(-1));
  const bar = (x) => (x / most) * (right - 28);
  const barLeft = width - right + 20;
  const height = top(ranks - 1) + tall + 36;
  const say = (x, words, anchor = "start") =>
    `<text class="steps-note" x="${x}" y="${height - 6}" text-anchor="${anchor}">${words}</text>`;
  let out = `<defs><pattern id="${id}-stripes" width="6" height="6" patternTransform="rotate(45)"
    patternUnits="userSpaceOnUse"><rect width="6" height="6" fill="#777"/><rect width="3" height="6" fill="#fff"/></pattern>
    <mask id="${id}-hatched"><rect width="100%" height="100%" fill="url(#${id}-stripes)"/></mask></defs>`;
  for (let rank = 0; rank < ranks; rank++) {
    const middle = top(rank) + tall / 2;
    out += `<circle cx="14" cy="${middle}" r="6" fill="${colours[rank % colours.length]}"/>
      <text x="26" y="${middle + 5}">rank ${rank}</text>`;
    arrays[step][rank].forEach((bits, part) => { out += cell(box(rank, part), bits); });
    out += `<rect class="steps-track" x="${barLeft}" y="${middle - 6}" width="${bar(most)}" height="12" rx="6"/>
      <rect class="steps-sent" x="${barLeft}" y="${middle - 6}" width="${bar(sent[step][rank])}" height="12" rx="6"/>`;
  }
  const left = perHost && leftHost(run, step).toFixed(2);
  for (let rank = perHost; rank < ranks; rank += perHost) {
    const line = top(rank) - 6 - BETWEEN / 2;
    out += `<line class="steps-bound" x1="8" x2="${width - 8}" y1="${line - 9}" y2="${line - 9}"/>
      <text class="steps-note" x="26" y="${line + 8}">Each host has sent ${left} arrays to others.</text>`;
  }
  const inParts = width < WIDTH ? `in ${parts} parts` : `each array in ${parts} parts`;
  out += say(LEFT, parts > 1 ? inParts : "one number on each rank");
  if (parts > 1 && arrays.at(-1).flat().every((bits) => count(bits) === ranks)) { // an all-reduce
    const least = (2 * (ranks - 1)) / ranks;
    const line = barLeft + bar(least);
    out += `<line class="steps-bound" x1="${line}" x2="${line}" y1="${TOP}" y2="${height - 26}"/>`;
    out += say(width - 2, `arrays sent (minimum: ${least.toFixed(2)})`, "end");
  } else {
    out += say(barLeft, "sent so far");
  }
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

function makeStepper(figure) {
  const { colours, start, runs } = JSON.parse(figure.dataset.steps);
  const id = `steps-${++figures}`;
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  let run = runs[start];
  let flight = 0;

  const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  picture.setAttribute("role", "img");
  const caption = element("p", { class: "steps-caption" });
  const last = () => run.words.length - 1;
  const middle = () => Math.ceil(last() / 2); // on paper it shows how the result comes about

  let painted = 0; // the step that is to be seen
  function paint(step, flying = 0) {
    const width = widthIn(picture.getBoundingClientRect().width);
    const { height, out } = drawing(run, step, colours, id, flying, width);
    painted = step;
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.innerHTML = out;
  }
  function fly(from) {
    const mine = flight;
    const began = performance.now();
    const frame = (now) => {
      if (mine !== flight || !figure.isConnected) return;
      const done = Math.max(0, now - began) / FLIGHT;
      if (done >= 1) return paint(from + 1);
      paint(from, Math.max(done, 1e-3));
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  figure.prepend(picture, caption);
  const go = addStepper(figure, {
    pause: 1400,
    last,
    plays: figure.dataset.plays !== undefined,
    draw(step, animated) {
      caption.textContent = run.words[step];
      picture.setAttribute("aria-label", run.words[step]);
      flight += 1; // one that is under way ends
      if (animated && !calm.matches) fly(step - 1);
      else paint(step);
      return run.words[step];
    },
    sizes: Object.keys(runs),
    size: String(start),
    choose(size, step) {
      const done = step / Math.max(1, last());
      run = runs[size];
      return Math.round(done * last()); // as far as it was: to drag is to compare
    },
  });
  matchMedia("print").addEventListener("change", (print) => {
    if (print.matches) go(middle());
  });
  figure.classList.add("steps-ready");
  new ResizeObserver(() => paint(painted)).observe(figure);
}

export function makeSteppers(root) {
  root.querySelectorAll(".steps:not(.steps-ready)").forEach(makeStepper);
}
