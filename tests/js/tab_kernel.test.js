// What a cell in the tab prints is passed on in pieces while the cell runs, and in order.
import assert from "node:assert/strict";
import test from "node:test";
import { Run } from "../../book/_static/tab-kernel.js";

function watched() {
  const run = new Run("", 1);
  const seen = [];
  run.onIOPub = ({ header, content }) => seen.push(content.text ?? header.msg_type);
  return [run, seen];
}
const print = (run, text) => run.tell("stream", { name: "stdout", text });

test("each piece is shown soon, the second as well as the first", (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const [run, seen] = watched();
  for (const text of ["a", "b", "c"]) {
    print(run, text);
    print(run, text);
    t.mock.timers.tick(1000);
  }
  assert.deepEqual(seen, ["aa", "bb", "cc"]);
});

test("what was printed before a picture or the end comes before it", async () => {
  const [run, seen] = watched();
  print(run, "a");
  run.tell("display_data", { data: {} });
  print(run, "b");
  run.end({ status: "ok" });
  assert.deepEqual(seen, ["a", "display_data", "b"]);
  assert.deepEqual(await run.done, { content: { status: "ok" } });
});
