// Memory of every stage by what occupies it, against what a recipe may use.
const memory = (() => {
  const { el } = dom;
  function chart(figures, width) {
    const { stages, kinds, capacity_bytes: capacity } = figures;
    const needs = stages.map((stage) => stage.bytes.reduce((sum, each) => sum + each, 0));
    const high = Math.max(capacity, ...needs) / format.GIB * 1.08;
    const height = 300;
    const left = 44;
    const y = svg.linear(0, high, height - 40, 8);
    const step = (width - left - 12) / stages.length;
    const thick = Math.min(56, step * 0.78);
    const drawn = svg.root(width, height, "Memory by stage: " + stages.map((stage, at) =>
      `stage ${stage.stage} ${format.gib(needs[at])}`).join(", ") +
      `; usable ${format.gib(capacity)}`);
    drawn.append(...svg.yAxis(y, left, width - 12, (tick) => format.short(tick, 4)),
      svg.text(-(height - 40) / 2, 12, "GiB", { "text-anchor": "middle", transform: "rotate(-90)" }),
      svg.text((left + width) / 2, height - 4, "pipeline stage", { "text-anchor": "middle" }));
    const every = Math.ceil((22 * stages.length) / (width - left));
    stages.forEach((stage, at) => {
      const centre = left + step * (at + 0.5);
      const group = svg.el("g", { class: "row" });
      group.append(svg.rect(centre - step / 2, 8, step, height - 48, { class: "hit" }));
      let from = 0;
      stage.bytes.forEach((bytes, kind) => {
        const to = from + bytes / format.GIB;
        group.append(svg.rect(centre - thick / 2, y(to), thick, y(from) - y(to),
          { fill: svg.fill(svg.nth(kind)), class: "edge", "pointer-events": "none" }));
        from = to;
      });
      if (at % every === 0) {
        group.append(svg.text(centre, height - 24, String(stage.stage), { "text-anchor": "middle",
          class: stage.stage === figures.worst_stage ? "strong" : "faint" }));
      }
      drawn.append(dom.tip(group, () => words(stage, kinds, needs[at], capacity)));
    });
    const limit = y(capacity / format.GIB);
    drawn.append(svg.line(left, limit, width - 12, limit, "limit"),
      svg.text(width - 12, limit - 5, `usable ${format.gib(capacity)}`,
        { "text-anchor": "end", class: "limit-label strong" }));
    return drawn;
  }
  function words(stage, kinds, need, capacity) {
    const parts = stage.bytes.map((bytes, kind) => `${kinds[kind]}: ${format.unit.bytes(bytes)}`);
    return [`stage ${stage.stage}: ${format.gib(need)}, ${format.gib(capacity - need)} headroom`, ...parts]
      .join("\n");
  }
  function details(figures) {
    const heads = ["stage", ...figures.kinds, "total"];
    const rows = figures.stages.map((stage) => [String(stage.stage),
      ...stage.bytes.map((bytes) => (bytes / format.GIB).toFixed(2)),
      (stage.bytes.reduce((sum, each) => sum + each, 0) / format.GIB).toFixed(2)]);
    return el("details", {}, el("summary", { class: "small" }, "the same as a table, GiB"),
      dom.table(heads, rows, heads.map((_, at) => at)));
  }
  function draw(section, record) {
    const box = el("div");
    const holder = el("div");
    let at = 0;
    const redraw = svg.fitted(box, (width) => chart(record.memory[at], width));
    const show = (next) => {
      at = next;
      redraw();
      dom.clear(holder, details(record.memory[at]));
    };
    const { label, select } = dom.choice("of", record.recipes.map((each) =>
      `#${each.rank} ${each.words}`), 0, show);
    selection.onChoose((number) => {
      const found = record.recipes.findIndex((each) => each.number === number);
      if (found >= 0) {
        select.value = String(found);
        show(found);
      }
    });
    show(0);
    section.append(el("p", {}, "What each stage's worst rank needs of its GPU, with what the allocator " +
        "holds beyond live tensors (fragmentation). The dashed line is the GPU's memory less the " +
        `${format.percent(record.question.memory_reserve, 0)} that is kept free.`),
      el("div", { class: "controls" }, label),
      svg.legend(record.memory[0].kinds.map((kind, index) => [svg.nth(index), kind])), box, holder);
  }
  return { draw };
})();
