// A page that has to be loaded again before its cells can run, and goes on where it was.

const PLACE = "live-again";

function take() {
  try {
    const kept = JSON.parse(sessionStorage.getItem(PLACE));
    sessionStorage.removeItem(PLACE);
    return kept?.path === location.pathname ? kept.cells : null;
  } catch {
    return null;
  }
}

/** The numbers of the cells that were to run; null where the page was opened as usual. */
export const pressed = take();
export const wasReloaded = pressed !== null;

/** Load the page again, for these cells. Does not come back, unless nothing can be kept. */
export async function reloadFor(cells) {
  try {
    sessionStorage.setItem(PLACE, JSON.stringify({ path: location.pathname, cells }));
  } catch {
    return;
  }
  location.reload();
  await new Promise(() => {});
}
