// The answer first: what to run, what it takes, and how well founded each figure is.
const answer = (() => {
  const { el } = dom;
  function grade(graded) {
    const badge = el("span", { class: "grade", tabindex: 0 }, graded.grade);
    return dom.tip(badge, `${graded.grade}: ${graded.reason}`);
  }
  function card(title, graded, big, ...lines) {
    return el("div", { class: "card" },
      el("h3", {}, title, graded ? grade(graded) : null),
      el("div", { class: "big" }, big), ...lines.map((line) =>
        typeof line === "string" ? el("p", {}, line) : line));
  }
  function bar(label, share, limit) {
    const box = el("div");
    svg.fitted(box, (width) => {
      const drawn = svg.root(width, 12, label);
      drawn.append(svg.rect(0, 2, width, 8, { fill: "var(--line)" }),
        svg.rect(0, 2, width * Math.min(1, share), 8, { fill: limit ? "var(--bad)" : "var(--c0)" }));
      return drawn;
    });
    return box;
  }
  function interval(best) {
    const box = el("div");
    const low = Math.min(best.low_s, best.step_time_s);
    const high = Math.max(best.high_s, best.step_time_s);
    svg.fitted(box, (width) => {
      const x = svg.linear(low, high, 6, width - 6);
      const drawn = svg.root(width, 14, `error bar from ${format.seconds(best.low_s)} to ` +
        format.seconds(best.high_s));
      drawn.append(ranking.whisker(x(best.low_s), x(best.high_s), 7),
        svg.el("circle", { cx: x(best.step_time_s), cy: 7, r: 4.5, fill: "var(--c0)" }));
      return drawn;
    });
    return box;
  }
  function stepCard(best) {
    if (best.low_s === null) {
      return card("Step time", best.grades.time, format.seconds(best.step_time_s),
        "no error bar: this simulator gives none");
    }
    return card("Step time", best.grades.time, format.seconds(best.step_time_s), interval(best),
      `${format.seconds(best.low_s)} to ${format.seconds(best.high_s)} would hold 4 in 5 measured runs`);
  }
  function memoryCard(best, question) {
    const verdict = best.headroom_bytes >= 0
      ? `${format.gib(best.headroom_bytes)} below` : `${format.gib(-best.headroom_bytes)} above`;
    return card("Memory of a GPU", best.grades.memory, format.gib(best.needed_bytes),
      bar(`${format.gib(best.needed_bytes)} of ${format.gib(best.capacity_bytes)} usable`,
        best.needed_bytes / best.capacity_bytes, best.headroom_bytes < 0),
      `${verdict} the ${format.gib(best.capacity_bytes)} usable (${format.percent(question.memory_reserve, 0)} ` +
      `is kept free), on stage ${best.worst_stage}; ` +
      `${format.percent(best.fit_probability, 0)} likely to fit`);
  }
  function cards(best, record) {
    return el("div", { class: "cards" },
      stepCard(best),
      card("MFU", best.grades.time, format.percent(best.mfu),
        bar(`MFU ${format.percent(best.mfu)}`, best.mfu, false),
        (best.mfu_causal === best.mfu ? "" :
          `${format.percent(best.mfu_causal)} with attention counted causal; `) +
        `HFU ${format.percent(best.hfu)}, with what is recomputed`),
      card("Throughput", best.grades.time, `${format.grouped(best.tokens_per_s)} tokens/s`,
        `${format.grouped(best.tokens_per_s_per_gpu)} tokens/s on each of ` +
        `${format.grouped(record.question.num_gpus)} × ${record.question.gpu}`),
      memoryCard(best, record.question),
      card("The run", best.grades.cost,
        `${format.days(best.days)}, ${format.usd(best.cost_of_run_usd)}`.replaceAll(/ (?!\$)/g, "\u00a0"),
        `for ${record.question.tokens}; ${format.usd(best.cost_per_billion_tokens_usd)} per billion tokens, at ` +
        `$${record.question.price_usd_per_hour} per GPU-hour (${best.grades.price.grade})`));
  }
  function evidence(best) {
    const shares = Object.entries(best.evidence_share).filter(([, share]) => share > 0)
      .map(([kind, share]) => `${format.percent(share)} ${kind}`);
    const only = best.estimated_operations;
    return `time is priced from ${shares.join(", ") || "nothing known"}` +
      (only.length ? `; only estimated: ${only.join(", ")}.` : ".");
  }
  function point(label, words) {
    return words ? el("li", {}, el("b", {}, label), words) : null;
  }
  function fits(section, record) {
    const best = record.recipes[0];
    const single = record.objectives.length === 1;
    const head = single ? "Run " : `Best in ${format.name(record.objectives[0])}: `;
    section.append(
      el("h1", {}, head, el("span", { class: "recipe" }, best.words)),
      el("p", {}, best.sentence),
      el("p", { class: "faint" }, record.question.words),
      cards(best, record),
      el("ul", { class: "points" },
        ...record.tight.map((line) => point("Tight:", line)),
        point("Why:", record.why),
        single ? null : point("Front:", `${format.plural(record.pareto.length, "recipe")} of which ` +
          `none is worse than another in all of ${record.objectives.map(format.name).join(", ")}.`),
        point("How sure:", record.distinguishable),
        point("Network:", record.search.network),
        point("Proved:", record.search.claim),
        point("Verified:", checked.sentence(record)),
        point("Evidence:", evidence(best))),
      launch.actions(record));
  }
  function nothingFits(section, record) {
    const [first, ...rest] = record.nothing;
    section.append(
      el("h1", {}, first),
      el("p", { class: "faint" }, record.question.words),
      el("ul", { class: "points" },
        rest.map((line) => point(...(line.match(/^([A-Z][^:]*:) (.*)/)?.slice(1) ?? ["", line]))),
        point("Proved:", record.search.claim)));
    if (record.recipes.length) {
      const closest = record.recipes[0];
      section.append(el("h2", {}, "Closest miss: ", el("span", { class: "recipe" }, closest.words)),
        el("p", {}, closest.sentence),
        el("div", { class: "cards" }, memoryCard(closest, record.question)));
    }
  }
  function draw(section, record) {
    (record.answered ? fits : nothingFits)(section, record);
  }
  return { draw };
})();
