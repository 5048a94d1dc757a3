// What a cell imports decides where it can run: the libraries that it needs and a tab has not got.

const IMPORT = /^\s*(?:from\s+(\.*[\w.]+)\s+import\s+(\([^)]*\)|.+)|import\s+(.+))/gm;
const OURS = /^(?:distributed|playground|bench)\b/;
const GIVEN = ["distributed.launch", "distributed.world", "distributed.Group"];

/** The dotted names that code imports: of our own modules, with what is taken from them. */
export function importsOf(code) {
  const names = [];
  const list = (text) => text.replace(/#.*$/gm, "").replace(/[()]/g, "").split(",")
    .map((name) => name.trim().split(/\s/)[0]).filter(Boolean);
  for (const [, module, taken, whole] of code.matchAll(IMPORT)) {
    if (whole) names.push(...list(whole));
    else if (OURS.test(module)) names.push(...list(taken).map((name) => `${module}.${name}`));
    else names.push(module);
  }
  return names;
}

/** The libraries, each once, that `code` needs and a tab lacks; `known` is what tab.json says. */
export function lacks(code, known) {
  const lacking = importsOf(code).map((name) => lackOf(name, known));
  return [...new Set(lacking.filter((library) => library !== null))];
}

function lackOf(name, { modules, standard, carried }) {
  const [top] = name.split(".");
  if (!OURS.test(name)) return [...standard, ...carried].includes(top) ? null : top;
  if (GIVEN.includes(name)) return null;
  const parts = name.split(".");
  for (let length = parts.length; length > 0; length--) {
    const module = parts.slice(0, length).join(".");
    if (module in modules) return modules[module];
  }
  return top; // a module that is not offered
}
