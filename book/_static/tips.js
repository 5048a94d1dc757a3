// What a link means, beside the link: shown while the pointer or the keyboard is on it.
//
// The text stands in the page already (book/_ext/tips.py). Escape closes a tip. A finger has no
// place to rest, so its first tap shows the tip and its second follows the link.

const PATIENCE = 250; // ms: the way from the link to its tip, and past a link without a stop

let shown = null; // the link whose tip is open, and its box
let box = null;
let timer = 0;

function show(link) {
  clearTimeout(timer);
  if (shown === link) return;
  hide();
  shown = link;
  box = document.getElementById(link.getAttribute("aria-describedby")).closest(".link-tip");
  box.hidden = false;
  place();
}

function hide() {
  clearTimeout(timer);
  if (box) box.hidden = true;
  shown = box = null;
}

function later(act) {
  clearTimeout(timer);
  timer = setTimeout(act, PATIENCE);
}

/** Below the link, above it where there is no room, and always in the window. */
function place() {
  if (!box) return;
  const around = shown.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = box;
  const room = document.documentElement.clientWidth - width - 8;
  const below = around.bottom + height + 12 <= innerHeight || around.top < height + 12;
  box.style.left = `${Math.max(8, Math.min(around.left, room))}px`;
  box.style.top = `${below ? around.bottom + 6 : around.top - height - 6}px`;
}

/** Call `act` when a pointer comes ("enter") or goes ("leave"); a finger does neither. */
function onPointer(way, node, act) {
  node.addEventListener(`pointer${way}`, ({ pointerType }) => pointerType !== "touch" && act());
}

for (const link of document.querySelectorAll("a.has-tip")) {
  let touched = false;
  onPointer("enter", link, () => later(() => show(link)));
  onPointer("leave", link, () => later(hide));
  link.addEventListener("pointerdown", (event) => (touched = event.pointerType === "touch"));
  link.addEventListener("focus", () => link.matches(":focus-visible") && show(link));
  link.addEventListener("blur", (event) => {
    if (!box?.contains(event.relatedTarget)) hide();
  });
  link.addEventListener("click", (event) => {
    if (!touched || shown === link) return;
    event.preventDefault();
    show(link);
  });
}

for (const tip of document.querySelectorAll(".link-tip")) {
  tip.addEventListener("pointerenter", () => clearTimeout(timer));
  onPointer("leave", tip, () => later(hide));
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hide();
});
document.addEventListener("pointerdown", ({ target }) => {
  if (box && !box.contains(target) && !shown.contains(target)) hide();
});
addEventListener("scroll", place, { passive: true });
addEventListener("resize", place);
