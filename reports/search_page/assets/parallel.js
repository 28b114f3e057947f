// Knobs as parallel axes with a line for every simulated recipe; dragging over an axis brushes it.
const parallel = (() => {
  const { el } = dom;
  const HEIGHT = 330;
  const TOP = 46;
  const FLOOR = HEIGHT - 44;
  // A brush takes in what it ends beside: some five pixels.
  const NEAR = 0.02;
  const MOST_STROKES = 200;
  const MEASURES = [
    { name: "step_time_s", label: "step, s", words: (v) => format.short(v, 4) },
    { name: "needed_bytes", label: "memory, GiB", words: (v) => format.short(v / format.GIB, 3) },
  ];

  // An axis has a place between 0 (bottom) and 1 for every simulated trial, and names for places.
  function axesOf(record, simulated) {
    const knobs = record.trials.knobs.map((knob) => {
      const codes = simulated.rows.map((row) => knob.code[row]);
      const used = [...new Set(codes)].sort((a, b) => a - b);
      if (used.length < 2) return null;
      const place = new Map(used.map((code, at) => [code, at / (used.length - 1)]));
      return { label: knob.name, at: codes.map((code) => place.get(code)),
               marks: used.map((code) => [place.get(code), code < 0 ? "–" : words(knob.values[code])]) };
    });
    const measures = MEASURES.map((measure) => {
      const values = simulated[measure.name];
      const low = values.reduce((a, b) => Math.min(a, b), Infinity);
      const high = values.reduce((a, b) => Math.max(a, b), -Infinity);
      const scale = svg.linear(low, high, 0, 1);
      return { label: measure.label, at: values.map((value) => scale(value)),
               marks: [0, 0.25, 0.5, 0.75, 1].map((place) => [place, measure.words(scale.invert(place))]) };
    });
    return [...knobs.filter(Boolean), ...measures];
  }
  // Recipes that fit, where any does: what does not would stretch the axes.
  function fitting(record, view) {
    const all = view.simulated;
    const kept = all.rows.map((row, at) => ({ row, at }))
      .filter(({ row }) => !record.answered || view.status(row) === "ok");
    const columns = MEASURES.map(({ name }) => [name, kept.map(({ at }) => all[name][at])]);
    return { rows: kept.map(({ row }) => row), at: new Map(kept.map(({ row }, at) => [row, at])),
             ...Object.fromEntries(columns) };
  }
  // A long name on two lines, parted between the words that are nearest to its middle.
  function halves(name) {
    const gaps = [...name.matchAll(/_/g)].map(({ index }) => index);
    if (name.length < 12 || !gaps.length) return [name];
    const middle = (at) => Math.abs(at - name.length / 2);
    const gap = gaps.reduce((a, b) => (middle(b) < middle(a) ? b : a));
    return [name.slice(0, gap + 1), name.slice(gap + 1)];
  }
  const longest = (axis) => Math.max(...halves(axis.label).map((part) => part.length));
  const words = (value) => ({ true: "yes", false: "no" })[String(value)] ?? String(value);

  function draw(record, view) {
    const simulated = fitting(record, view);
    const axes = axesOf(record, simulated);
    const brushes = axes.map(() => null);
    const step = axes[axes.length - 2].at;
    const shown = new Set(record.recipes.map((each) => view.rowOf.get(each.number)));
    const count = simulated.rows.length;
    const canvas = el("canvas", { "aria-hidden": "true" });
    const box = el("div");
    const said = el("p", { class: "small", role: "status" });
    let xs = [];
    // To the next axis: what stands beside the marks, at some seven pixels a letter; and to the one
    // after it, as names stand on two levels in turn, half of both names.
    const rooms = axes.slice(0, -1).map(({ marks }) =>
      Math.max(40, ...marks.map(([, name]) => 12 + name.length * 6.6)));
    for (let at = 0; at + 2 < axes.length; at += 1) {
      const names = (longest(axes[at]) + longest(axes[at + 2])) * 3.7 + 8;
      rooms[at + 1] = Math.max(rooms[at + 1], names - rooms[at]);
    }
    const least = rooms.reduce((a, b) => a + b, 100);

    const y = (place) => FLOOR - place * (FLOOR - TOP);
    const inside = (at) => brushes.every((brush, axis) => brush === null ||
      (axes[axis].at[at] >= brush[0] - NEAR && axes[axis].at[at] <= brush[1] + NEAR));
    function paint() {
      const pen = canvas.getContext("2d");
      const ratio = devicePixelRatio || 1;
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.clearRect(0, 0, canvas.width, canvas.height);
      const kept = [];
      const rest = [];
      for (let at = 0; at < count; at += 1) (inside(at) ? kept : rest).push(at);
      // The fastest are drawn last, on top.
      kept.sort((a, b) => step[b] - step[a]);
      lines(pen, rest, "--line", 0.35, 1);
      const alpha = Math.max(0.15, Math.min(0.8, 60 / kept.length));
      const best = kept.filter((at) => shown.has(simulated.rows[at]));
      lines(pen, kept, "--c4", alpha, 1.2);
      lines(pen, best, "--c0", 0.9, 1.6);
      const chosen = simulated.at.get(view.rowOf.get(selection.chosen()));
      if (chosen !== undefined) lines(pen, [chosen], "--c5", 1, 3);
    }
    function lines(pen, which, colour, alpha, width) {
      pen.globalAlpha = alpha;
      pen.lineWidth = width;
      pen.strokeStyle = theme.colour(colour);
      // A stroke of several lines costs little more than one of one; where they cross within it
      // they do not darken each other.
      const bundle = Math.max(1, Math.ceil(which.length / MOST_STROKES));
      for (let first = 0; first < which.length; first += bundle) {
        pen.beginPath();
        for (const at of which.slice(first, first + bundle)) {
          axes.forEach((axis, place) => {
            if (place === 0) pen.moveTo(xs[0], y(axis.at[at]));
            else pen.lineTo(xs[place], y(axis.at[at]));
          });
        }
        pen.stroke();
      }
      pen.globalAlpha = 1;
    }
    function tell() {
      paint();
      const any = brushes.some((brush) => brush !== null);
      const kept = any ? simulated.rows.filter((_, at) => inside(at)) : null;
      selection.brush(kept === null ? null : new Set(kept));
      said.textContent = any
        ? `${kept.length} of ${count} recipes are within the brushes; the table of trials shows only them.`
        : `${format.plural(count, "recipe")} ${record.answered ? "that fit" : "simulated"}. Drag along an axis to keep only lines through that stretch.`;
    }
    function chart(width) {
      const spare = (width - least) / rooms.length;
      xs = [40];
      for (const each of rooms) xs.push(xs.at(-1) + each + spare);
      const ratio = devicePixelRatio || 1;
      canvas.width = width * ratio;
      canvas.height = HEIGHT * ratio;
      canvas.style.width = `${width}px`;
      canvas.style.height = `${HEIGHT}px`;
      const drawn = svg.root(width, HEIGHT, `Parallel coordinates of ${count} recipes over ` +
        axes.map((axis) => axis.label).join(", "));
      axes.forEach((axis, at) => {
        const x = xs[at];
        drawn.append(svg.line(x, y(0), x, y(1), "axis"),
          title(axis.label, x, at));
        const every = Math.ceil(axis.marks.length / 9);
        axis.marks.filter((_, mark) => mark % every === 0).forEach(([place, name]) =>
          drawn.append(svg.text(x + 5, y(place) + 4, name, { class: "faint mark" })));
        drawn.append(track(axis, at, x));
      });
      requestAnimationFrame(paint);
      return [canvas, drawn];
    }
    function title(name, x, at) {
      const anchor = at === 0 ? "start" : at === axes.length - 1 ? "end" : "middle";
      const edge = { start: -20, end: 50, middle: 0 }[anchor];
      const lines = halves(name).map((words, down) => svg.el("tspan", { x: x + edge, dy: down * 13 }, words));
      const y = at % 2 ? FLOOR + 26 : TOP - 1 - 13 * lines.length;
      return svg.el("text", { y, "text-anchor": anchor, class: "strong" }, ...lines);
    }
    function track(axis, at, x) {
      const group = svg.el("g", { tabindex: 0, role: "slider", "aria-label":
        `Brush ${axis.label}: up and down arrows move a brush of one value, Escape removes it`,
        "aria-valuemin": 0, "aria-valuemax": 1, "aria-valuenow": 0 });
      const mark = svg.rect(x - 8, 0, 16, 0, { class: "brush" });
      const area = svg.rect(x - 14, TOP - 8, 28, FLOOR - TOP + 16, { class: "track", "data-axis": axis.label });
      const show = () => {
        const brush = brushes[at];
        dom.set(mark, brush === null ? { height: 0 } : { y: y(brush[1]) - 3,
          height: y(brush[0]) - y(brush[1]) + 6 });
      };
      const placeOf = (event) => {
        const frame = group.ownerSVGElement.getBoundingClientRect();
        const scale = HEIGHT / frame.height;
        return Math.max(0, Math.min(1, (FLOOR - (event.clientY - frame.top) * scale) / (FLOOR - TOP)));
      };
      const put = (brush) => {
        brushes[at] = brush;
        show();
        tell();
      };
      let from = null;
      area.addEventListener("pointerdown", (event) => {
        area.setPointerCapture(event.pointerId);
        from = placeOf(event);
      });
      area.addEventListener("pointermove", (event) => {
        if (from === null) return;
        const to = placeOf(event);
        brushes[at] = [Math.min(from, to), Math.max(from, to)];
        show();
        paint();
      });
      area.addEventListener("pointerup", (event) => {
        const to = placeOf(event);
        // A click without a drag removes the brush.
        put(Math.abs(to - from) < 0.015 ? null : [Math.min(from, to), Math.max(from, to)]);
        from = null;
      });
      group.addEventListener("keydown", (event) => {
        const by = { ArrowUp: 1, ArrowDown: -1 }[event.key];
        if (event.key === "Escape") put(null);
        if (!by) return;
        event.preventDefault();
        const places = axis.marks.map(([place]) => place);
        const now = brushes[at] === null ? -1 : places.findIndex((place) => place >= brushes[at][0] - 1e-9);
        const next = places[Math.max(0, Math.min(places.length - 1, now + by))];
        put([next, next]);
      });
      group.append(mark, area);
      show();
      return group;
    }
    const holder = el("div", { class: "parallel wide" }, box);
    const redraw = svg.fitted(box, (width) => chart(Math.max(width, least)));
    selection.onChoose(paint);
    theme.onChange(paint);
    const clear = el("button", { type: "button", on: { click: () => {
      brushes.fill(null);
      redraw();
      tell();
    } } }, "Clear brushes");
    tell();
    return dom.figure("Knobs and what comes of them",
      "a line a recipe; dark: those listed above; thick: the chosen one",
      el("div", { class: "controls" }, clear), holder, said);
  }
  return { draw };
})();
