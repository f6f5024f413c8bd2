// A field above the tables of a page: rows stay that have all typed words; headings and tables without rows are hidden.
document.addEventListener("DOMContentLoaded", () => {
  const place = document.getElementById("filter");
  if (!place) return;
  const field = Object.assign(document.createElement("input"), {
    type: "search", placeholder: "Filter: replay reference", size: 48,
  });
  place.append(field);
  const tables = [...place.parentElement.querySelectorAll("table")];
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const table of tables) {
      let shown = 0;
      for (const row of table.tBodies[0].rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        shown += !row.hidden;
      }
      const outer = table.closest(".md-typeset__scrollwrap") ?? table;
      outer.hidden = !shown;
      if (outer.previousElementSibling?.tagName === "H2") outer.previousElementSibling.hidden = !shown;
    }
  });
});
