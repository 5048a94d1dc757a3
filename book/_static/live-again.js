// What a page keeps for when it is loaded again: the cells that are to run then, or the run that was
// cut because the page was left.

const PLACE = "live-again";
const CUT = "live-cut";

/** What was kept for this page, which is then no longer kept. */
function take(place) {
  try {
    const kept = JSON.parse(sessionStorage.getItem(place));
    sessionStorage.removeItem(place);
    return kept?.path === location.pathname ? kept.value : null;
  } catch {
    return null;
  }
}

/** Whether it could be kept. */
function keep(place, value) {
  try {
    sessionStorage.setItem(place, JSON.stringify({ path: location.pathname, value }));
    return true;
  } catch {
    return false;
  }
}

/** The numbers of the cells that were to run; null where the page was opened as usual. */
export const pressed = take(PLACE);
export const wasReloaded = pressed !== null;

/** The { index, code } of the cell that ran when the page was left; null: none did. */
export const cut = take(CUT);
export const keepCut = (run) => keep(CUT, run);

/** Load the page again, for these cells. Does not come back, unless nothing can be kept. */
export async function reloadFor(cells) {
  if (!keep(PLACE, cells)) return;
  location.reload();
  await new Promise(() => {});
}
