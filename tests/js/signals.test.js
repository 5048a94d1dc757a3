// A kernel that is started again and again must not be listened to more and more.
import assert from "node:assert/strict";
import test from "node:test";
import { listen, untilReady } from "../../book/_static/live-signals.js";

class Signal {
  slots = new Set();
  connect(slot) { this.slots.add(slot); }
  disconnect(slot) { this.slots.delete(slot); }
  emit(value) { for (const slot of [...this.slots]) slot(this, value); }
}

test("what listens hears, until it is disconnected", () => {
  const [one, two] = [new Signal(), new Signal()];
  const heard = [];
  const stop = listen([one, (_, value) => heard.push(value)], [two, (_, value) => heard.push(-value)]);
  one.emit(1);
  two.emit(2);
  stop();
  one.emit(3);
  assert.deepEqual(heard, [1, -2]);
});

for (const [end, event] of [["is ready", ["statusChanged", "idle"]], ["is gone", ["disposed"]]])
  test(`nothing listens any longer to a restarted kernel that ${end}`, async () => {
    const kernel = { statusChanged: new Signal(), disposed: new Signal() };
    let isReady = false;
    const ready = untilReady(kernel).then(() => (isReady = true));
    kernel.statusChanged.emit("starting");
    await null;
    assert.ok(!isReady);
    kernel[event[0]].emit(event[1]);
    await ready;
    assert.equal(kernel.statusChanged.slots.size + kernel.disposed.slots.size, 0);
  });
