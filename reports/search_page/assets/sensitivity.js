// What the answer leans on: a bar for everything assumed, the longest first.
const sensitivity = (() => {
  const { el } = dom;
  const ROW = 40;
  function tornado(record) {
    const { base, rows, compared } = record.sensitivity;
    // GPUs may cost nothing; their time still counts.
    const [figure, what] = base.cost_of_run_usd ? ["cost_of_run_usd", "run's cost"]
      : ["step_time_s", "step's time"];
    const share = (end) => end[figure] / base[figure] - 1;
    const label = (end) => `${end.label}: ${format.change(share(end))}${lost(end) ? " ⚑" : ""}`;
    const reach = (row) => Math.max(...row.ends.map((end) => Math.abs(share(end))));
    const sorted = [...rows].sort((a, b) => reach(b) - reach(a));
    const box = el("div");
    svg.fitted(box, (width) => {
      // Room at each side for the longest words beside a bar, at some seven pixels a letter.
      const ends = sorted.flatMap((row) => row.ends);
      const room = 10 + 6.6 * Math.max(...ends.map((end) => label(end).length));
      const x = svg.linear(Math.min(-0.01, ...ends.map(share)), Math.max(0.01, ...ends.map(share)),
        room, width - room);
      const height = sorted.length * ROW + 40;
      const drawn = svg.root(width, height, `Change of the ${what}: ` + sorted.map((row) =>
        `${row.name} ${row.ends.map((end) => `${end.label} ${format.change(share(end))}`).join(", ")}`).join("; "));
      drawn.append(...svg.xAxis(x, height - 36, 0, 
        (tick) => (tick ? format.change(tick).replace(".0", "") : "0"), (width - 2 * room) / 60),
        svg.text(width / 2, height - 5, `change of the ${what}`, { "text-anchor": "middle" }),
        svg.line(x(0), 0, x(0), height - 36, "axis"));
      sorted.forEach((row, at) => {
        const y = at * ROW;
        const group = svg.el("g", { class: "row" });
        group.append(svg.rect(0, y, width, ROW, { class: "hit" }), 
          svg.text(0, y + 13, row.name, { class: "mark" }));
        // The name has a line of its own, and each end a side: at no width do they meet.
        [...row.ends].sort((a, b) => share(a) - share(b)).forEach((end, side) => {
          const to = x(share(end));
          group.append(svg.rect(Math.min(x(0), to), y + 19, Math.max(1, Math.abs(to - x(0))), ROW - 24,
            { class: share(end) > 0 ? "more" : "less" }),
            svg.text(side ? Math.max(to, x(0)) + 5 : Math.min(to, x(0)) - 5, y + 31,
              label(end),
              { "text-anchor": side ? "start" : "end", class: "faint" }));
        });
        drawn.append(dom.tip(group, () => words(row, share, record)));
      });
      return drawn;
    });
    const others = compared.slice(1).map((rank) => `#${rank}`).join(", ");
    return dom.figure("What the answer leans on",
      compared.length > 1 ? `⚑: another recipe than #1 would be fastest, of #1 and ${others}` : "",
      box, details(sorted, share, record));
  }
  const lost = (end) => end.winner !== null && end.winner !== 1;
  function words(row, share, record) {
    const lines = row.ends.map((end) => `${end.label}: step ${format.seconds(end.step_time_s)}, ` +
      `${format.usd(end.cost_of_run_usd)} (${format.change(share(end))}), ${format.days(end.days)}` +
      (lost(end) ? `; then #${end.winner} is fastest: ${record.recipes[end.winner - 1].words}` : ""));
    return [row.name + (row.setting ? ` (${row.setting})` : ""), ...lines].join("\n");
  }
  function details(rows, share, record) {
    const heads = ["what", "change", "step", "run", "", "days", "fastest then"];
    const cells = rows.flatMap((row) => row.ends.map((end) => [row.name, end.label,
      format.seconds(end.step_time_s), format.usd(end.cost_of_run_usd), format.change(share(end)),
      format.days(end.days), end.winner === null ? "" : `#${end.winner}`]));
    return el("details", {}, el("summary", { class: "small" }, "the same as a table"),
      dom.table(heads, cells, [2, 3, 4, 5]));
  }
  function verdict(record) {
    const { rows, compared } = record.sensitivity;
    if (compared.length < 2) return null;
    const losing = rows.flatMap((row) => row.ends.filter(lost).map((end) => `${row.name} ${end.label} (#${end.winner})`));
    const simulated = rows.filter((row) => row.ends.every((end) => end.winner !== null));
    return losing.length
      ? `Another recipe shown would be fastest with ${losing.join(", ")}.`
      : `#1 stays the fastest of the ${compared.length} layouts compared in all ` +
        `${simulated.length * 2} changes.`;
  }
  function draw(section, record) {
    section.append(el("p", {}, `Error bar of #1: ${record.error_bar}.`));
    const said = [record.distinguishable ? `Of the recipes, ${record.distinguishable}.` : null, verdict(record),
                  ...record.sensitivity.notes.map((note) => `${note[0].toUpperCase()}${note.slice(1)}.`)];
    section.append(...said.filter(Boolean).map((words) => el("p", {}, words)),
      el("div", { class: "charts" }, ranking.errorBars(record.recipes), tornado(record)),
      ...checked.tables(record));
  }
  return { draw };
})();
