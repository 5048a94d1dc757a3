// What a cell imports decides where it can run: the libraries that it needs and a tab has not got.
// A cell needs those of a cell above, too, if it uses what that one makes.

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

/** The same for each of `cells`, which stand on one page, in its order. */
export function lacksOf(cells, known) {
  const missing = new Map(); // a name that is not there → the libraries that it takes
  return cells.map(({ code, standsAlone }) => {
    const own = lacks(code, known);
    if (standsAlone) return own;
    const made = namesMadeBy(code);
    const itsOwn = namesMadeBy(code, true);
    const used = [...missing.keys()].filter((name) => !itsOwn.has(name) && uses(code, name));
    const all = [...new Set([...own, ...used.flatMap((name) => missing.get(name))])];
    for (const name of made) {
      if (all.length) missing.set(name, all);
      else missing.delete(name);
    }
    return all;
  });
}

const DEFINED = /^(?:async\s+)?(?:def|class)\s+(\w+)(.*)/;
const IMPORTED = /^(?:from\s+\S+\s+)?import\s+(.+)/;
const BOUND = /^\s*(?:for\s+(.+?)\s+in\b|with\s.*\bas\s+(\w+)|([\w\s,*]+?)(?::[^=]+)?=(?!=))/;

/** The names that a cell leaves behind; with `inside`, those of its functions' bodies, too. */
export function namesMadeBy(code, inside = false) {
  const names = new Set();
  const add = (list) => list.match(/[A-Za-z_]\w*/g)?.forEach((name) => names.add(name));
  const oneLine = code.replace(/#.*$/gm, "").replace(/\([^()]*\)/g, (text) => text.replace(/\n/g, " "));
  let inBody = false;
  for (const line of oneLine.split("\n")) {
    if (/^\S/.test(line)) inBody = DEFINED.test(line);
    const defined = (inside ? line.trim() : line).match(DEFINED);
    const imported = line.match(IMPORTED);
    const bound = line.match(BOUND);
    if (defined) add(inside ? `${defined[1]} ${defined[2]}` : defined[1]);
    else if (imported) for (const one of imported[1].split(",")) add(one.match(/(\w+)[\s)]*$/)?.[1] ?? "");
    else if (bound && (inside || !inBody)) add(bound[1] ?? bound[2] ?? bound[3]);
    if (inside) for (const [, each] of line.matchAll(/\bfor\s+(.+?)\s+in\b/g)) add(each);
  }
  return names;
}

/** Whether code names `name`, outside of its comments and strings. */
function uses(code, name) {
  const bare = code.replace(/#.*$/gm, "").replace(/(?<![fF])("{3}|'{3}|"|')[\s\S]*?\1/g, '""');
  return new RegExp(`(?<![\\w.])${name}\\b(?!\\s*=[^=])`).test(bare);
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
