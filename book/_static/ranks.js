// What several ranks print, side by side: one column for each rank, or one tab where columns would be
// too narrow. The lines as they came stay in their <pre>, which is hidden, and a button brings them back.

import { element } from "./dom.js";

const LABELLED = /^\[rank (\d+)\] ?/;
const ENOUGH = 3; // lines of every rank; fewer are read well as they come
const MOST_RANKS = 8;
const MOST_TEXT = 300_000; // characters; more would make the page slow while it grows
const NARROWEST = 22; // characters of a column

const views = new Map(); // <pre> → its view: { place, text, inOrder, tab }

/** The text as pieces: { plain: [line…] } or { ranks: Map(rank → [line…]), plain: [line…] }. */
export function piecesOf(text) {
  const pieces = [];
  for (const line of text.replace(/\n$/, "").split("\n")) {
    const label = line.match(LABELLED);
    let last = pieces.at(-1);
    if (!last || Boolean(last.ranks) !== Boolean(label)) {
      last = label ? { plain: [], ranks: new Map() } : { plain: [] };
      pieces.push(last);
    }
    last.plain.push(line);
    if (label) {
      const rank = Number(label[1]);
      if (!last.ranks.has(rank)) last.ranks.set(rank, []);
      last.ranks.get(rank).push(line.slice(label[0].length));
    }
  }
  return pieces;
}

export function isBetterByRank({ ranks }) {
  if (!ranks || ranks.size < 2 || ranks.size > MOST_RANKS) return false;
  return [...ranks.values()].every((lines) => lines.length >= ENOUGH);
}

const listing = (lines) => element("pre", {}, lines.join("\n"));

function columns(ranks) {
  const parts = ranks.map(([rank, lines]) =>
    element("div", { class: "rank", role: "group", "data-rank": rank, "aria-label": `rank ${rank}` },
      element("p", { class: "rank-name" }, `rank ${rank}`), listing(lines)));
  return element("div", { class: "rank-columns" }, ...parts);
}

function tabs(ranks, view) {
  const chosen = ranks.some(([rank]) => rank === view.tab) ? view.tab : ranks[0][0];
  const buttons = ranks.map(([rank]) => {
    const open = rank === chosen;
    const button = element("button", { type: "button", role: "tab", "data-rank": rank,
      "aria-selected": open, tabindex: open ? 0 : -1 }, `rank ${rank}`);
    button.onclick = () => choose(rank);
    return button;
  });
  const choose = (rank) => {
    view.tab = rank;
    draw(view);
    view.place.querySelector("[aria-selected=true]")?.focus();
  };
  const list = element("div", { role: "tablist", "aria-label": "ranks", class: "rank-tabs" }, ...buttons);
  list.onkeydown = ({ key }) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[key];
    const here = ranks.findIndex(([rank]) => rank === chosen);
    if (step) choose(ranks[(here + step + ranks.length) % ranks.length][0]);
  };
  const panel = element("div", { role: "tabpanel", "aria-label": `rank ${chosen}`, tabindex: 0,
    class: "rank", "data-rank": chosen }, listing(new Map(ranks).get(chosen)));
  return element("div", {}, list, panel);
}

function draw(view) {
  const width = view.place.clientWidth / (parseFloat(getComputedStyle(view.place).fontSize) * 0.6);
  const shown = piecesOf(view.text).map((piece) => {
    if (!isBetterByRank(piece)) return listing(piece.plain);
    const ranks = [...piece.ranks].sort(([a], [b]) => a - b);
    return width / ranks.length >= NARROWEST ? columns(ranks) : tabs(ranks, view);
  });
  const other = element("button", { type: "button", class: "rank-order" },
    view.inOrder ? "by rank" : "in order");
  other.onclick = () => {
    view.inOrder = !view.inOrder;
    draw(view);
    view.place.querySelector(".rank-order").focus();
  };
  view.pre.toggleAttribute("data-by-rank", !view.inOrder);
  view.place.replaceChildren(other, ...(view.inOrder ? [] : shown));
}

/** Group a <pre> whose lines are better read by rank; take the grouping away where they are not. */
function update(pre) {
  const text = pre.textContent;
  let view = views.get(pre);
  const grouped = text.length <= MOST_TEXT && text.includes("[rank ") && piecesOf(text).some(isBetterByRank);
  if (!grouped) {
    if (view) remove(view);
  } else if (!view || view.text !== text || !view.place.isConnected) {
    if (!view) views.set(pre, (view = { pre, inOrder: false, place: element("div", { class: "ranks" }) }));
    if (pre.nextSibling !== view.place) pre.after(view.place);
    view.text = text;
    draw(view);
  }
}

function remove(view) {
  view.place.remove();
  view.pre.removeAttribute("data-by-rank");
  views.delete(view.pre);
}

export function groupByRank(root) {
  for (const view of [...views.values()]) if (!view.pre.isConnected) remove(view);
  root.querySelectorAll(".cell_output pre:not(.ranks pre)").forEach(update);
}

/** The window has another width: what were columns may have to be tabs. */
export function drawAgain() {
  views.forEach(draw);
}
