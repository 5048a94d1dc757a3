// A recorded run, step by step: the frames that playground/show/steps.py wrote, shown one at a time.

import { element } from "./dom.js";

const SECONDS = 1.6; // between two steps while it plays

function button(label, text, onclick) {
  const made = element("button", { type: "button", "aria-label": label }, text);
  made.onclick = onclick;
  return made;
}

function makeStepper(figure) {
  const frames = [...figure.querySelectorAll(".steps-frame")];
  const last = frames.length - 1;
  let step = 0;
  let timer = null;

  const slider = element("input", { type: "range", min: 0, max: last, value: 0, "aria-label": "step" });
  const said = element("p", { class: "live-unseen", "aria-live": "polite" });

  function show(next) {
    step = Math.max(0, Math.min(last, next));
    frames.forEach((frame, i) => frame.classList.toggle("steps-now", i === step));
    slider.value = step;
    slider.setAttribute("aria-valuetext", `step ${step} of ${last}`);
    if (!timer) said.textContent = frames[step].querySelector("figcaption").textContent;
    back.disabled = step === 0;
    forward.disabled = step === last;
  }
  function pause() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
    play.setAttribute("aria-label", "play all steps");
  }
  function toggle() {
    if (timer) return pause();
    if (step === last) show(0);
    timer = setInterval(() => {
      if (!figure.isConnected) return clearInterval(timer);
      show(step + 1);
      if (step === last) pause();
    }, SECONDS * 1000);
    play.textContent = "Pause";
    play.setAttribute("aria-label", "pause");
    show(step + 1);
  }
  const go = (next) => { pause(); show(next); };

  const back = button("one step back", "◀", () => go(step - 1));
  const play = button("play all steps", "Play", toggle);
  const forward = button("one step forward", "▶", () => go(step + 1));
  slider.oninput = () => go(Number(slider.value));
  figure.tabIndex = 0;
  figure.addEventListener("keydown", (event) => {
    if (event.target === slider && event.key !== " ") return; // it has keys of its own
    const act = { ArrowRight: () => go(step + 1), ArrowLeft: () => go(step - 1),
      Home: () => go(0), End: () => go(last), " ": toggle }[event.key];
    if (!act || (event.target.tagName === "BUTTON" && event.key === " ")) return;
    event.preventDefault();
    event.stopPropagation(); // arrow keys would turn the page
    act();
  });
  figure.prepend(element("div", { class: "steps-bar" }, back, play, forward, slider, said));
  figure.classList.add("steps-ready");
  show(0);
}

export function makeSteppers(root) {
  root.querySelectorAll(".steps:not(.steps-ready)").forEach(makeStepper);
}
