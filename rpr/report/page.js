"use strict";
// Tables are sorted by a click on a heading: numbers by value, empty cells last.
function valueOf(cell) {
  const text = cell.textContent.trim().replaceAll("−", "-").replace(/,(?=\d{3})/g, "");
  const number = parseFloat(text.replace(/^< /, ""));
  return text === "" ? null : isNaN(number) ? text : number;
}

function compare(first, second) {
  if (typeof first === "number" && typeof second === "number") return first - second;
  return String(first).localeCompare(String(second));
}

function sort(table, heading) {
  const order = heading.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", order);
  const rows = [...table.tBodies[0].rows].map((row) => [valueOf(row.cells[heading.cellIndex]), row]);
  rows.sort(([first], [second]) => {
    if (first === null || second === null) return (first === null) - (second === null);
    return order === "ascending" ? compare(first, second) : compare(second, first);
  });
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

for (const table of document.querySelectorAll("table.sortable")) {
  for (const heading of table.querySelectorAll("th")) {
    heading.tabIndex = 0;
    heading.addEventListener("click", () => sort(table, heading));
    heading.addEventListener("keydown", (event) => event.key === "Enter" && sort(table, heading));
  }
}

// Arms are switched off in tables, samples, and the figures whose parts carry their number.
function showArm(box) {
  const parts = document.querySelectorAll(`tr[data-arm="${box.value}"], g[id="arm${box.value}"]`);
  for (const part of parts) part.classList.toggle("off", !box.checked);
}

const boxes = [...document.querySelectorAll(".arms input")];
for (const box of boxes) box.addEventListener("change", () => showArm(box));
for (const button of document.querySelectorAll(".arms button")) {
  button.addEventListener("click", () => boxes.forEach((box) => {
    box.checked = button.value === "all";
    showArm(box);
  }));
}

const filter = document.querySelector(".filter");
filter?.addEventListener("input", () => {
  const [least, most, differ] = filter.querySelectorAll("input");
  for (const sample of document.querySelectorAll(".sample")) {
    const words = Number(sample.dataset.words);
    sample.classList.toggle("off", words < Number(least.value || 0) ||
      words > Number(most.value || Infinity) || (differ.checked && sample.dataset.variants < 2));
  }
});
for (const control of document.querySelectorAll(".arms, .filter")) control.hidden = false;
