// What the service worker keeps: a host's answers and a browser's caches are simulated here.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";
import vm from "node:vm";

const SOURCE = readFileSync(new URL("../../book/_static/service-worker.js", import.meta.url), "utf8");
const BOOK = "https://host/book/";

// A function that asks for a page; each call takes the next answer, a status, or "offline".
function visitor(...answers) {
  const stores = new Map(), listeners = {};
  const open = async (name) => {
    const store = stores.get(name) ?? new Map();
    stores.set(name, store);
    return {
      put: async ({ url }, response) => store.set(url, response),
      match: async ({ url }) => store.get(url)?.clone(),
    };
  };
  const self = {
    registration: { scope: BOOK },
    addEventListener: (name, listener) => { listeners[name] = listener; },
  };
  const fetch = async () => {
    const answer = answers.shift();
    if (answer === "offline") throw new TypeError("no network");
    return new Response(`answer ${answer}`, { status: answer });
  };
  vm.runInContext(SOURCE, vm.createContext({ self, caches: { open }, fetch, Response, Headers }));
  return async (path) => {
    let answered;
    const request = { method: "GET", url: BOOK + path, headers: new Headers() };
    listeners.fetch({ request, respondWith: (promise) => { answered = promise; } });
    return (await answered).status;
  };
}

test("a page that came once is there without a network", async () => {
  const ask = visitor(200, "offline");
  assert.deepEqual([await ask("a.html"), await ask("a.html")], [200, 200]);
});

test("an error of the host is not kept, and replaces no page", async () => {
  const ask = visitor(200, 500, "offline");
  assert.deepEqual([await ask("a.html"), await ask("a.html"), await ask("a.html")], [200, 500, 200]);
  await assert.rejects(visitor("offline")("b.html"), /no network/);
});

test("Python's files are asked for again until one has come", async () => {
  const ask = visitor(404, 200, "offline");
  const file = "_static/pyodide/pyodide.asm.wasm";
  assert.deepEqual([await ask(file), await ask(file), await ask(file)], [404, 200, 200]);
});
