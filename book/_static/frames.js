// Figures made of pictures, one for each step: playground/show/whose.py drew them, this shows one at a
// time. A figure can have a run of pictures for each of several numbers of ranks.

import { element } from "./dom.js";

const PAUSE = 1800; // ms between two pictures while it plays

function button(label, text, onclick) {
  const made = element("button", { type: "button", "aria-label": label }, text);
  made.onclick = onclick;
  return made;
}

function slider(label, last, value, oninput) {
  const made = element("input", { type: "range", min: 0, max: last, value, "aria-label": label });
  made.oninput = () => oninput(Number(made.value));
  return made;
}

function makeShow(figure) {
  const runs = [...figure.querySelectorAll(".frames-run")];
  let run = runs.find((one) => !one.hidden);
  let now = 0;
  let timer = null;

  const said = element("p", { class: "live-unseen", "aria-live": "polite" });
  const frames = () => [...run.querySelectorAll("figure")];
  const last = () => frames().length - 1;

  function show(next) {
    now = Math.max(0, Math.min(last(), next));
    runs.forEach((one) => { one.hidden = one !== run; });
    frames().forEach((frame, i) => frame.classList.toggle("frames-now", i === now));
    if (!timer) said.textContent = frames()[now].querySelector("figcaption").textContent;
    steps.value = now;
    steps.setAttribute("aria-valuetext", `step ${now} of ${last()}`);
    back.disabled = now === 0;
    forward.disabled = now === last();
  }
  function pause() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
    play.setAttribute("aria-label", "play all steps");
  }
  function toggle() {
    if (timer) return pause();
    timer = setInterval(() => {
      if (!figure.isConnected) return clearInterval(timer);
      show(now + 1);
      if (now === last()) pause();
    }, PAUSE);
    play.textContent = "Pause";
    play.setAttribute("aria-label", "pause");
    show(now === last() ? 0 : now + 1);
  }
  const go = (next) => { pause(); show(next); };

  const back = button("one step back", "◀", () => go(now - 1));
  const play = button("play all steps", "Play", toggle);
  const forward = button("one step forward", "▶", () => go(now + 1));
  const steps = slider("step", last(), 0, go);
  const bar = element("div", { class: "steps-bar" }, back, play, forward, steps);
  if (runs.length > 1) {
    const number = element("output", {}, run.dataset.ranks);
    const ranks = slider("ranks", runs.length - 1, runs.indexOf(run), (value) => {
      run = runs[value];
      number.textContent = run.dataset.ranks;
      ranks.setAttribute("aria-valuetext", `${run.dataset.ranks} ranks`);
      go(now); // where one was: to drag is to compare
    });
    ranks.setAttribute("aria-valuetext", `${run.dataset.ranks} ranks`);
    bar.append(element("label", {}, "ranks ", ranks, " ", number));
  }
  figure.tabIndex = 0;
  figure.addEventListener("keydown", (event) => {
    if (event.target.type === "range" && event.key !== " ") return; // it has keys of its own
    const act = { ArrowRight: () => go(now + 1), ArrowLeft: () => go(now - 1),
      Home: () => go(0), End: () => go(last()), " ": toggle }[event.key];
    if (!act || (event.target.tagName === "BUTTON" && event.key === " ")) return;
    event.preventDefault();
    event.stopPropagation(); // arrow keys would turn the page
    act();
  });
  figure.prepend(bar, said);
  figure.classList.add("frames-ready");
  show(Number(figure.dataset.first));
}

export function makeShows(root) {
  root.querySelectorAll(".frames:not(.frames-ready)").forEach(makeShow);
}
