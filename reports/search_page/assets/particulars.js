// What was assumed, what tracing found, and how to come to the same report again.
const particulars = (() => {
  const { el } = dom;
  function checked(record) {
    return record.checked.map((check, at) => {
      const head = el("h3", {}, `Traced #${at + 1}: `, el("span", { class: "recipe" }, check.words));
      if (check.problem) return [head, el("p", {}, `Not verified: ${check.problem}`)];
      const rows = check.rows.map((row) => [row.label, format.unit[row.unit](row.builtin),
        format.unit[row.unit](row.traced), difference(row)]);
      return [head,
        el("p", { class: "small" }, `Whole ranks were traced on virtual GPUs for ${check.micro_batches} of ` +
          `${check.step_micro_batches} micro-batches and replayed; both sources side by side.`),
        dom.table(["", "built in", "traced", "difference"], rows, [1, 2, 3]),
        ...check.notes.map((note) => el("p", { class: "small" }, note)),
        ...check.differences.map(({ rank, words }) => el("details", {},
          el("summary", { class: "small" }, `rank ${rank}: ${format.plural(words.length, "operation")} ` +
            "that only one of them has"),
          el("ul", {}, words.map((each) => el("li", { class: "small" }, each)))))];
    }).flat();
  }
  function difference({ builtin, traced }) {
    if (builtin === traced) return "equal";
    return builtin ? format.change(traced / builtin - 1) : "only traced";
  }
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
    section.append(...checked(record));
    if (record.search.proof) section.append(el("h3", {}, "Proof"), el("p", {}, record.search.proof));
    if (record.search.notes.length) {
      section.append(el("h3", {}, "Notes of the search"),
        el("ul", {}, record.search.notes.map((note) => el("li", {}, note))));
    }
    section.append(el("h3", {}, "Provenance"), facts(record.provenance));
  }
  return { draw };
})();
