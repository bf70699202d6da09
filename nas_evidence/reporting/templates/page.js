"use strict";
(() => {
  // What a mark of a figure stands for, to a mouse and to a finger.
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);
  for (const title of document.querySelectorAll(".figure title")) {
    const words = title.textContent;
    const mark = title.parentElement;
    mark.setAttribute("aria-label", words);
    title.remove(); // the browser would show it a second time
    const show = (event) => {
      tip.textContent = words;
      tip.hidden = false;
      tip.style.left = `${Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8)}px`;
      tip.style.top = `${Math.max(8, event.clientY - tip.offsetHeight - 12)}px`;
    };
    mark.addEventListener("pointerenter", show);
    mark.addEventListener("click", show);
    mark.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") tip.hidden = true; });
  }
  addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

  // One choice of family filters the tables and every figure that knows families.
  const buttons = [...document.querySelectorAll("[data-show-family]")];
  function show(family) {
    for (const button of buttons) {
      button.setAttribute("aria-pressed", String(button.dataset.showFamily === family));
    }
    for (const one of document.querySelectorAll("[data-family]")) {
      one.toggleAttribute("hidden", family !== "" && one.dataset.family !== family);
    }
  }
  for (const button of buttons) button.addEventListener("click", () => show(button.dataset.showFamily));

  const amount = (value) => {
    if (value === undefined || value === null) return "–";
    const size = Math.abs(value);
    if (size >= 1000 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
    if (size < 0.001) return String(Number(value.toPrecision(2)));
    return value.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : 4);
  };
  function cell(text, value) {
    const made = document.createElement("td");
    made.textContent = text;
    if (value !== undefined && value !== null) made.dataset.value = value;
    return made;
  }

  // Any two trials side by side, in the parts of their evidence and layer by layer.
  const terms = document.getElementById("terms");
  if (terms) {
    const trials = JSON.parse(terms.textContent);
    const table = document.getElementById("comparison");
    const chosen = [...table.querySelectorAll("select")];
    const layers = [...document.querySelectorAll("[data-layers]")];
    const fill = () => {
      const shown = chosen.map((select) => trials[select.value]);
      [...table.tBodies[0].rows].forEach((row, line) => {
        const values = shown.map((trial) => trial.cells[line]);
        values.forEach((value, column) => { row.cells[1 + column].textContent = amount(value); });
        if (values.length > 1) {
          const known = values.every((value) => value !== null);
          row.cells[3].textContent = known ? amount(values[0] - values[1]) : "–";
        }
      });
      layers.forEach((own, column) => {
        own.tBodies[0].replaceChildren(...shown[column].layers.map(([group, precision, effective]) => {
          const row = document.createElement("tr");
          row.append(cell(group), cell(amount(precision), precision), cell(amount(effective), effective));
          row.cells[0].className = "text";
          return row;
        }));
      });
    };
    chosen.forEach((select, column) => {
      select.replaceChildren(...trials.map((trial, i) => new Option(trial.label, i, i === column, i === column)));
      select.addEventListener("change", fill);
    });
  }

  // Missing cells stay at the end in both directions.
  function key(row, column) {
    const found = row.cells[column];
    const value = found === undefined ? "" : found.dataset.value ?? found.textContent.trim();
    return ["", "–", "undefined"].includes(value) ? undefined : value;
  }
  function sort(table, column, direction) {
    const number = (value) => Number(value.replaceAll(",", "").replace(/ %$/, ""));
    const compare = (a, b) => {
      if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
      const [p, q] = [number(a), number(b)];
      const order = Number.isNaN(p) || Number.isNaN(q) ? a.localeCompare(b) : p - q;
      return direction === "ascending" ? order : -order;
    };
    const rows = [...table.tBodies[0].rows].map((row) => [key(row, column), row]);
    table.tBodies[0].append(...rows.sort((a, b) => compare(a[0], b[0])).map(([, row]) => row));
  }
  for (const header of document.querySelectorAll("table.sortable thead th")) {
    const button = document.createElement("button"); // takes the keyboard's focus and its keys
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => {
      const direction = header.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
      for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
      header.setAttribute("aria-sort", direction);
      sort(header.closest("table"), header.cellIndex, direction);
    });
  }

  // On paper nothing is folded away.
  const folds = [...document.querySelectorAll("details")];
  const wereOpen = folds.map(() => false);
  addEventListener("beforeprint", () => folds.forEach((fold, i) => {
    wereOpen[i] = fold.open;
    fold.open = true;
  }));
  addEventListener("afterprint", () => folds.forEach((fold, i) => { fold.open = wereOpen[i]; }));
})();
