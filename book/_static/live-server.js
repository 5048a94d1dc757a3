// Which server the kernels of this page run on: the one that the page came from, or a Binder.
//
// `server.json` says whether the page's own server runs cells. The build writes it for hosts of files,
// which don't, and our server answers with its own. A host that says no is asked for no kernel. If the
// book names a Binder (`live_binder` in _config.yml), a machine is asked for there, once the reader has
// pressed Run.

/** What a reader can do if no server runs cells, and the cell needs libraries that a tab doesn't have. */
export function noneFor(libraries) {
  const why = libraries.length
    ? `This cell needs ${libraries.join(" and ")}, which a browser can't run, and this site has no server that `
      + "runs cells"
    : "No server that runs cells answers here";
  return `${why}. To run it, get the book's folder, type \`make serve\` in it, and open the address `
    + "that it prints. Until then, the page shows the output that came with the book.";
}

export const UNKNOWN_READER = "The server does not know this browser. Open the address that "
  + "`make serve` printed, with its token, once.";

// The token is of a Binder's machine; our own server knows its readers by a cookie.
export const server = { base: new URL("..", import.meta.url), token: "" };

/** Whether a server that runs cells answers here; a Binder's machine has said so by being given. */
export async function runsCells() {
  if (server.token) return true;
  const answer = await fetch(new URL("server.json", import.meta.url), { cache: "no-store" }).catch(() => null);
  const said = answer?.ok ? await answer.json().catch(() => null) : null;
  return said?.runsCells === true;
}

/** A request to the Jupyter API. */
export function ask(method, path, body, options = {}) {
  const xsrf = document.cookie.match(/(?:^|; )_xsrf=([^;]*)/)?.[1];
  const known = server.token ? { Authorization: `token ${server.token}` } : xsrf && { "X-XSRFToken": xsrf };
  return fetch(new URL(`api/${path}`, server.base), {
    method,
    headers: { "Content-Type": "application/json", ...known },
    body: body && JSON.stringify(body),
    ...options,
  });
}

/** What the book says of its Binder, or null. */
export function binder() {
  const said = document.getElementById("live-status").dataset.binder;
  return said ? JSON.parse(said) : null;
}

/** Get a machine of the Binder, and say how far that is; from then on it is asked. */
export function askBinder({ url, repository, ref }, say) {
  const source = new EventSource(`${url.replace(/\/$/, "")}/build/gh/${repository}/${ref}`);
  return new Promise((resolve, reject) => {
    const fail = (why) => reject(new Error(`Binder gives no machine: ${why}`));
    source.onerror = () => fail("it does not answer");
    source.onmessage = ({ data }) => {
      const { phase, message, url: machine, token } = JSON.parse(data);
      if (phase === "failed") fail(message);
      else if (phase !== "ready") return say(`Binder: ${phase}`);
      server.base = new URL(machine ?? server.base);
      server.token = token ?? "";
      resolve();
    };
  }).finally(() => source.close());
}
