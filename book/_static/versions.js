// Which version of the book this is, and a way to the others: only on a site that lists them. Its
// tag says which version the page is of, and where the list lies, from the book's own root.

{
  const own = document.currentScript.dataset;
  const root = new URL(document.documentElement.dataset.content_root, location.href);
  const list = new URL(own.list, root);

  async function goTo(version) {
    const start = new URL(version.path, list);
    const same = new URL(location.href.slice(root.href.length), start);
    const answer = await fetch(same, { method: "HEAD" }).catch(() => undefined);
    location.href = answer?.ok ? same : start;
  }

  async function offer() {
    const answer = await fetch(list).catch(() => undefined);
    const versions = answer?.ok ? await answer.json().catch(() => []) : [];
    const place = document.querySelector(".bd-sidebar-primary .bd-links");
    if (versions.length < 2 || !place) return;
    const select = document.createElement("select");
    for (const version of versions) {
      select.add(new Option(version.name, version.path, false, version.name === own.version));
    }
    select.addEventListener("change", () => goTo(versions[select.selectedIndex]));
    select.id = "versions";
    const label = document.createElement("label");
    label.htmlFor = select.id;
    label.append("Version");
    const line = document.createElement("p");
    line.className = "versions";
    line.append(label, " ", select);
    place.before(line);
  }

  if (location.protocol.startsWith("http")) offer();  // of files on a disk there is no list
}
