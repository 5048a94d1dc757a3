// Figures made of pictures, one for each step: playground/show/whose.py drew them, this shows one at a
// time. A figure can have a run of pictures for each of several numbers of ranks.

import { addStepper } from "./stepper.js";

function makeShow(figure) {
  const runs = new Map([...figure.querySelectorAll(".frames-run")].map((run) => [run.dataset.ranks, run]));
  let ranks = [...runs.keys()].find((size) => !runs.get(size).hidden);
  const frames = () => [...runs.get(ranks).querySelectorAll("figure")];

  figure.classList.add("frames-ready");
  addStepper(figure, {
    pause: 1800,
    last: () => frames().length - 1,
    draw(step) {
      runs.forEach((run, size) => { run.hidden = size !== ranks; });
      frames().forEach((frame, i) => frame.classList.toggle("frames-now", i === step));
      return frames()[step].querySelector("figcaption").textContent;
    },
    sizes: [...runs.keys()],
    size: ranks,
    choose(size, step) {
      ranks = size;
      return step; // where one was: to drag is to compare
    },
  });
}

export function makeShows(root) {
  root.querySelectorAll(".frames:not(.frames-ready)").forEach(makeShow);
}
