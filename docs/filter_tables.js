// A box above each long table that leaves the rows which hold every word typed into it.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("article table")) {
    const rows = [...table.tBodies[0].rows];
    if (rows.length < 25) continue;
    const box = document.createElement("input");
    box.type = "search";
    box.className = "table-filter";
    box.placeholder = `Filter ${rows.length} rows`;
    box.setAttribute("aria-label", "Filter the rows of the table below");
    box.addEventListener("input", () => {
      const words = box.value.toLowerCase().split(/\s+/);
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      }
    });
    (table.closest(".md-typeset__scrollwrap") ?? table).before(box);
  }
});
