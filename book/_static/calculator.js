// Calculators: charts that compute in the page. playground/show/calculator.py wrote them; Vega, which is
// loaded when the first of them comes near, draws them. Until then the built picture stands.

const ownAddress = document.currentScript.src;
let vegaLoaded; // a promise of { vega, expressionInterpreter }

function loadVega() {
  vegaLoaded ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    Object.assign(script, { src: new URL("vega/vega.min.js", ownAddress), onload: resolve, onerror: reject });
    document.head.append(script);
  }) // expressions without eval, and it takes its tools from Vega
    .then(() => import(new URL("vega/vega-interpreter.js", ownAddress)))
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

const near = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    near.unobserve(target);
    drawCalculator(target).catch((error) => console.error("a calculator stays a picture:", error));
  }
}, { rootMargin: "400px" });

function lookForCalculators() {
  for (const calculator of document.querySelectorAll(".calculator:not(.calculator-seen)")) {
    calculator.classList.add("calculator-seen");
    near.observe(calculator);
  }
}

lookForCalculators();
new MutationObserver(lookForCalculators).observe(document.querySelector("main") ?? document.body,
  { childList: true, subtree: true });
