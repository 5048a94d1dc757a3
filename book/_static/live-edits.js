// What a reader changed stays in this browser until Reset, whatever happens to page and server.
//
// An edit is kept beside the book's code that it was made from: once the book says something else
// in that cell, the edit no longer fits and the book's code is shown.

import * as store from "./store.js";

// By the page's place in the book: what stands before that in its address differs between hosts.
function place(index) {
  const book = new URL("..", import.meta.url);
  return `live-edit /${location.pathname.slice(book.pathname.length)} ${index}`;
}

/** The reader's code for a cell, or the book's where the reader has changed nothing. */
export function read(index, bookCode) {
  const kept = store.read(place(index));
  return kept?.book === bookCode ? kept.code : bookCode;
}

export function write(index, bookCode, code) {
  store.write(place(index), code === bookCode ? null : { book: bookCode, code });
}
