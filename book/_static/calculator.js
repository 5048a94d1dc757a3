// Calculators: charts that compute in the page. playground/show/calculator.py wrote them; Vega draws them.
// It is loaded for a reader who moves, when the first of them is near. Until then the built picture stands.

import { loadScript } from "./dom.js";

let vegaLoaded; // a promise of { vega, expressionInterpreter }

function loadVega() {
  vegaLoaded ??= loadScript(new URL("vega/vega.min.js", import.meta.url))
    .then(() => import("./vega/vega-interpreter.js")) // expressions without eval; needs Vega
    .then((interpreter) => ({ vega: window.vega, ...interpreter }));
  return vegaLoaded;
}

async function drawCalculator(calculator) {
  const { vega, expressionInterpreter } = await loadVega();
  const chart = calculator.querySelector(".calculator-chart");
  const controls = calculator.querySelector(".calculator-controls");
  const spec = JSON.parse(calculator.dataset.vega);
  const view = new vega.View(vega.parse(spec, null, { ast: true }),
    { expr: expressionInterpreter, renderer: "svg", bind: controls, loader: vega.loader({ mode: "none" }) });
  chart.replaceChildren();
  chart.setAttribute("role", "group"); // Vega says what each bar is
  await view.initialize(chart, controls).hover().runAsync();
  // On a narrow screen draw it narrower, and its letters stay as large as they are. Labels move then, so look again.
  for (const most of [Infinity, 8]) {
    const missing = chart.firstElementChild.viewBox.baseVal.width - chart.clientWidth;
    if (typeof spec.width !== "number" || missing <= 0 || missing > most) break;
    await view.width(Math.max(180, view.width() - missing)).runAsync();
  }
  for (const { name } of spec.signals.filter((signal) => signal.name.endsWith("_text"))) {
    const input = controls.querySelector(`[name="${name.replace(/_text$/, "")}"]`);
    const say = (text) => {
      input.nextElementSibling.textContent = text;
      input.setAttribute("aria-valuetext", text);
    };
    // Vega writes the bare number beside a slider, after us if we do not wait.
    input.addEventListener("input", () => view.runAsync().then(() => say(view.signal(name))));
    say(view.signal(name));
  }
  calculator.view = view;
  calculator.classList.add("calculator-ready");
}

const moves = ["pointermove", "pointerdown", "touchstart", "keydown", "scroll", "focusin"];
const readerMoves = new Promise((resolve) => {
  for (const move of moves) addEventListener(move, resolve, { once: true, passive: true });
});

const near = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    near.unobserve(target);
    readerMoves.then(() => drawCalculator(target)).catch((error) => console.error("a calculator stays a picture:", error));
  }
}, { rootMargin: "400px" });

export function drawCalculators(root) {
  for (const calculator of root.querySelectorAll(".calculator:not(.calculator-seen)")) {
    calculator.classList.add("calculator-seen");
    near.observe(calculator);
  }
}
