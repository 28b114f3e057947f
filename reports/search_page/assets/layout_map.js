// One cell for every tensor and pipeline degree: its best step time, or why it has none.
const layoutMap = (() => {
  const { el } = dom;
  const SHORT = {
    tight: "tight", memory: "no fit", slower: "slower", pruned: "pruned", failed: "failed", invalid: "invalid",
    unasked: "not tried",
  };
  const LONG = {
    fits: "fits", tight: "may fit in memory", memory: "does not fit in memory", slower: "cannot beat the best, by its bound",
    pruned: "known without simulating", failed: "failed in the simulator",
    invalid: "cannot be launched", unasked: "no recipe of it was tried",
  };
  // Darker is faster. No shade lies between those that white and those that dark text stands on.
  const PALE = 0.3;
  function shade(share) {
    const strength = share <= PALE ? 100 - 80 * share : 55 - 50 * (share - PALE);
    return `color-mix(in srgb, #0b4f8a ${Math.round(strength)}%, #dcebf7)`;
  }
  function words(cell, tp, pp) {
    const counts = Object.entries(cell.counts).map(([end, count]) => `${count} ${LONG[end]}`);
    const head = `TP ${tp} × PP ${pp}`;
    const lines = cell.outcome === "fits"
      ? [`best step ${format.seconds(cell.step_time_s)}`, cell.words]
      : [cell.why];
    return [head, ...lines, ...counts].join("\n");
  }
  function draw(section, record) {
    const { tp, pp, cells } = record.map;
    const times = cells.filter((cell) => cell.outcome === "fits").map((cell) => cell.step_time_s);
    const fastest = Math.min(...times);
    const slowest = Math.max(...times);
    const best = record.answered ? record.recipes[0].number : null;
    const cellOf = (row, column) => cells[row * tp.length + column];
    const said = el("p", { class: "small chosen-recipe", role: "status" },
      "Choose a cell to read what became of its recipes.");
    const button = (cell, row, column) => {
      const share = slowest > fastest ? (cell.step_time_s - fastest) / (slowest - fastest) : 0;
      const detail = words(cell, tp[column], pp[row]);
      const made = el("button", {
        type: "button", "aria-label": detail,
        class: `${cell.outcome}${share > PALE ? " pale" : ""}` +
          `${best !== null && cell.number === best ? " best" : ""}`,
        style: cell.outcome === "fits" ? { background: shade(share) } : {},
        on: { click: () => {
          said.textContent = detail.replaceAll("\n", "; ");
          if (cell.number !== undefined) selection.choose(cell.number);
        } },
      }, cell.outcome === "fits" ? format.seconds(cell.step_time_s)
        : el("small", {}, el("b", {}, SHORT[cell.outcome])));
      return el("td", {}, dom.tip(made, detail));
    };
    const table = el("table", { class: "map" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "TP ↓ PP →"),
        pp.map((degree) => el("th", { scope: "col" }, String(degree))))),
      el("tbody", {}, tp.map((degree, column) => el("tr", {},
        el("th", { scope: "row" }, String(degree)),
        pp.map((_, row) => button(cellOf(row, column), row, column))))));
    const ends = new Set(cells.map((cell) => cell.outcome));
    const meaning = Object.keys(SHORT).filter((end) => ends.has(end))
      .map((end) => `${SHORT[end]}: ${LONG[end]}`);
    section.append(
      el("p", {}, "The fastest step of all recipes with these degrees that fit (darker is faster; the " +
        "outlined cell has #1); data parallelism, micro-batch, recomputation and switches are whatever " +
        "is best there. ", el("span", { class: "faint" }, meaning.length ? `${meaning.join("; ")}.` : "")),
      el("div", { class: "wide map-room" }, table), said);
  }
  return { draw };
})();
