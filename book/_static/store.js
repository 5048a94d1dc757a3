// What this browser keeps between visits. One that keeps nothing leaves the page as it was built.

export function read(place) {
  try {
    return JSON.parse(localStorage.getItem(place));
  } catch {
    return null;
  }
}

/** Keep a value; null forgets what was kept. */
export function write(place, value) {
  try {
    if (value === null) localStorage.removeItem(place);
    else localStorage.setItem(place, JSON.stringify(value));
  } catch {
    // nothing is kept
  }
}
