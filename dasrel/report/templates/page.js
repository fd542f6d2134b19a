"use strict";
// Tables sort by a click on a heading, filter as one types, and are downloaded as CSV. Without this script all is read.
(function () {
  const raw = (cell) => (cell.dataset.v === undefined ? cell.textContent : cell.dataset.v);
  const quoted = (text) => (/[",\r\n]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text);

  function compare(a, b) {
    const x = Number(a), y = Number(b);
    if (a === "" || b === "") return a === b ? 0 : a === "" ? 1 : -1; // empty cells come last
    if (!Number.isNaN(x) && !Number.isNaN(y)) return x - y;
    return a.localeCompare(b, undefined, { numeric: true });
  }

  function sortable(block, body, heads) {
    heads.forEach((head, at) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = Array.from(body.rows, (row) => [raw(row.cells[at]), row]);
        rows.sort((a, b) => (down && a[0] !== "" && b[0] !== "" ? compare(b[0], a[0]) : compare(a[0], b[0])));
        body.append(...rows.map((pair) => pair[1]));
      });
    });
  }

  function filterable(block, body) {
    const input = block.querySelector("input");
    if (!input) return;
    const count = block.querySelector(".count");
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let left = 0;
      for (const row of body.rows) {
        const text = Array.from(row.cells, (cell) => cell.textContent + " " + raw(cell)).join(" ").toLowerCase();
        row.hidden = !wanted.every((word) => text.includes(word));
        left += row.hidden ? 0 : 1;
      }
      count.textContent = wanted.length ? left + " of " + body.rows.length + " rows" : "";
    });
  }

  function download(block, body, names) {
    block.querySelector(".csv").addEventListener("click", () => {
      const rows = Array.from(body.rows).filter((row) => !row.hidden);
      const lines = [names, ...rows.map((row) => Array.from(row.cells, raw))];
      const text = lines.map((line) => line.map(quoted).join(",")).join("\n") + "\n";
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
      link.download = block.dataset.name + ".csv";
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    });
  }

  for (const block of document.querySelectorAll(".table")) {
    const body = block.querySelector("tbody");
    const heads = Array.from(block.querySelectorAll("th"));
    const names = heads.map((head) => head.textContent);
    sortable(block, body, heads);
    filterable(block, body);
    download(block, body, names);
    block.querySelector(".tools").hidden = false;
  }
  if (window.matchMedia("(max-width: 60rem)").matches) document.querySelector("nav details").open = false;
})();
