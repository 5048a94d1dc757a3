// Messages between the ranks of a tab, through memory that their workers share.
//
// For each pair there is a ring of bytes: one writes, the other reads. A message is its length (4
// bytes) and its bytes. Each place has a bell, which rings when a message or room for one has come:
// whoever waits, sleeps until it rings. The last place is the caller's, where cells run.

export const MOST = 8; // ranks
export const CALLER = MOST;
const PLACES = MOST + 1;
const ROOM = 1 << 16; // bytes of a ring; a power of two
const WORDS = 2 * PLACES + 2 * PLACES * PLACES;
const PAST_STOPS = 4 * WORDS + 16;
const SIZE = PAST_STOPS + PLACES * PLACES * ROOM;
const INTERRUPT = 2; // SIGINT, as Pyodide reads it

export const STOPPED = -1; // what waiting may come to
export const LATE = -2;
export const DONE = -3;

export const makeMemory = () => new SharedArrayBuffer(SIZE);

export class Mailboxes {
  constructor(memory, me) {
    let at = 0;
    const words = (count) => {
      const view = new Int32Array(memory, at, count);
      at += 4 * count;
      return view;
    };
    this.me = me;
    this.bells = words(PLACES);
    this.stops = words(PLACES); // 1: what this place does is over
    this.read = words(PLACES * PLACES); // bytes so far; they wrap around
    this.written = words(PLACES * PLACES);
    this.interrupts = new Uint8Array(memory, at, PLACES); // the same, for Python itself
    this.bytes = new Uint8Array(memory, PAST_STOPS);
  }

  // ------------------------------------------------------------ rings of bytes

  /** Write as much of `data` as there is room for; how much that was. */
  put(to, data) {
    const pair = this.me * PLACES + to;
    const written = Atomics.load(this.written, pair);
    const free = ROOM - ((written - Atomics.load(this.read, pair)) | 0);
    const size = Math.min(free, data.length);
    this.#cut(pair, written, size, (place, from, until) => this.bytes.set(data.subarray(from, until), place));
    if (size) this.#moved(this.written, pair, written + size, to);
    return size;
  }

  /** Read as much as has come, at most what `into` holds; how much that was. */
  get(source, into) {
    const pair = source * PLACES + this.me;
    const read = Atomics.load(this.read, pair);
    const size = Math.min(this.available(source), into.length);
    this.#cut(pair, read, size, (place, from, until) =>
      into.set(this.bytes.subarray(place, place + until - from), from));
    if (size) this.#moved(this.read, pair, read + size, source);
    return size;
  }

  available(source) {
    const pair = source * PLACES + this.me;
    return (Atomics.load(this.written, pair) - Atomics.load(this.read, pair)) | 0;
  }

  /** The one or two stretches of a ring: copy(place in memory, from, until). */
  #cut(pair, start, size, copy) {
    const inRing = start & (ROOM - 1);
    const first = Math.min(size, ROOM - inRing);
    copy(pair * ROOM + inRing, 0, first);
    if (size > first) copy(pair * ROOM, first, size);
  }

  #moved(counter, pair, value, whom) {
    Atomics.store(counter, pair, value);
    this.ring(whom);
  }

  ring(place) {
    Atomics.add(this.bells, place, 1);
    Atomics.notify(this.bells, place);
  }

  /** Try until `attempt()` gives something; STOPPED or LATE when waiting is over. */
  until(attempt, milliseconds = Infinity, heedsStop = true) {
    const end = performance.now() + milliseconds;
    for (;;) {
      const seen = Atomics.load(this.bells, this.me); // first: what comes after this, wakes
      const found = attempt();
      if (found !== undefined) return found;
      if (heedsStop && Atomics.load(this.stops, this.me)) return STOPPED;
      const left = end - performance.now();
      if (left <= 0) return LATE;
      Atomics.wait(this.bells, this.me, seen, left);
    }
  }

  // ------------------------------------------------------------ messages

  /** Send and receive at once, either of them null: DONE, STOPPED, or a length that does not fit. */
  move(outgoing, incoming, heedsStop = true) {
    const leaving = outgoing ? [bytesOf(outgoing.data.length), outgoing.data] : [];
    const length = new Uint8Array(4);
    const coming = incoming ? [length, incoming.into] : [];
    return this.until(() => {
      while (leaving.length && this.#pass(leaving, (data) => this.put(outgoing.to, data)));
      while (coming.length && this.#pass(coming, (into) => this.get(incoming.source, into))) {
        const isBodyNext = coming.length === 1;
        if (isBodyNext && lengthIn(length) !== incoming.into.length) return lengthIn(length);
      }
      return leaving.length || coming.length ? undefined : DONE;
    }, Infinity, heedsStop);
  }

  /** Pass on the first of `parts`; whether it is through. */
  #pass(parts, pass) {
    parts[0] = parts[0].subarray(pass(parts[0]));
    if (parts[0].length) return false;
    parts.shift();
    return true;
  }

  /** The next message from there, whatever its length. */
  take(source) {
    const length = new Uint8Array(4);
    const read = (into) => {
      let rest = into;
      this.until(() => {
        rest = rest.subarray(this.get(source, rest));
        return rest.length ? undefined : DONE;
      }, Infinity, false);
      return into;
    };
    return read(new Uint8Array(lengthIn(read(length))));
  }

  /** The first of `places` that has something to say; STOPPED, or LATE after some milliseconds. */
  wait(places, milliseconds) {
    return this.until(() => places.find((place) => this.available(place) > 0), milliseconds);
  }

  // ------------------------------------------------------------ the caller's

  /** What these places do is over, wherever they stand. */
  stop(places) {
    for (const place of places) {
      Atomics.store(this.stops, place, 1);
      Atomics.store(this.interrupts, place, INTERRUPT);
      this.ring(place);
    }
  }

  /** These places may go on. */
  heed(places) {
    for (const place of places) {
      Atomics.store(this.stops, place, 0);
      Atomics.store(this.interrupts, place, 0);
    }
  }

  /** Throw away what `ranks` have sent each other; none of them may be at work. */
  clear(ranks) {
    for (const a of ranks) for (const b of ranks) this.#empty(a, b);
  }

  /** Throw away all that a place sent or was sent. */
  forget(place) {
    for (let other = 0; other < PLACES; other++) {
      this.#empty(place, other);
      this.#empty(other, place);
    }
  }

  #empty(from, to) {
    const pair = from * PLACES + to;
    Atomics.store(this.read, pair, Atomics.load(this.written, pair));
  }
}

function bytesOf(length) {
  const bytes = new Uint8Array(4);
  new DataView(bytes.buffer).setUint32(0, length);
  return bytes;
}

const lengthIn = (bytes) => new DataView(bytes.buffer).getUint32(0);
