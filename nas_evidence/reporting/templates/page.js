"use strict";
(() => {
  // What a mark of a figure stands for, to a mouse and to a finger.
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);

  // A mark of a trial opens its row: at once for a mouse, at the second tap for a finger.
  let finger = false, tapped;
  function open(mark, event) {
    const row = document.getElementById(`trial-${mark.dataset.trial}`);
    const first = finger && tapped !== mark;
    tapped = mark;
    if (!row || first) return false;
    tip.hidden = true;
    reveal(row);
    return true;
  }
  function reveal(row) {
    if (row.hidden) show(""); // of a family that is filtered away
    for (let fold = row.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    for (const one of document.querySelectorAll("tr.shown")) one.classList.remove("shown");
    row.classList.add("shown");
    row.tabIndex = -1;
    row.scrollIntoView({ block: "center" });
    row.focus({ preventScroll: true });
  }
  // So does a link to it, and one to a section that is folded away.
  addEventListener("click", (event) => {
    const to = event.target.closest('a[href^="#"]');
    const found = to && document.getElementById(to.hash.slice(1));
    if (!found) return;
    event.preventDefault();
    if (found.tagName === "TR") return reveal(found);
    found.open = true;
    found.scrollIntoView();
    found.querySelector("summary")?.focus({ preventScroll: true });
  });

  for (const title of document.querySelectorAll(".figure title")) {
    const words = title.textContent;
    const mark = title.parentElement;
    mark.setAttribute("aria-label", words);
    title.remove(); // the browser would show it a second time
    const show = (event) => {
      if (event.type === "click" && open(mark, event)) return;
      tip.textContent = words;
      tip.hidden = false;
      tip.style.left = `${Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8)}px`;
      tip.style.top = `${Math.max(8, event.clientY - tip.offsetHeight - 12)}px`;
    };
    mark.addEventListener("pointerenter", show);
    mark.addEventListener("pointerdown", (event) => { finger = event.pointerType === "touch"; });
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

  // A command is copied whole.
  for (const button of document.querySelectorAll("button.copy")) {
    const command = button.previousElementSibling;
    button.hidden = false;
    button.addEventListener("click", async () => {
      getSelection().selectAllChildren(command); // what is left to do by hand, if it is refused
      try {
        await navigator.clipboard.writeText(command.textContent);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }

  // A table that is larger than its box says so, and the keyboard can scroll it.
  const boxes = new ResizeObserver((seen) => seen.forEach(({ target: box }) => {
    const wide = box.scrollWidth > box.clientWidth + 1, tall = box.scrollHeight > box.clientHeight + 1;
    const more = [wide ? "sideways for more columns" : "", tall ? "down for more rows" : ""].filter(Boolean);
    const hint = box.nextElementSibling;
    hint.hidden = !more.length;
    hint.textContent = `This table goes on: scroll it ${more.join(" and ")}.`;
    if (more.length) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }));
  for (const box of document.querySelectorAll(".scroll")) {
    const hint = document.createElement("p");
    hint.className = "more-there";
    hint.hidden = true;
    box.after(hint);
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", box.closest("details")?.querySelector("summary").textContent.trim() ?? "Table");
    boxes.observe(box);
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
