// Where the step goes: a waterfall from the best recipe to a rival, and bars of all recipes shown.
const breakdown = (() => {
  const { el } = dom;
  const FILL = {
    compute: "blue", tp_communication: "orange", cp_communication: "olive",
    ep_communication: "pink", pp_communication: "sky", dp_communication: "green",
    overlap_slowdown: "red", stragglers: "grey", bubble: "idle", optimizer: "rose", host: "slate",
    waiting_for_data: "idle",
  };
  const fillOf = (part) => FILL[part] || "azure";
  const ROW = 26;

  function waterfall(record) {
    const [best] = record.recipes;
    const box = el("div");
    const said = el("p", { class: "small faint" });
    let redraw = null;
    let at = record.rival;
    function draw(width) {
      const rival = record.recipes[at];
      const bars = record.waterfalls[at];
      const edges = [best.step_time_s];
      for (const bar of bars) edges.push(edges[edges.length - 1] + bar.seconds);
      const low = Math.min(...edges);
      const high = Math.max(...edges, rival.step_time_s);
      // The axis does not begin at zero, or differences of a per cent could not be seen.
      const room = Math.max((high - low) * 0.25, high * 1e-4);
      const left = Math.min(210, width * 0.36);
      const x = svg.linear(Math.max(0, low - room), high + room, left, width - 66);
      const height = (bars.length + 2) * ROW + 40;
      const drawn = svg.root(width, height, `Waterfall from ${best.words} to ${rival.words}: ` +
        bars.map((bar) => `${bar.label} ${signed(bar.seconds)}`).join(", "));
      drawn.append(...svg.xAxis(x, height - 34, 0, (tick) => format.short(tick, 5), width < 500 ? 3 : 5),
        svg.text((left + width - 66) / 2, height - 3, "step time, s", { "text-anchor": "middle" }));
      const row = (y, label, from, to, fill, words, detail) => {
        const group = svg.el("g", { class: "row" });
        group.append(svg.rect(0, y, width, ROW, { class: "hit" }),
          svg.text(left - 8, y + 17, label, { "text-anchor": "end" }),
          svg.rect(Math.min(x(from), x(to)), y + 4, Math.max(1.5, Math.abs(x(to) - x(from))),
            ROW - 8, fill),
          svg.text(Math.max(x(from), x(to)) + 5, y + 17, words));
        drawn.append(dom.tip(group, detail));
      };
      row(0, "#1, the best", x.low, best.step_time_s, { fill: "var(--c0)" },
        format.seconds(best.step_time_s), best.words);
      bars.forEach((bar, index) => {
        const y = (index + 1) * ROW;
        drawn.append(svg.line(x(edges[index]), y - 4, x(edges[index]), y + 4, "link"));
        const direction = bar.seconds < 0 ? "less" : "more";
        row(y, bar.label, edges[index], edges[index + 1], { class: direction },
          signed(bar.seconds), `#${rival.rank} spends ${format.seconds(Math.abs(bar.seconds))} ` +
          `${direction} on ${bar.label} than #1`);
      });
      row((bars.length + 1) * ROW, `#${rival.rank}`, x.low, rival.step_time_s,
        { fill: "var(--c6)" }, format.seconds(rival.step_time_s), rival.words);
      said.textContent = `#${rival.rank} ${rival.words} takes ` +
        `${signed(rival.step_time_s - best.step_time_s)} a step (` +
        `${format.change(rival.step_time_s / best.step_time_s - 1)}). ▲ orange: more than #1, ` +
        "▼ green: less. The axis does not begin at zero.";
      return drawn;
    }
    const options = record.recipes.slice(1).map((each) => `#${each.rank} ${each.words}` +
      (each.layout === best.layout ? " (same layout, other switches)" : ""));
    const { label } = dom.choice("From #1 to", options, at - 1, (chosen) => {
      at = chosen + 1;
      redraw();
    });
    redraw = svg.fitted(box, draw);
    return dom.figure("From the best to a runner-up", "along the critical path",
      el("div", { class: "controls" }, label), box, said);
  }
  const signed = (seconds) => `${seconds < 0 ? "▼ −" : "▲ +"}${format.seconds(Math.abs(seconds))}`;

  function stacked(record) {
    const box = el("div");
    const longest = Math.max(...record.recipes.map((each) => each.step_time_s));
    svg.fitted(box, (width) => {
      const left = 44;
      const x = svg.linear(0, longest, left, width - 66);
      const height = record.recipes.length * ROW + 40;
      const drawn = svg.root(width, height, "Where the step of every recipe goes; hover for seconds");
      drawn.append(...svg.xAxis(x, height - 36, 0, (tick) => format.short(tick, 4)),
        svg.text((left + width - 66) / 2, height - 5, "step time, s", { "text-anchor": "middle" }));
      record.recipes.forEach((recipe, at) => {
        const y = at * ROW;
        const group = svg.el("g", { class: "row", tabindex: 0, role: "button",
          "aria-label": words(recipe, record.parts) });
        group.append(svg.rect(0, y, width, ROW, { class: "hit" }),
          svg.text(left - 8, y + 17, `#${recipe.rank}`, { "text-anchor": "end" }));
        let from = 0;
        for (const { name } of record.parts) {
          const seconds = recipe.breakdown_s[name] || 0;
          group.append(svg.rect(x(from), y + 4, x(from + seconds) - x(from), ROW - 8,
            { fill: svg.fill(fillOf(name)), class: "edge", "pointer-events": "none" }));
          from += seconds;
        }
        group.append(svg.text(x(recipe.step_time_s) + 5, y + 17, format.seconds(recipe.step_time_s)));
        main.selectable(group, recipe.number);
        drawn.append(dom.tip(group, () => words(recipe, record.parts)));
      });
      return drawn;
    });
    const named = record.parts.map(({ name, label }) => [fillOf(name), label]);
    return dom.figure("Where the step goes", "critical stage of each recipe", svg.legend(named), box,
      details(record));
  }
  function words(recipe, parts) {
    const lines = parts.filter(({ name }) => recipe.breakdown_s[name])
      .map(({ name, label }) => `${label}: ${format.seconds(recipe.breakdown_s[name])} ` +
        `(${format.percent(recipe.breakdown_s[name] / recipe.step_time_s)})`);
    return [`#${recipe.rank} ${recipe.words}`, ...lines].join("\n");
  }
  function details(record) {
    const heads = ["#", ...record.parts.map((part) => part.label), "step"];
    const rows = record.recipes.map((recipe) => [String(recipe.rank),
      ...record.parts.map(({ name }) => format.seconds(recipe.breakdown_s[name] || 0)),
      format.seconds(recipe.step_time_s)]);
    return el("details", {}, el("summary", { class: "small" }, "the same as a table"),
      dom.table(heads, rows, heads.map((_, at) => at)));
  }
  function draw(section, record) {
    if (record.why === null) {
      section.append(el("p", {}, "For several objectives no recipe is the best; the waterfall leads " +
        "from the first of the front to any other."));
    }
    const charts = el("div", { class: "charts" });
    section.append(charts);
    if (record.recipes.length > 1) charts.append(waterfall(record));
    charts.append(stacked(record));
    section.append(ranking.list(record.recipes, true));
  }
  return { draw };
})();
