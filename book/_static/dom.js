// Elements and scripts of a page, made by hand.

/** An element with these attributes and children. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Run a script that is no module; resolves when it has run. */
export function loadScript(url) {
  const script = element("script", { src: url });
  document.head.append(script);
  return new Promise((resolve, reject) => {
    script.onload = resolve;
    script.onerror = () => reject(new Error(`${url.pathname} does not arrive`));
  });
}
