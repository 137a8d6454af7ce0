"use strict";
(() => {
  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);
  root.classList.add("script");

  // Theme: that of the system, until the switch is used.
  const system = matchMedia("(prefers-color-scheme: dark)");
  const button = byId("theme");
  let chosen = null;
  const applyTheme = () => {
    const dark = chosen === null ? system.matches : chosen;
    root.dataset.theme = dark ? "dark" : "light";
    button.setAttribute("aria-pressed", String(dark));
  };
  button.addEventListener("click", () => {
    chosen = root.dataset.theme !== "dark";
    applyTheme();
  });
  system.addEventListener("change", applyTheme);
  applyTheme();

  // Only what scrolls takes the focus.
  const boxes = document.querySelectorAll(".scroll");
  const markScrollable = () => {
    for (const box of boxes) {
      const scrolls = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
      box.tabIndex = scrolls ? 0 : -1;
    }
  };
  addEventListener("resize", markScrollable);
  addEventListener("load", markScrollable);

  // Copy buttons, where the browser allows it.
  for (const copy of document.querySelectorAll("button.copy")) {
    if (!navigator.clipboard) continue;
    copy.hidden = false;
    copy.addEventListener("click", () => {
      const text = copy.parentElement.querySelector("code").textContent;
      navigator.clipboard.writeText(text).then(
        () => { copy.textContent = "Copied"; },
        () => { copy.textContent = "Not copied: select the text"; });
    });
  }

  const matches = (text, query) => query.split(/\s+/).every((word) => text.includes(word));

  // Findings are elements of the page: those that do not match are hidden.
  const findingSearch = byId("finding-search");
  if (findingSearch) {
    const severity = byId("finding-severity");
    const show = () => {
      const query = findingSearch.value.toLowerCase().trim();
      let count = 0;
      for (const rule of document.querySelectorAll("#finding-list .rule")) {
        const title = rule.querySelector("h3").textContent.toLowerCase();
        let shown = 0;
        for (const place of rule.querySelectorAll(".finding")) {
          const text = title + " " + place.textContent.toLowerCase();
          const visible = matches(text, query) && (!severity.value || place.dataset.severity === severity.value);
          place.hidden = !visible;
          shown += visible ? 1 : 0;
        }
        rule.hidden = shown === 0;
        count += shown;
      }
      byId("finding-count").textContent = count === 1 ? "1 finding shown" : count + " findings shown";
    };
    findingSearch.addEventListener("input", show);
    severity.addEventListener("change", show);
    show();
  }

  // Tensors are data: one page of the rows that match becomes a table.
  const holder = byId("tensor-data");
  if (!holder) return;
  const data = JSON.parse(holder.textContent);
  const [NAME, PLANNED, DEPLOYED, SQNR] = [0, 2, 3, 6];
  const rows = data.rows.map((row) => {
    const cells = row.map((index) => data.texts[index]);
    return { cells, text: cells.join("\n").toLowerCase() };
  });
  const PAGE = 50;
  const numeric = new Set(data.headers.map((header, index) => (header.startsWith("SQNR") ? index : -1)));
  const [search, outcome, dtype, sort] = ["search", "outcome", "dtype", "sort"].map((id) => byId("tensor-" + id));
  const [previous, next, count] = ["previous", "next", "count"].map((id) => byId("tensor-" + id));
  let first = 0;

  const box = byId("tensor-table").querySelector(".scroll");
  const table = box.querySelector("table");
  const body = table.querySelector("tbody");
  const caption = table.querySelector("caption");

  const cellOf = (text, index) => {
    const cell = document.createElement(index === 0 ? "th" : "td");
    if (index === 0) cell.scope = "row";
    if (numeric.has(index)) cell.className = "number";
    cell.textContent = text;
    return cell;
  };
  const order = {
    "lowest SQNR first": (a, b) => (parseFloat(a.cells[SQNR]) || 1e9) - (parseFloat(b.cells[SQNR]) || 1e9),
    "name": (a, b) => (a.cells[NAME] < b.cells[NAME] ? -1 : a.cells[NAME] > b.cells[NAME] ? 1 : 0),
  };
  const show = () => {
    const query = search.value.toLowerCase().trim();
    const found = rows.filter((row) => matches(row.text, query)
      && (!outcome.value || row.cells[DEPLOYED] === outcome.value)
      && (!dtype.value || row.cells[PLANNED] === dtype.value));
    if (sort.value) found.sort(order[sort.value]);
    first = Math.max(0, Math.min(first, Math.floor((found.length - 1) / PAGE) * PAGE));
    const shown = found.slice(first, first + PAGE);
    body.replaceChildren(...shown.map((row) => {
      const line = document.createElement("tr");
      line.append(...row.cells.map(cellOf));
      return line;
    }));
    previous.disabled = first === 0;
    next.disabled = first + PAGE >= found.length;
    const range = found.length ? "rows " + (first + 1) + " to " + (first + shown.length) + " of " : "";
    count.textContent = range + found.length + (found.length === rows.length ? "" : " that match, of " + rows.length);
    caption.textContent = "Planned and deployed";
    markScrollable();
  };
  const restart = () => { first = 0; show(); };
  search.addEventListener("input", restart);
  for (const element of [outcome, dtype, sort]) element.addEventListener("change", restart);
  const turn = (by, button, other) => {
    button.addEventListener("click", () => {
      first += by;
      show();
      if (button.disabled) other.focus();
    });
  };
  turn(-PAGE, previous, next);
  turn(PAGE, next, previous);
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      search.focus();
    }
  });
  show();
})();
