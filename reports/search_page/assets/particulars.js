// What was assumed, and how to come to the same report again.
const particulars = (() => {
  const { el } = dom;
  function facts(rows) {
    return el("dl", { class: "facts" }, rows.flatMap(([name, value]) =>
      [el("dt", {}, name), el("dd", {}, value)]));
  }
  function draw(section, record) {
    const best = record.recipes[0];
    const lines = best ? best.assumptions : [];
    if (lines.length) {
      section.append(el("h3", {}, "Taken for granted"),
        el("ul", {}, lines.map((line) => el("li", {}, line))));
    }
    if (best) {
      section.append(el("h3", {}, "What the figures rest on"), facts(Object.entries(best.grades)
        .map(([figure, graded]) => [figure, `${graded.grade}: ${graded.reason}`])));
    }
    if (record.search.proof) section.append(el("h3", {}, "Proof"), el("p", {}, record.search.proof));
    if (record.search.notes.length) {
      section.append(el("h3", {}, "Notes of the search"),
        el("ul", {}, record.search.notes.map((note) => el("li", {}, note))));
    }
    section.append(el("h3", {}, "Provenance"), facts(record.provenance));
  }
  return { draw };
})();
