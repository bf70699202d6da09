"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const mouse = matchMedia("(hover: hover)").matches;
  const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function themed(layout) {
    const copy = structuredClone(layout);
    Object.assign(copy, {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: ink("--ink"), family: "system-ui, sans-serif", size: 13 },
      hovermode: "closest",
      dragmode: mouse ? "zoom" : false, // a finger scrolls the page
      modebar: { bgcolor: "rgba(0,0,0,0)", color: ink("--line"), activecolor: ink("--accent") },
      hoverlabel: { bgcolor: ink("--raised"), bordercolor: ink("--line"), font: { color: ink("--ink") }, align: "left" },
    });
    for (const key of Object.keys(copy)) {
      if (/^[xy]axis\d*$/.test(key)) {
        Object.assign(copy[key], { gridcolor: ink("--line"), zerolinecolor: ink("--faint"), linecolor: ink("--line") });
      }
    }
    return copy;
  }

  // Nothing leaves the page: plotly's own button to upload a figure is off.
  const config = {
    responsive: true,
    displaylogo: false,
    displayModeBar: mouse && innerWidth > 600,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    showSendToCloud: false,
    plotlyServerURL: "",
  };
  function draw() {
    for (const [name, figure] of Object.entries(figures)) {
      Plotly.react(name, figure.data, themed(figure.layout), config);
    }
  }
  draw();
  dark.addEventListener("change", draw);

  // One choice of family filters the ranking and every figure that knows families.
  const buttons = [...document.querySelectorAll("[data-show-family]")];
  function show(family) {
    for (const button of buttons) {
      button.setAttribute("aria-pressed", String(button.dataset.showFamily === family));
    }
    for (const row of document.querySelectorAll("tr[data-family]")) {
      row.hidden = family !== "" && row.dataset.family !== family;
    }
    for (const figure of Object.values(figures)) {
      for (const trace of figure.data) {
        if (trace.meta) trace.visible = family === "" || trace.meta.family === family;
      }
    }
    draw();
  }
  for (const button of buttons) button.addEventListener("click", () => show(button.dataset.showFamily));

  // Two architectures side by side, in the parts of their evidence.
  const terms = document.getElementById("terms");
  if (terms) {
    const values = JSON.parse(terms.textContent);
    const table = document.getElementById("comparison");
    const chosen = [...table.querySelectorAll("select")];
    const amount = (value) => {
      if (value === undefined || value === null) return "–";
      if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
      if (Math.abs(value) >= 0.001) return value.toFixed(4);
      return value === 0 ? "0" : value.toPrecision(2);
    };
    const fill = () => {
      [...table.tBodies[0].rows].forEach((row, line) => {
        const shown = chosen.map((select) => values[select.value][line]);
        shown.forEach((value, column) => { row.cells[1 + column].textContent = amount(value); });
        if (shown.length > 1) {
          const known = shown.every((value) => value !== null);
          row.cells[3].textContent = known ? amount(shown[0] - shown[1]) : "–";
        }
      });
    };
    for (const select of chosen) select.addEventListener("change", fill);
  }

  // Missing cells have no data-value and stay at the end in both directions.
  function sort(table, column, direction) {
    const body = table.tBodies[0];
    const key = (row) => row.cells[column].dataset.value;
    const compare = (a, b) => {
      if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
      const [p, q] = [Number(a), Number(b)];
      const order = Number.isNaN(p) || Number.isNaN(q) ? a.localeCompare(b) : p - q;
      return direction === "ascending" ? order : -order;
    };
    body.append(...[...body.rows].sort((a, b) => compare(key(a), key(b))));
  }
  for (const header of document.querySelectorAll("table.sortable th")) {
    header.querySelector("button").addEventListener("click", () => {
      const direction = header.ariaSort === "ascending" ? "descending" : "ascending";
      for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
      header.ariaSort = direction;
      sort(header.closest("table"), header.cellIndex, direction);
    });
  }
})();
