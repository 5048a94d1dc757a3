// Python in a tab: what the build, the page and its workers must agree on.

export const MODULES = "/home/pyodide/code"; // a file, though its name is a folder's: a zip
export const IMPORTS = `
import sys
sys.path.insert(0, "${MODULES}")
import playground.tab.kernel, playground.tab.rank, playground.tab.turns
`;

export const SIZE = 14; // MB, of Pyodide and the modules
const MB = 1e6;

/** The same response; how many megabytes of it, and of those with the same `total`, have come. */
export function counting(response, tell, total = { arrived: 0, told: -1 }) {
  if (!response.body) return response;
  const count = new TransformStream({
    transform(piece, controller) {
      total.arrived += piece.length;
      const now = Math.floor(total.arrived / MB);
      if (now > total.told) tell(now);
      total.told = Math.max(total.told, now);
      controller.enqueue(piece);
    },
  });
  const { status, statusText, headers } = response;
  return new Response(response.body.pipeThrough(count), { status, statusText, headers });
}
