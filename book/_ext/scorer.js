// The order of search results: chapters come first, then pages for maintainers, then modules and their functions.
//
// Sphinx puts this into the search page instead of its own `Scorer`, whose other numbers are the same.

var Scorer = {
  score: ([docName, , , , score]) => {
    if (docName === "book/reference/api") return score - 2000;
    return docName.startsWith("book/maintainers/") ? score - 1000 : score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
