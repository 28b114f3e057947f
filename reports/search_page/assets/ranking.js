// The best recipes with their error bars, and which cannot be distinguished from the first.
const ranking = (() => {
  const { el } = dom;
  const ROW = 24;
  function whisker(low, high, y) {
    return svg.el("path", { class: "whisker",
      d: `M${low},${y}H${high}M${low},${y - 4}v8M${high},${y - 4}v8` });
  }
  const tie = (recipe) => (recipe.tied && recipe.rank > 1 ? "≈\u00a0#1" : "");
  function errorBars(recipes) {
    const holder = el("div");
    const lows = recipes.map((each) => each.low_s ?? each.step_time_s);
    const highs = recipes.map((each) => each.high_s ?? each.step_time_s);
    const steps = recipes.map((each) => each.step_time_s);
    const low = Math.min(...lows, ...steps);
    const high = Math.max(...highs, ...steps);
    const room = (high - low) * 0.04 || high * 0.05;
    svg.fitted(holder, (width) => {
      const height = recipes.length * ROW + 44;
      const x = svg.linear(low - room, high + room, 44, width - 70);
      const drawn = svg.root(width, height, "Step times with error bars of the recipes shown; " +
        "the table of recipes has the figures");
      drawn.append(...svg.xAxis(x, height - 40, 4, (tick) => format.short(tick, 4)),
        svg.text((x(x.low) + x(x.high)) / 2, height - 6, "step time, s", { "text-anchor": "middle" }));
      recipes.forEach((recipe, at) => {
        const y = 4 + at * ROW + ROW / 2;
        const row = svg.el("g", { class: "row", tabindex: 0, role: "button",
          "aria-label": words(recipe) });
        row.append(svg.rect(0, y - ROW / 2, width, ROW, { class: "hit" }),
          svg.text(36, y + 4, `#${recipe.rank}`, { "text-anchor": "end",
            class: at === 0 ? "strong" : null }),
          recipe.low_s === null ? "" : whisker(x(recipe.low_s), x(recipe.high_s), y),
          svg.el("circle", { cx: x(recipe.step_time_s), cy: y, r: 5, fill: at === 0
            ? "var(--c5)" : "var(--c0)", stroke: "var(--paper)" }),
          svg.text(width - 62, y + 4, tie(recipe), { class: "faint" }));
        main.selectable(row, recipe.number);
        drawn.append(dom.tip(row, words(recipe)));
      });
      return drawn;
    });
    return dom.figure("Error bars of the best recipes",
      "4 in 5 measured runs would lie within; ≈ #1: cannot be distinguished from the first", holder);
  }
  function words(recipe) {
    const bar = recipe.low_s === null ? ""
      : `\n${format.seconds(recipe.low_s)} to ${format.seconds(recipe.high_s)}`;
    const lead = recipe.rank === 1 ? ""
      : `\n${format.percent(recipe.lead_share)} behind #1` + (recipe.tie_share === null ? ""
        : `; distinguished above ${format.percent(recipe.tie_share)}`);
    return `#${recipe.rank} ${recipe.words}\nstep ${format.seconds(recipe.step_time_s)}${bar}${lead}`;
  }
  function list(recipes, fit) {
    // What cannot run takes no time and costs nothing.
    const heads = ["#", "recipe", ...(fit ? ["step", "MFU", "tokens/s per GPU"] : []), "memory",
                   ...(fit ? ["headroom", "run", ""] : ["lacks"])];
    return dom.table(heads, recipes.map((recipe) => [
      String(recipe.rank),
      el("button", { type: "button", class: "recipe small pick",
        on: { click: () => selection.choose(recipe.number) } }, recipe.words),
      ...(fit ? [format.seconds(recipe.step_time_s), format.percent(recipe.mfu),
        format.grouped(recipe.tokens_per_s_per_gpu)] : []),
      format.gib(recipe.needed_bytes), format.gib(Math.abs(recipe.headroom_bytes)),
      ...(fit ? [format.usd(recipe.cost_of_run_usd),
        [tie(recipe), recipe.note].filter(Boolean).join(", ")] : []),
    ]), [0, 2, 3, 4, 5, 6, 7]);
  }
  return { errorBars, list, whisker, words };
})();
