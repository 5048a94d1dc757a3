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

/** Put the controls before what the figure shows, and show step 0; returns a function that goes to a step.
 *
 * @param {Element} figure
 * @param {object} how
 * @param {(step: number, animated: boolean) => string} how.draw shows a step and returns its words;
 *     animated, if it came one step forward.
 * @param {() => number} how.last the number of the last step.
 * @param {number} how.pause ms between two steps while it plays.
 * @param {string[]} how.sizes the numbers of ranks that there are; of several, one can be chosen.
 * @param {string} how.size the number of ranks that it opens with.
 * @param {(size: string, step: number) => number} how.choose another size; returns the step to go to.
 * @param {boolean} how.plays whether it plays once, when it comes into view and if motion is welcome.
 */
export function addStepper(figure, { draw, last, pause, sizes, size, choose, plays }) {
  let step = 0;
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
    show(step === last() ? 0 : step + 1, true);
  }
  const go = (next, forward = false) => { inView.disconnect(); stop(); show(next, forward); };
  const inView = new IntersectionObserver(([{ isIntersecting }]) => {
    if (!isIntersecting || timer) return;
    inView.disconnect();
    toggle();
  }, { threshold: 0.8 });

  const said = element("p", { class: "live-unseen", "aria-live": "polite" });
  const back = button("one step back", "◀", () => go(step - 1));
  const play = button("play all steps", "Play", () => { inView.disconnect(); toggle(); });
  const ahead = button("one step forward", "▶", () => go(step + 1, true));
  const steps = slider("step", last(), 0, (value) => go(value));
  const bar = element("div", { class: "steps-bar" }, back, play, ahead,
    element("label", {}, "step ", steps));
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
      Home: () => go(0), End: () => go(last()), " ": () => play.click() }[event.key];
    if (!act || (event.target.tagName === "BUTTON" && event.key === " ")) return;
    event.preventDefault();
    event.stopPropagation(); // arrow keys would turn the page
    act();
  });
  figure.prepend(bar, said);
  show(0);
  if (plays && !matchMedia("(prefers-reduced-motion: reduce)").matches) inView.observe(figure);
  return go;
}
