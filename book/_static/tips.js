// What a link means, beside the link: shown while the pointer or the keyboard is on it.
//
// The text stands in the page already (book/_ext/tips.py). Escape closes a tip. A finger has no
// place to rest, so its first tap shows the tip and its second follows the link.
"use strict";
const TIP_PATIENCE = 250; // ms: the way from the link to its tip, and past a link without a stop

const tips = {
  link: null,
  box: null,
  timer: 0,

  show(link) {
    clearTimeout(this.timer);
    if (this.link === link) return;
    this.hide();
    const said = document.getElementById(link.getAttribute("aria-describedby"));
    this.link = link;
    this.box = said.closest(".link-tip");
    this.box.hidden = false;
    this.place();
  },

  hide() {
    clearTimeout(this.timer);
    if (this.box) this.box.hidden = true;
    this.link = this.box = null;
  },

  later(act) {
    clearTimeout(this.timer);
    this.timer = setTimeout(act, TIP_PATIENCE);
  },

  /** Below the link, above it where there is no room, and always in the window. */
  place() {
    const around = this.link.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.box;
    const room = document.documentElement.clientWidth - width - 8;
    const below = around.bottom + height + 12 <= innerHeight || around.top < height + 12;
    this.box.style.left = `${Math.max(8, Math.min(around.left, room))}px`;
    this.box.style.top = `${below ? around.bottom + 6 : around.top - height - 6}px`;
  },
};

for (const link of document.querySelectorAll("a.has-tip")) {
  let touched = false;
  link.addEventListener("pointerenter", (event) => {
    if (event.pointerType !== "touch") tips.later(() => tips.show(link));
  });
  link.addEventListener("pointerleave", (event) => {
    if (event.pointerType !== "touch") tips.later(() => tips.hide());
  });
  link.addEventListener("pointerdown", (event) => (touched = event.pointerType === "touch"));
  link.addEventListener("focus", () => link.matches(":focus-visible") && tips.show(link));
  link.addEventListener("blur", (event) => {
    if (!tips.box?.contains(event.relatedTarget)) tips.hide();
  });
  link.addEventListener("click", (event) => {
    if (!touched || tips.link === link) return;
    event.preventDefault();
    tips.show(link);
  });
}

for (const box of document.querySelectorAll(".link-tip")) {
  box.addEventListener("pointerenter", () => clearTimeout(tips.timer));
  box.addEventListener("pointerleave", (event) => {
    if (event.pointerType !== "touch") tips.later(() => tips.hide());
  });
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") tips.hide();
});
document.addEventListener("pointerdown", (event) => {
  if (tips.box && !tips.box.contains(event.target) && !tips.link.contains(event.target)) tips.hide();
});
addEventListener("scroll", () => tips.box && tips.place(), { passive: true });
addEventListener("resize", () => tips.box && tips.place());
