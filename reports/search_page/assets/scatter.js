// Every simulated recipe as a point: what it is good at against what it costs.
const scatter = (() => {
  const { el } = dom;
  const AXES = [
    { less: true, name: "step_time_s", label: "step time, s", words: format.seconds, short: (v) => format.short(v, 4) },
    { less: true, name: "needed_bytes", label: "memory of a GPU, GiB", words: format.gib,
      short: (v) => format.short(v, 3), scale: 1 / format.GIB },
    { less: true, name: "cost_of_run_usd", label: "cost of the run, $", words: format.usd, short: format.usd },
    { name: "tokens_per_s_per_gpu", label: "tokens/s per GPU", words: (v) => format.grouped(v),
      short: (v) => format.short(v, 4) },
    { name: "mfu", label: "MFU, %", words: format.percent, short: (v) => format.short(v, 3), scale: 100 },
  ];
  const OF_OBJECTIVE = { cost: 2, step_time: 0, tokens_per_s: 3, mfu: 4, memory: 1 };

  // The two objectives, or step time against memory.
  function firstAxes(objectives) {
    if (objectives.length < 2) return [0, 1];
    return [OF_OBJECTIVE[objectives[0].name] ?? 0, OF_OBJECTIVE[objectives[1].name] ?? 1];
  }
  function draw(record, view) {
    const { simulated } = view;
    const box = el("div", { class: "scatter" });
    let [across, up] = firstAxes(record.objectives);
    let withMisses = !record.answered;
    const top = record.answered ? new Map(record.recipes.map((each) => [each.number, each.rank])) : new Map();
    const bestRow = record.answered ? view.rowOf.get(record.recipes[0].number) : -1;
    let places = [];
    let redraw = null;

    function chart(width) {
      const height = Math.min(380, Math.max(260, width * 0.62));
      const shown = simulated.rows.map((row, at) => ({ row, at }))
        .filter(({ row }) => withMisses || view.status(row) === "ok");
      const drawn = svg.root(width, height, `${shown.length} recipes by ${AXES[across].label} (across) ` +
        `and ${AXES[up].label} (up); arrow keys go through them, Enter chooses`,
        { tabindex: 0, class: "points-plot" });
      if (!shown.length) return drawn;
      const value = (axis, at) => simulated[AXES[axis].name][at] * (AXES[axis].scale || 1);
      const x = scale(shown.map(({ at }) => value(across, at)), 58, width - 12);
      const y = scale(shown.map(({ at }) => value(up, at)), height - 40, 10);
      places = shown.map(({ row, at }) => ({ row, at, x: x(value(across, at)), y: y(value(up, at)) }));
      drawn.append(...svg.xAxis(x, height - 40, 10, AXES[across].short, width < 500 ? 4 : 6),
        ...svg.yAxis(y, 58, width - 12, AXES[up].short),
        svg.text((46 + width) / 2, height - 6, AXES[across].label, { "text-anchor": "middle" }),
        svg.text(-(height - 30) / 2, 12, AXES[up].label, { "text-anchor": "middle", transform: "rotate(-90)" }));
      const dots = { ok: "", oom: "" };
      for (const place of places) {
        if (view.status(place.row) === "ok") dots.ok += circle(place, 3.5);
        else dots.oom += `M${place.x - 3.5},${place.y - 3.5}l7,7m0,-7l-7,7`;
      }
      drawn.append(svg.el("path", { d: dots.ok, fill: "var(--c0)", "fill-opacity": 0.75, class: "marks" }),
        svg.el("path", { d: dots.oom, stroke: "var(--c6)", "stroke-width": 1.5 }));
      const front = frontOf(places.filter(({ row }) => view.status(row) === "ok"), AXES[across], AXES[up]);
      drawn.append(svg.el("path", { class: "front", d: steps(front) }),
        svg.el("path", { d: front.map((place) => diamond(place, 5)).join(""), fill: "var(--c5)" }));
      const best = places.find(({ row }) => row === bestRow);
      if (best) {
        drawn.append(svg.el("path", { d: star(best, 9), fill: "var(--c5)", stroke: "var(--paper)" }));
        const right = best.x < width * 0.75;
        drawn.append(svg.text(best.x + (right ? 11 : -11), best.y - 8, "#1",
          { class: "strong", "text-anchor": right ? "start" : "end" }));
      }
      const chosen = places.find(({ row }) => row === view.rowOf.get(selection.chosen()));
      if (chosen) drawn.append(svg.el("circle", { cx: chosen.x, cy: chosen.y, r: 8, class: "chosen" }));
      listen(drawn, width, height);
      return drawn;
    }
    function words(place) {
      const number = view.number(place.row);
      const rank = top.has(number) ? `#${top.get(number)} ` : "";
      return `${rank}${view.words(place.row)}\n` +
        `step ${format.seconds(simulated.step_time_s[place.at])}, memory ` +
        `${format.gib(simulated.needed_bytes[place.at])}, ${format.usd(simulated.cost_of_run_usd[place.at])}` +
        (view.status(place.row) === "oom" ? "\ndoes not fit" : "");
    }
    function nearest(event, drawn, width) {
      const frame = drawn.getBoundingClientRect();
      const ratio = width / frame.width;
      const at = { x: (event.clientX - frame.left) * ratio, y: (event.clientY - frame.top) * ratio };
      let found = null;
      let least = 18 ** 2;
      for (const place of places) {
        const distance = (place.x - at.x) ** 2 + (place.y - at.y) ** 2;
        if (distance < least) [least, found] = [distance, place];
      }
      return found;
    }
    function listen(drawn, width) {
      drawn.addEventListener("pointermove", (event) => {
        const place = nearest(event, drawn, width);
        drawn.style.cursor = place ? "pointer" : "default";
        if (place) dom.showTip(words(place), event.clientX, event.clientY);
        else dom.hideTip();
      });
      drawn.addEventListener("pointerleave", dom.hideTip);
      drawn.addEventListener("click", (event) => {
        const place = nearest(event, drawn, width);
        if (place) selection.choose(view.number(place.row));
      });
      drawn.addEventListener("keydown", (event) => {
        const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!by) return;
        event.preventDefault();
        const sorted = [...places].sort((a, b) => a.x - b.x || a.row - b.row);
        const now = sorted.findIndex(({ row }) => row === view.rowOf.get(selection.chosen()));
        const next = sorted[Math.max(0, Math.min(sorted.length - 1, now + by))];
        selection.choose(view.number(next.row));
        box.querySelector("svg").focus();
      });
    }
    redraw = svg.fitted(box, chart);
    selection.onChoose(() => redraw());
    const names = AXES.map((axis) => axis.label);
    const change = (act) => (chosen) => {
      act(chosen);
      redraw();
    };
    const misses = el("input", { type: "checkbox", checked: withMisses, on: { change: () => {
      withMisses = misses.checked;
      redraw();
    } } });
    return dom.figure("Every simulated recipe", "click one to follow it through the other figures",
      el("div", { class: "controls" },
        dom.choice("across", names, across, change((to) => { across = to; })).label,
        dom.choice("up", names, up, change((to) => { up = to; })).label,
        el("label", {}, misses, " also what does not fit (×)")),
      box, legend());
  }
  function legend() {
    const mark = (draw, words) => {
      const icon = svg.el("svg", { width: 16, height: 14, "aria-hidden": "true" });
      icon.append(draw);
      return el("li", {}, icon, words);
    };
    const at = { x: 8, y: 7 };
    return el("ul", { class: "legend" },
      mark(svg.el("path", { d: circle(at, 3.5), fill: "var(--c0)" }), "fits"),
      mark(svg.el("path", { d: star(at, 7), fill: "var(--c5)" }), "#1"),
      mark(svg.el("path", { d: diamond(at, 5), fill: "var(--c5)" }), "nothing is better in both figures"));
  }
  // What nothing drawn beats in both figures, from the best across to the best up.
  function frontOf(places, across, up) {
    const right = across.less ? 1 : -1;
    const down = up.less ? -1 : 1;
    const sorted = [...places].sort((a, b) => right * (a.x - b.x) || down * (a.y - b.y));
    let best = Infinity;
    return sorted.filter((place) => {
      const better = down * place.y < best;
      if (better) best = down * place.y;
      return better;
    });
  }
  // Between two of them, what is reached is the worse of either.
  const steps = (front) => front.map((place, at) => (at ? `H${place.x}V${place.y}` : `M${place.x},${place.y}`))
    .join("");
  function scale(values, start, end) {
    const low = values.reduce((a, b) => Math.min(a, b), Infinity);
    const high = values.reduce((a, b) => Math.max(a, b), -Infinity);
    const room = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
    return svg.linear(low - room, high + room, start, end);
  }
  const circle = ({ x, y }, r) => `M${x - r},${y}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0`;
  const diamond = ({ x, y }, r) => `M${x},${y - r}l${r},${r}l${-r},${r}l${-r},${-r}z`;
  function star({ x, y }, r) {
    const points = [...Array(10).keys()].map((at) => {
      const angle = (at * Math.PI) / 5 - Math.PI / 2;
      const reach = at % 2 ? r * 0.45 : r;
      return `${x + reach * Math.cos(angle)},${y + reach * Math.sin(angle)}`;
    });
    return `M${points.join("L")}z`;
  }
  return { draw };
})();
