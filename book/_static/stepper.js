// The controls of a figure that has steps: one back, Play, one forward, any step, any number of ranks,
// and the same by keys. `steps.js` and `frames.js` draw what it shows.

import { element } from "./dom.js";

function button(label, text, onclick) {
  const made = element("button", { type: "button", "aria-label": label }, text);
  made.onclick = onclick;
  return made;
}

function slider(label, max, value, oninput) {
  const made = element("input", { type: "range", min: 0, max, value, "aria-label": label });
  made.oninput = () => oninput(Number(made.value));
  return made;
}

/** Put the controls before what the figure shows, and show it; returns a function that goes to a step.
 *
 * Play begins with the first step, not with the one that the figure opens with.
 *
 * @param {Element} figure
 * @param {object} how
 * @param {(step: number, animated: boolean) => string} how.draw shows a step and returns its words;
 *     animated, if it came one step forward.
 * @param {() => number} how.last the number of the last step.
 * @param {number} how.first the number of the step that it opens with.
 * @param {number} how.pause ms between two steps while it plays.
 * @param {string[]} how.sizes the numbers of ranks that there are; of several, one can be chosen.
 * @param {string} how.size the number of ranks that it opens with.
 * @param {(size: string, step: number) => number} how.choose another size; returns the step to go to.
 */
export function addStepper(figure, { draw, last, first, pause, sizes, size, choose }) {
  let step = 0;
  let untouched = true;
  let timer = null;

  function show(next, forward = false) {
    const before = step;
    step = Math.max(0, Math.min(last(), next));
    const words = draw(step, forward && step === before + 1);
    if (!timer) said.textContent = words;
    steps.max = last();
    steps.value = step;
    steps.setAttribute("aria-valuetext", `step ${step} of ${last()}`);
    back.disabled = step === 0;
    ahead.disabled = step === last();
  }
  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
    play.setAttribute("aria-label", "play all steps");
  }
  function toggle() {
    if (timer) return stop();
    timer = setInterval(() => {
      if (!figure.isConnected) return clearInterval(timer);
      show(step + 1, true);
      if (step === last()) stop();
    }, pause);
    play.textContent = "Pause";
    play.setAttribute("aria-label", "pause");
    show(untouched || step === last() ? 0 : step + 1, true);
    untouched = false;
  }
  const go = (next, forward = false) => { stop(); untouched = false; show(next, forward); };

  const said = element("p", { class: "live-unseen", "aria-live": "polite" });
  const back = button("one step back", "◀", () => go(step - 1));
  const play = button("play all steps", "Play", toggle);
  const ahead = button("one step forward", "▶", () => go(step + 1, true));
  const steps = slider("step", last(), 0, (value) => go(value));
  const bar = element("div", { class: "steps-bar" }, back, play, ahead, steps);
  if (sizes.length > 1) {
    const number = element("output", {}, size);
    const ranks = slider("ranks", sizes.length - 1, sizes.indexOf(size), (value) => {
      const next = choose(sizes[value], step);
      number.textContent = sizes[value];
      ranks.setAttribute("aria-valuetext", `${sizes[value]} ranks`);
      go(next);
    });
    ranks.setAttribute("aria-valuetext", `${size} ranks`);
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
  figure.prepend(bar, said);
  show(first);
  return go;
}
