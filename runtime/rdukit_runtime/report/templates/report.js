"use strict";
// Tables are sorted by their headings' buttons. The flame graph is one stop of the keyboard: arrows move, Enter zooms.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const heading = button.parentElement, table = heading.closest("table"), body = table.tBodies[0];
    const column = heading.cellIndex, falls = heading.getAttribute("aria-sort") !== "descending";
    const value = row => {
      const cell = row.cells[column];
      return cell.dataset.n === undefined ? cell.textContent.trim() : Number(cell.dataset.n);
    };
    const rows = Array.from(body.rows, row => [value(row), row]);
    rows.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (falls ? -1 : 1));
    for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", falls ? "descending" : "ascending");
    body.remove();  // moving rows of a table that is not shown is quicker
    body.append(...rows.map(([, row]) => row));
    table.append(body);
  });
}
const flame = document.querySelector(".flame");
if (flame) {
  const said = document.getElementById("flame-said");
  const boxes = Array.from(flame.querySelectorAll("button"), element => ({
    element, depth: Number(element.dataset.d), left: Number(element.dataset.l), width: Number(element.dataset.w),
  }));
  const small = 1e-6;
  const inside = (box, outer) => box.left >= outer.left - small && box.left + box.width <= outer.left + outer.width + small;
  const zoom = outer => {
    for (const box of boxes) {
      const shown = inside(box, outer) || (box.depth < outer.depth && inside(outer, box));
      box.element.hidden = !shown;
      const left = Math.max((box.left - outer.left) / outer.width * 100, 0);
      box.element.style.left = left + "%";
      box.element.style.width = Math.min(box.width / outer.width * 100, 100 - left) + "%";
    }
  };
  const visit = box => {
    for (const other of boxes) other.element.tabIndex = -1;
    box.element.tabIndex = 0;
    said.textContent = box.element.title;
  };
  const next = (box, key) => {
    const shown = boxes.filter(other => !other.element.hidden);
    if (key === "ArrowUp") return shown.find(other => other.depth === box.depth - 1 && inside(box, other));
    if (key === "ArrowDown") return shown.find(other => other.depth === box.depth + 1 && inside(other, box));
    const row = shown.filter(other => other.depth === box.depth).sort((a, b) => a.left - b.left);
    return row[row.indexOf(box) + (key === "ArrowRight" ? 1 : -1)];
  };
  for (const box of boxes) {
    box.element.addEventListener("focus", () => visit(box));
    box.element.addEventListener("mouseenter", () => { said.textContent = box.element.title; });
    box.element.addEventListener("click", () => zoom(box));
    box.element.addEventListener("keydown", event => {
      if (event.key === "Escape") zoom(boxes[0]);
      if (!event.key.startsWith("Arrow")) return;
      event.preventDefault();
      const other = next(box, event.key);
      if (other) other.element.focus();
    });
  }
}
