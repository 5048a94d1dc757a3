// What a sheet cannot do is taken out of a page before it is printed; pdf.py calls this with the page's own
// scripts done. Answers move behind the text, where a reader who guesses first does not see them. Of what is
// folded otherwise, titles stay.

() => {
  const ANSWERS = ["Answer", "Answers", "What happened?", "What happens?", "Was it?"];
  const article = document.querySelector(".bd-article");
  const make = (tag, attributes, ...inside) => {
    const made = Object.assign(document.createElement(tag), attributes);
    made.append(...inside);
    return made;
  };
  const words = (node) => (node?.textContent ?? "").replaceAll(/\s+/g, " ").trim();

  article.querySelectorAll(".live-bar, .live-empty").forEach((part) => part.remove());

  // When and where the outputs were recorded, without what can be pressed.
  for (const recorded of article.querySelectorAll("details.recorded")) {
    const stamp = recorded.lastChild.textContent.split(" Press ")[0];
    recorded.replaceWith(make("p", { className: "paper-stamp" }, stamp));
  }
  article.querySelectorAll("details.exercise-question").forEach((question) => (question.open = true));

  const answers = make("section", { className: "paper-answers" });
  for (const fold of article.querySelectorAll(".admonition.dropdown")) {
    const title = words(fold.querySelector(":scope > .admonition-title"));
    if (!ANSWERS.includes(title)) continue;
    const number = answers.children.length + 1;
    const place = `paper-answer-${number}`, asked = `paper-question-${number}`;
    const link = make("a", { href: `#${place}` }, `answer ${number} of this page`);
    fold.replaceWith(make("p", { className: "paper-note", id: asked }, `${title}: see `, link));
    fold.querySelector(":scope > .admonition-title").remove();
    fold.querySelectorAll(".toggle-button").forEach((button) => button.remove());
    const back = make("a", { href: `#${asked}`, id: place }, `${number}.`);
    answers.append(make("div", { className: "paper-answer" }, back, ...fold.childNodes));
  }

  for (const fold of article.querySelectorAll("details:not(.exercise-question), .admonition.dropdown")) {
    if (!fold.isConnected || fold.closest(".paper-answers")) continue;
    const titled = fold.querySelector(":scope > summary, :scope > .admonition-title");
    const title = words(titled?.querySelector(".collapsed") ?? titled);
    const note = make("p", { className: "paper-note" }, `On the page: ${title}`);
    if (title === "The code" || title === "More") fold.remove();
    else fold.replaceWith(note);
  }
  // A cell of which only notes are left is no cell, and neighbours share a line.
  for (const cell of [...article.querySelectorAll(".cell")].reverse()) {
    const notes = cell.querySelectorAll(".paper-note");
    const rest = [...cell.querySelectorAll("pre, img, svg, table")];
    if (rest.length === 0 && !words(cell.querySelector(".cell_output"))) cell.replaceWith(...notes);
  }
  for (const note of article.querySelectorAll(".paper-note:not([id])")) {
    const before = note.previousElementSibling;
    if (!before?.matches(".paper-note:not([id])")) continue;
    before.append(words(note).replace("On the page: ", " · "));
    note.remove();
  }
  if (answers.children.length) {
    answers.prepend(make("h2", {}, "Answers"));
    (article.querySelector(":scope > section") ?? article).append(answers);
  }

  // Listings of a few lines stay on one sheet, with their frame; so do tables of a few rows.
  for (const pre of article.querySelectorAll("pre")) {
    const isShort = pre.textContent.trim().split("\n").length < 16;
    const box = pre.closest(".cell_input") ?? pre.closest(".output, div[class*='highlight-']") ?? pre;
    for (let part = pre; isShort && part !== box.parentElement; part = part.parentElement) {
      part.classList.add("short");
    }
  }
  for (const table of article.querySelectorAll("table")) {
    if (table.rows.length < 16) table.classList.add("short");
  }

  // Pictures of steps have room for what later ones add.
  for (const picture of article.querySelectorAll(".frames-run:not([hidden]) svg")) {
    const { width } = picture.viewBox.baseVal;
    const { y, height } = picture.getBBox();
    picture.setAttribute("viewBox", `0 0 ${width} ${y + height + 4}`);
  }
}
