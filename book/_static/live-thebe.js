// What live cells take from thebe: the code editor, the kernel connection, the rendering of
// outputs. live.js loads this file at the first press, and with it thebe itself (1.5 MB).
//
// thebe.bootstrap() is not used: it turns all cells of a page into editors, pairs outputs with
// cells by their position, rewrites built outputs, and must reach a server before a reader may edit.

import { element, loadScript } from "./dom.js";
import { server as kernels } from "./live-server.js";

let thebeCells, config, rendermime, session;

export async function load(codes) {
  await loadScript(new URL("thebe/index.js", import.meta.url)); // brings its own styles
  const { api } = window.thebeCore;
  config = api.makeConfiguration({
    mathjaxUrl: "", // no second MathJax, least of all from another host
    savedSessionOptions: { enabled: false },
    serverSettings: { baseUrl: kernels.base.href, token: "", appendToken: false }, // see connectTo
  });
  rendermime = api.makeRenderMimeRegistry(config.mathjax);
  rendermime.removeMimeType("application/json"); // its renderer fails and is not served; text is
  keepTerminalColoursOut();
  const blocks = codes.map((source, index) => ({ id: `live-${index}`, source }));
  thebeCells = api.setupNotebookFromBlocks(blocks, config, rendermime).cells;
}

// Tracebacks name colours for one kind of terminal; the page has two themes and its own colours.
function keepTerminalColoursOut() {
  const { sanitizer } = rendermime;
  const withoutStyle = (html) => html.replace(/(<span[^>]*) style="[^"]*"/g, "$1");
  rendermime.sanitizer = { sanitize: (html, rules) => sanitizer.sanitize(withoutStyle(html), rules) };
}

/** The output area of a cell, drawn into `place`, which must be empty; `onOutput` at each output. */
export function makeOutputArea(index, place, onOutput) {
  const { area } = thebeCells[index];
  thebeCells[index].attachToDOM(place);
  area.model.changed.connect(() => area.model.length > 0 && onOutput());
  return area;
}

/** Connect to the kernel of a session that the server has just started. */
export async function connectTo(model) {
  // A server object made before the session might not know it yet, and drop it as dead.
  const { base, token } = kernels;
  const wsUrl = base.href.replace(/^http/, "ws");
  const serverSettings = { baseUrl: base.href, wsUrl, token, appendToken: Boolean(token) };
  const { api } = window.thebeCore;
  const server = api.connectToJupyter(api.makeConfiguration({ ...config, serverSettings }));
  session = await server.connectToExistingSession(model, rendermime);
  thebeCells.forEach((cell) => cell.attachSession(session)); // for the editor's completion
  // Widgets that thebe brings along work; for others it would ask another host.
  session.manager._loader.requested = true;
  session.manager._loader.resolveFn({});
  return session;
}

export function disconnect(lost) {
  lost.server.dispose();
  lost.server.sessionManager?._kernelManager?.dispose(); // else it asks for news for ever
}

/** Put an editor in the place of a listing; returns CodeMirror and what brings the listing back. */
export function makeEditor(index, listing, place, code, label) {
  const codeMirrorConfig = {
    lineNumbers: false,
    indentUnit: 4,
    viewportMargin: Infinity, // all lines are in the page, so that it can be searched
    screenReaderLabel: label,
  };
  const cell = thebeCells[index];
  cell.source = code;
  const item = { id: cell.id, placeholders: { source: listing, output: place } };
  const box = element("div", { class: "live-editor" });
  listing.replaceWith(box);
  box.append(listing);
  window.thebe.renderAllCells({ codeMirrorConfig }, { getCellById: () => cell }, [item]);
  const editor = box.querySelector(".CodeMirror").CodeMirror;
  editor.refresh(); // so that it knows where its lines stand
  return { editor, remove: () => box.replaceWith(listing) };
}
