// Where a host sends files and nothing else: this stands between the book's pages and that host.
//
// It adds the headers without which a browser gives a page no memory that its workers can share, and
// it keeps what has come, so that the page also opens without a network. It is there once a reader
// has pressed Run on such a host.

// What is kept belongs to the whole host, and other books may stand there: each has its own address.
const OURS = self.registration.scope;
const PYTHON = `python @PYTHON@ ${OURS}`; // its files, which the build names: they stay until it changes
const PAGES = `pages @BUILT@ ${OURS}`; // all else, and a later build's is another
const ISOLATED = {
  "Cross-Origin-Opener-Policy": "same-origin",
  "Cross-Origin-Embedder-Policy": "require-corp",
  "Cross-Origin-Resource-Policy": "same-origin",
};

self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(takeOver()));
self.addEventListener("fetch", (event) => {
  const { method, url, headers } = event.request;
  const isOurs = method === "GET" && url.startsWith(OURS) && !headers.has("range");
  if (isOurs) event.respondWith(answer(event.request));
});

async function takeOver() {
  const isOld = (name) => name.endsWith(` ${OURS}`) && ![PYTHON, PAGES].includes(name);
  const old = (await caches.keys()).filter(isOld);
  await Promise.all(old.map((name) => caches.delete(name)));
  await self.clients.claim();
}

async function answer(request) {
  const isPython = /\/_static\/(?:pyodide\/|python-memory)/.test(request.url);
  const kept = await caches.open(isPython ? PYTHON : PAGES);
  const found = isPython && await kept.match(request);
  return isolated(found || await fromHost(request, kept));
}

async function fromHost(request, kept) {
  try {
    const response = await fetch(request);
    if (response.ok) kept.put(request, response.clone()).catch(() => {}); // no room is no failure
    return response;
  } catch (error) {
    const found = await kept.match(request);
    if (found) return found;
    throw error;
  }
}

function isolated(response) {
  if (response.type === "opaqueredirect" || response.status === 0) return response;
  const headers = new Headers(response.headers);
  for (const [name, value] of Object.entries(ISOLATED)) headers.set(name, value);
  const { status, statusText } = response;
  return new Response([204, 304].includes(status) ? null : response.body, { status, statusText, headers });
}
