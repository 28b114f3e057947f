// What every stage does when: a bar a pass, and hatching where it waits.
const pipeline = (() => {
  const { el } = dom;
  const FILL = { forward: "blue", backward: "plain-orange", recompute: "red", send: "sky", gather: "green",
                 reduce: "pink", finish: "slate", optimizer: "rose", input_gradient: "plain-orange",
                 weight_gradient: "orange" };
  const NAME = { forward: "forward", backward: "backward", recompute: "recomputation in it",
                 send: "transfer to the next stage", gather: "parameter gather",
                 reduce: "gradient reduction", finish: "gradient norm and tied embeddings",
                 optimizer: "optimizer", input_gradient: "backward, of inputs",
                 weight_gradient: "backward, of weights" };
  // Where a bar stands in its row, from and to: forward and backward are distinguished by it too.
  const STAND = { forward: [0, 0.74], backward: [0.26, 1], recompute: [0.26, 1],
                  input_gradient: [0.26, 1], weight_gradient: [0.26, 1] };
  const LABEL = 34;
  const ZOOMS = [1, 2, 4, 8, 16];

  function geometry(bars) {
    const second = bars.lane.some((lane) => lane > 0);
    const tall = Math.max(7, Math.min(24, 400 / bars.stages));
    const row = tall + (second ? Math.max(4, tall * 0.4) : 0) + 3;
    return { tall, row, thin: row - tall - 3 };
  }
  function chart(bars, width, zoom) {
    const { tall, row, thin } = geometry(bars);
    const end = bars.start.reduce((most, start, at) => Math.max(most, start + bars.length[at]), 0);
    const x = svg.linear(0, end, LABEL, LABEL + (width - LABEL - 8) * zoom);
    const height = bars.stages * row + 42;
    const full = LABEL + (width - LABEL - 8) * zoom + 8;
    const drawn = svg.root(full, height, `Timeline of ${bars.stages} stages over ` +
      `${bars.micro_batches} micro-batches`, { style: { "max-width": "none" } });
    for (let stage = 0; stage < bars.stages; stage += 1) {
      drawn.append(svg.rect(LABEL, stage * row, x(end) - LABEL, tall, { fill: svg.fill("idle") }));
    }
    const floor = bars.stages * row;
    drawn.append(...svg.xAxis(x, floor, 0, (tick) => format.short(tick / 1e6, 4), 6 * zoom));
    const paths = new Map();
    const add = (kind, faint, from, to, top, room) => {
      const [above, below] = STAND[kind] || [0, 1];
      const y = (top + above * room).toFixed(1);
      const high = ((below - above) * room).toFixed(1);
      const key = `${kind} ${faint}`;
      paths.set(key, `${paths.get(key) || ""}M${from.toFixed(2)},${y}H${to.toFixed(2)}v${high}H${from.toFixed(2)}z`);
    };
    const labels = [];
    // Edges would hide bars that are hardly wider than themselves.
    const edged = (x(end) - LABEL) * bars.stages / bars.start.length > 5 ? "edge" : null;
    bars.start.forEach((start, at) => {
      const kind = bars.kinds[bars.kind[at]];
      const y = bars.stage[at] * row + (bars.lane[at] ? tall + 1 : 0);
      const high = bars.lane[at] ? thin : tall;
      // Chunks of one stage pale from first to last, so that their passes can be distinguished.
      const faint = bars.chunk[at] > 0 ? (1 - 0.45 * (bars.chunk[at] / (bars.chunks - 1))).toFixed(2) : "1";
      const from = x(start);
      const to = Math.max(from + 0.4, x(start + bars.length[at]));
      const again = x(start + Math.min(bars.recompute[at], bars.length[at]));
      if (bars.recompute[at]) add("recompute", "1", from, again, y, high);
      add(kind, faint, bars.recompute[at] ? again : from, to, y, high);
      if (to - from > 17 && tall >= 13 && bars.micro_batch[at] >= 0 && kind !== "send") {
        const [above, below] = STAND[kind] || [0, 1];
        labels.push(svg.text((from + to) / 2, y + ((above + below) / 2) * tall + 4, String(bars.micro_batch[at] + 1),
          { "text-anchor": "middle", class: "number" }));
      }
    });
    for (const [key, d] of paths) {
      const [kind, opacity] = key.split(" ");
      // A pale chunk lets the paper through, not the hatching behind it.
      if (opacity !== "1") drawn.append(svg.el("path", { d, fill: "var(--paper)" }));
      drawn.append(svg.el("path", { d, fill: svg.fill(FILL[kind]), "fill-opacity": opacity,
                                    class: edged, "data-kind": kind }));
    }
    drawn.append(...labels);
    for (let stage = 0; stage < bars.stages; stage += Math.ceil(14 / row)) {
      drawn.append(svg.text(LABEL - 6, stage * row + tall / 2 + 4, String(stage),
        { "text-anchor": "end", class: "faint" }));
    }
    drawn.append(svg.text(LABEL + (width - LABEL) / 2, floor + 34, "seconds from the step's start (across), stage (down)",
        { "text-anchor": "middle" }));
    drawn.addEventListener("pointermove", (event) => {
      const frame = drawn.getBoundingClientRect();
      const ratio = full / frame.width;
      const found = under(bars, x.invert((event.clientX - frame.left) * ratio),
        (event.clientY - frame.top) * ratio, row, tall);
      if (found === null) dom.hideTip();
      else dom.showTip(words(bars, found), event.clientX, event.clientY);
    });
    drawn.addEventListener("pointerleave", dom.hideTip);
    return drawn;
  }
  function under(bars, time, y, row, tall) {
    const stage = Math.floor(y / row);
    const lane = y - stage * row > tall ? 1 : 0;
    const found = bars.start.findIndex((start, at) => bars.stage[at] === stage &&
      bars.lane[at] === lane && start <= time && time <= start + bars.length[at]);
    return found < 0 ? null : found;
  }
  function words(bars, at) {
    const lines = [`stage ${bars.stage[at]}: ${NAME[bars.kinds[bars.kind[at]]]}`];
    if (bars.micro_batch[at] >= 0) {
      lines.push(`micro-batch ${bars.micro_batch[at] + 1}` +
        (bars.chunks > 1 ? `, chunk ${bars.chunk[at] + 1} of ${bars.chunks}` : ""));
    }
    lines.push(`${format.seconds(bars.length[at] / 1e6)}, from ${format.seconds(bars.start[at] / 1e6)}`);
    if (bars.recompute[at]) lines.push(`recomputes for ${format.seconds(bars.recompute[at] / 1e6)}`);
    return lines.join("\n");
  }
  // The same in figures: seconds of every stage by what it does in the time shown.
  function details(bars, kinds) {
    const end = bars.start.reduce((most, start, at) => Math.max(most, start + bars.length[at]), 0);
    const sums = Array.from({ length: bars.stages }, () => ({ busy: 0 }));
    bars.length.forEach((length, at) => {
      const sum = sums[bars.stage[at]];
      const again = bars.recompute[at];
      const kind = bars.kinds[bars.kind[at]];
      sum[kind] = (sum[kind] || 0) + length - again;
      sum.recompute = (sum.recompute || 0) + again;
      if (bars.lane[at] === 0) sum.busy += length;
    });
    const heads = ["stage", ...kinds.map((kind) => NAME[kind]), "waiting"];
    const rows = sums.map((sum, stage) => [String(stage),
      ...kinds.map((kind) => format.seconds((sum[kind] || 0) / 1e6)), format.seconds((end - sum.busy) / 1e6)]);
    return el("details", {}, el("summary", { class: "small" }, "the same as a table"),
      dom.table(heads, rows, heads.map((_, at) => at)));
  }
  // A few micro-batches make waiting look larger than it is.
  function wholeStep(recipe) {
    const seconds = recipe.breakdown_s.bubble || 0;
    return `Over the whole step, stage ${recipe.critical_stage} waits for others ` +
      `${format.percent(seconds / recipe.step_time_s)} of the time (${format.seconds(seconds)}).`;
  }
  function draw(section, record) {
    const bars = record.pipeline;
    if (bars.unavailable) {
      section.append(el("p", {}, `No timeline: ${bars.unavailable}.`));
      return;
    }
    const recipe = record.recipes[0];
    const shown = bars.micro_batches === bars.num_micro_batches
      ? `all ${bars.num_micro_batches} micro-batches`
      : `${bars.micro_batches} of the step's ${bars.num_micro_batches} micro-batches; the others ` +
        "repeat the steady part";
    let zoom = 1;
    const box = el("div");
    const scroller = el("div", { class: "scroller", tabindex: 0, role: "region",
      "aria-label": "Pipeline timeline, scrolls sideways" }, box);
    const redraw = svg.fitted(scroller, (width) => {
      dom.clear(box, chart(bars, width - 2, zoom));
      return box;
    });
    const { label } = dom.choice("zoom", ZOOMS.map((each) => `${each} ×`), 0, (at) => {
      zoom = ZOOMS[at];
      redraw();
    });
    const used = new Set(bars.kind.map((kind) => bars.kinds[kind]));
    const kinds = Object.keys(FILL).filter((kind) => used.has(kind) ||
      (kind === "recompute" && bars.recompute.some((each) => each > 0)));
    section.append(
      el("p", {}, "One step of ", el("span", { class: "recipe" }, recipe.words), `, with ${shown}. ` +
        "Numbers are micro-batches" +
        (bars.chunks > 1 ? ", paler bars later chunks of a stage" : "") +
        "; forward passes stand higher than backward ones, and the thin row below a stage is its " +
        "data-parallel communication; other communication is part of its pass. " + wholeStep(recipe)),
      el("div", { class: "controls" }, label),
      svg.legend([...kinds.map((kind) => [FILL[kind], NAME[kind]]), ["idle", "waiting"]]), scroller, details(bars, kinds));
  }
  return { draw };
})();
