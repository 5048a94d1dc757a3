// Python in a tab: what the build, the page and its workers must agree on.

export const MODULES = "/home/pyodide/code"; // a file, though its name is a folder's: a zip
export const SIZE = 13; // MB, of Pyodide and the modules
const FILES = ["pyodide/pyodide-lock.json", "pyodide/python_stdlib.zip", "python.zip"];
const MB = 1e6;

/** Counts bytes that come in several files; `tell(megabytes)` from time to time. */
export class Counter {
  constructor(tell) {
    this.tell = tell;
    this.bytes = 0;
    this.told = -1;
  }

  /** The same response, which counts as it is read. */
  counted(response) {
    if (!response.body) return response;
    const count = new TransformStream({
      transform: (piece, controller) => {
        this.bytes += piece.length;
        const now = Math.floor(this.bytes / MB);
        if (now > this.told) this.tell(now);
        this.told = Math.max(this.told, now);
        controller.enqueue(piece);
      },
    });
    const { status, statusText, headers } = response;
    return new Response(response.body.pipeThrough(count), { status, statusText, headers });
  }
}

/** What workers start Python from: fetched and compiled once, however many there are. */
export async function fetchParts(counter) {
  const get = async (name) => {
    const answer = await fetch(new URL(name, import.meta.url));
    if (!answer.ok) throw new Error(`${answer.url}: ${answer.status}`);
    return counter.counted(answer);
  };
  const [program, ...found] = await Promise.all([
    get("pyodide/pyodide.asm.wasm").then(compiled),
    ...FILES.map((name) => get(name).then((answer) => answer.arrayBuffer())),
  ]);
  return { program, files: Object.fromEntries(FILES.map((name, i) => [name, found[i]])) };
}

async function compiled(answer) {
  const isNamed = answer.headers.get("Content-Type")?.startsWith("application/wasm");
  return isNamed ? WebAssembly.compileStreaming(answer) : WebAssembly.compile(await answer.arrayBuffer());
}
