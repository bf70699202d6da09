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

  // While the study runs the page loads itself again, at the same place and with the same folds open.
  const folds = [...document.querySelectorAll("details")];
  const before = history.state;
  if (before?.open) {
    for (const fold of folds) fold.open = before.open.includes(fold.id);
    scrollTo(0, before.top);
  }
  const seconds = Number(document.body.dataset.reload);
  if (seconds) setTimeout(() => {
    const open = folds.filter((fold) => fold.open).map((fold) => fold.id);
    history.replaceState({ open, top: scrollY }, "");
    location.reload();
  }, 1000 * seconds);

  // On paper nothing is folded away.
  const wereOpen = folds.map(() => false);
  addEventListener("beforeprint", () => folds.forEach((fold, i) => {
    wereOpen[i] = fold.open;
    fold.open = true;
  }));
  addEventListener("afterprint", () => folds.forEach((fold, i) => { fold.open = wereOpen[i]; }));
})();
