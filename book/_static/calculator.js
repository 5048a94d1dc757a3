// Calculators: charts that compute in the page. playground/show/calculator.py wrote them; Vega draws them.
// It is loaded for a reader who moves, when the first of them is near. Until then the built picture stands.

import { element, loadScript } from "./dom.js";

let vegaLoaded; // a promise of { vega, expressionInterpreter }

function loadVega() {
  vegaLoaded ??= loadScript(new URL("vega/vega.min.js", import.meta.url))
    .then(() => import("./vega/vega-interpreter.js")) // expressions without eval; needs Vega
    .then((interpreter) => {
      window.vega.expressionFunction("inLines", inLines);
      return { vega: window.vega, ...interpreter };
    });
  return vegaLoaded;
}

const PHONE = 480; // pixels: a narrower chart is laid out anew
const LETTER = 6.7; // pixels of a bold letter
const LINE = 14; // and of a line

// The words of a sentence in lines of at most so many letters.
function inLines(text, most) {
  const lines = [""];
  for (const word of String(text).split(" ")) {
    const line = lines.at(-1);
    if (!line) lines[lines.length - 1] = word;
    else if (line.length + 1 + word.length > most) lines.push(word);
    else lines[lines.length - 1] = `${line} ${word}`;
  }
  return lines;
}

// For a phone: a sentence over a chart breaks into lines and grows upwards, words at a point in the right half stand
// to its left, and a legend may have columns. Returns where the sentences begin.
function letBreak(spec) {
  const begin = [];
  for (const { encode } of spec.marks.filter(({ type }) => type === "text")) {
    const { x, dx, dy, text, align } = encode.update;
    if (align?.value !== "left" || !text?.signal) continue;
    const [right, down] = [dx?.value ?? 0, dy?.value ?? 0];
    if (typeof x.value === "number") {
      const lines = `inLines(${text.signal}, letters_of_a_line)`;
      encode.update.text = { signal: lines };
      encode.update.lineHeight = { value: LINE };
      // One that stands above the legend makes way when that has two rows.
      const over = down < -30 ? " - (columns_of_legends === 1 ? 18 : 0)" : "";
      encode.update.dy = { signal: `${down} - ${LINE} * (length(${lines}) - 1)${over}` };
      begin.push(x.value);
    } else {
      const late = `scale("${x.scale}", datum["${x.field}"]) > 0.55 * width`;
      encode.update.align = { signal: `${late} ? "right" : "left"` };
      encode.update.dx = { signal: `${late} ? ${-right} : ${right}` };
    }
  }
  for (const legend of spec.legends ?? []) {
    legend.columns ??= { signal: "columns_of_legends" };
    legend.offset ??= { signal: "18 + higher" }; // above the sentence
  }
  for (const [name, value] of [["letters_of_a_line", 10], ["columns_of_legends", 0], ["higher", 0]])
    spec.signals.push({ name, value });
  return begin;
}

// Draw it as narrow as the screen is, while letters stay as large as they are. Labels move then, so look again.
async function narrow(view, chart, wide, begin) {
  const missing = () => chart.firstElementChild.viewBox.baseVal.width - chart.clientWidth;
  for (const columns of [0, 2, 1]) {
    await view.signal("columns_of_legends", columns).width(wide).resize().runAsync();
    for (let tries = 0; tries < 3 && missing() > 0 && view.width() > 130; tries++)
      await view.width(Math.max(130, view.width() - missing())).resize().runAsync();
    if (missing() <= 0) break;
  }
  const room = chart.clientWidth - view.origin()[0] - Math.max(...begin);
  if (!begin.length) return;
  await view.signal("letters_of_a_line", Math.floor(room / LETTER)).resize().runAsync();
  const lines = chart.querySelectorAll("text > tspan").length;
  if (begin.some((x) => x >= 0)) await view.signal("higher", LINE * Math.max(0, lines - 1)).resize().runAsync();
}

// Draw it as wide as its box.
async function fill(view, chart) {
  for (let tries = 0; tries < 2; tries++) { // labels move
    const room = chart.clientWidth - chart.firstElementChild.viewBox.baseVal.width;
    if (room > 0) await view.width(view.width() + room).resize().runAsync();
  }
}

async function drawCalculator(calculator) {
  const { vega, expressionInterpreter } = await loadVega();
  const chart = calculator.querySelector(".calculator-chart");
  const controls = calculator.querySelector(".calculator-controls");
  const spec = JSON.parse(calculator.dataset.vega);
  const isNarrow = chart.clientWidth < PHONE;
  const begin = typeof spec.width === "number" && isNarrow && letBreak(spec);
  const view = new vega.View(vega.parse(spec, null, { ast: true }),
    { expr: expressionInterpreter, renderer: "svg", bind: controls, loader: vega.loader({ mode: "none" }) });
  chart.replaceChildren();
  chart.setAttribute("role", "group"); // Vega says what each bar is
  await view.initialize(chart, controls).hover().runAsync();
  if (begin) await narrow(view, chart, spec.width, begin);
  if (typeof spec.width === "number" && !isNarrow) await fill(view, chart);
  for (const { name } of spec.signals.filter((signal) => signal.name.endsWith("_text"))) {
    const input = controls.querySelector(`[name="${name.replace(/_text$/, "")}"]`);
    const said = element("output", {});
    input.nextElementSibling.replaceWith(said); // where Vega writes the bare number, now and then after us
    const say = (text) => {
      said.textContent = text;
      input.setAttribute("aria-valuetext", text);
    };
    view.addSignalListener(name, (_, text) => say(text));
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
