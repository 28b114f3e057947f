// Recipes that were traced afterwards: both sources side by side.
const checked = (() => {
  const { el } = dom;
  function tables(record) {
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
  // How far the first recipe's traced step is from the built-in one.
  function sentence(record) {
    const [first] = record.checked;
    if (!first) return null;
    if (first.problem) return `#1 could not be verified: ${first.problem}`;
    const [step] = first.rows;
    return `traced on virtual GPUs, #1 takes ${format.unit.s(step.traced)} for ${first.micro_batches} ` +
      `micro-batches, ${difference(step)} against the built-in source.`;
  }
  return { tables, sentence };
})();
