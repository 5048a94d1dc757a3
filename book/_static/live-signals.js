// Listening to the signals of thebe's objects, for as long as it is needed and no longer.

/** Connect each [signal, slot]; what comes back disconnects them all. */
export function listen(...pairs) {
  for (const [signal, slot] of pairs) signal.connect(slot);
  return () => pairs.forEach(([signal, slot]) => signal.disconnect(slot));
}

/** Resolves when a kernel that is starting again is ready for code, or gone. */
export async function untilReady({ statusChanged, disposed }) {
  let stop;
  await new Promise((resolve) => {
    stop = listen(
      [statusChanged, (_, state) => state === "idle" && resolve()],
      [disposed, resolve],
    );
  });
  stop();
}
