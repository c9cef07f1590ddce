// Sorting, filtering and links to items. The page is whole and readable without it.
"use strict";

const form = document.getElementById("filter");
const body = document.querySelector("#table tbody");
const rows = [...body.rows];
const articles = new Map(rows.map((row) => [row, document.getElementById(row.dataset.item)]));
const words = new Map(
  rows.map((row) => [row, `${row.textContent} ${articles.get(row).textContent}`.toLowerCase()]),
);

function filter() {
  const wanted = form.elements;
  const text = wanted.q.value.trim().toLowerCase();
  let shown = 0;
  for (const row of rows) {
    const meant =
      (!wanted.verdict.value || row.dataset.verdict === wanted.verdict.value) &&
      (!wanted.target.value || row.dataset.target === wanted.target.value) &&
      text.split(/\s+/).every((word) => words.get(row).includes(word));
    row.hidden = articles.get(row).hidden = !meant;
    shown += meant;
  }
  document.getElementById("count").textContent = `${shown} of ${rows.length} items shown`;
}

// The filter lives in the fragment: #verdict=regressed&target=…&q=…, to be sent to somebody.
function remember() {
  const given = [...new FormData(form)].filter(([, value]) => value);
  const fragment = new URLSearchParams(given).toString();
  history.replaceState(null, "", fragment ? `#${fragment}` : "#");
}

// What a fragment means: an item, which is shown whatever the filter says, or a filter.
function follow() {
  const fragment = location.hash.slice(1);
  const place = fragment && document.getElementById(fragment);
  if (place) {
    if (place.hidden) {
      form.reset();
      filter();
    }
    const folded = place.querySelector("details");
    if (folded) {
      folded.open = true;
      place.scrollIntoView();
    }
    return;
  }
  const given = new URLSearchParams(fragment);
  for (const name of ["q", "verdict", "target"]) {
    form.elements[name].value = given.get(name) || "";
  }
  filter();
}

// Cells that know nothing come last, whichever way the column is sorted.
function sort(column, down) {
  const numeric = column.classList.contains("number");
  const key = (row) => {
    const cell = row.cells[column.cellIndex];
    return numeric ? cell.dataset.sort : cell.textContent.trim();
  };
  const order = (a, b) => {
    const [one, other] = [key(a), key(b)];
    if (!one || !other) return !one - !other;
    const step = numeric ? one - other : one.localeCompare(other, "en", { numeric: true });
    return down ? -step : step;
  };
  for (const head of column.parentNode.cells) head.removeAttribute("aria-sort");
  column.setAttribute("aria-sort", down ? "descending" : "ascending");
  body.append(...rows.sort(order));
}

for (const button of document.querySelectorAll("#table thead button")) {
  const column = button.closest("th");
  button.disabled = false;
  button.addEventListener("click", () => {
    sort(column, column.getAttribute("aria-sort") === "ascending");
  });
}

form.hidden = false;
form.addEventListener("submit", (event) => event.preventDefault());
for (const kind of ["input", "change"]) {
  form.addEventListener(kind, () => (filter(), remember()));
}
// The fields are empty only once this event is over.
form.addEventListener("reset", () => setTimeout(() => (filter(), remember())));
addEventListener("hashchange", follow);
filter();
follow();

// A box is a stop for the keyboard only while there is something in it to scroll to.
const boxes = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    target.tabIndex = target.scrollWidth > target.clientWidth ? 0 : -1;
  }
});
for (const box of document.querySelectorAll(".scroll")) boxes.observe(box);

// On paper everything is open; afterwards what was folded is folded again.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  for (const one of folded) one.open = true;
});
addEventListener("afterprint", () => {
  for (const one of folded) one.open = false;
});
