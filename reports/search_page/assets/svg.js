// What every chart is drawn with: elements, scales, axes, and fills that differ by more than colour.
const svg = (() => {
  const SPACE = "http://www.w3.org/2000/svg";
  function el(tag, attributes = {}, ...children) {
    const element = dom.set(document.createElementNS(SPACE, tag), attributes);
    element.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return element;
  }
  function root(width, height, label, attributes = {}) {
    return el("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
                       "aria-label": label, ...attributes });
  }
  const text = (x, y, words, attributes = {}) => el("text", { x, y, ...attributes }, words);
  const line = (x1, y1, x2, y2, kind) => el("line", { x1, y1, x2, y2, class: kind });
  const rect = (x, y, width, height, attributes = {}) =>
    el("rect", { x, y, width: Math.max(0, width), height: Math.max(0, height), ...attributes });

  function linear(low, high, start, end) {
    const span = high - low || 1;
    const scale = (value) => start + ((value - low) / span) * (end - start);
    scale.invert = (place) => low + ((place - start) / (end - start)) * span;
    scale.low = low;
    scale.high = high;
    return scale;
  }
  // Round values within: steps of 1, 2 or 5 times a power of ten.
  function ticks(low, high, count) {
    if (!(high > low)) return [low];
    const rough = (high - low) / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((each) => each * power >= rough);
    const values = [];
    for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at += 1) {
      values.push(Number((at * step).toPrecision(12)));
    }
    return values;
  }
  function xAxis(scale, y, top, words, count = 6) {
    return ticks(scale.low, scale.high, count).flatMap((tick) => [
      line(scale(tick), top, scale(tick), y, "grid"),
      text(scale(tick), y + 15, words(tick), { "text-anchor": "middle", class: "faint" }),
    ]);
  }
  function yAxis(scale, left, right, words, count = 5) {
    return ticks(scale.low, scale.high, count).flatMap((tick) => [
      line(left, scale(tick), right, scale(tick), "grid"),
      text(left - 6, scale(tick) + 4, words(tick), { "text-anchor": "end", class: "faint" }),
    ]);
  }

  // Colour and texture of each fill; neighbours in a list differ in both.
  const FILLS = {
    blue: [0, null], orange: [1, "slash"], green: [2, "dots"], pink: [3, "back"],
    sky: [4, "level"], red: [5, "cross"], grey: [6, "upright"], olive: [7, "slash"],
    rose: [3, "dots"], slate: [6, "back"], azure: [0, "dots"], "plain-orange": [1, null],
  };
  const LIST = Object.keys(FILLS);
  const TEXTURES = {
    slash: "M-1,1 l2,-2 M0,8 l8,-8 M7,9 l2,-2", back: "M-1,7 l2,2 M0,0 l8,8 M7,-1 l2,2",
    level: "M0,4 h8", upright: "M4,0 v8", cross: "M0,4 h8 M4,0 v8",
  };
  function textures() {
    const patterns = LIST.map((name) => {
      const [colour, kind] = FILLS[name];
      const marks = kind === null ? null : kind === "dots"
        ? el("circle", { cx: 4, cy: 4, r: 1.5, class: "texture dots" })
        : el("path", { d: TEXTURES[kind], class: "texture" });
      return pattern(name, el("rect", { width: 8, height: 8, style: { fill: `var(--c${colour})` } }),
        marks);
    });
    const idle = pattern("idle",
      el("rect", { width: 8, height: 8, style: { fill: "var(--soft)" } }),
      el("path", { d: TEXTURES.slash, style: { stroke: "var(--c6)", "stroke-width": "1" } }));
    const holder = el("svg", { width: 0, height: 0, "aria-hidden": "true", focusable: "false",
                               style: { position: "absolute" } });
    holder.append(el("defs", {}, ...patterns, idle));
    return holder;
  }
  const pattern = (name, ...children) =>
    el("pattern", { id: `fill-${name}`, width: 8, height: 8, patternUnits: "userSpaceOnUse" },
      ...children);
  const fill = (name) => `url(#fill-${name})`;
  const nth = (at) => LIST[at % LIST.length];

  function legend(entries) {
    return dom.el("ul", { class: "legend" }, entries.map(([name, words]) => dom.el("li", {},
      swatch(name), words)));
  }
  function swatch(name) {
    const mark = el("svg", { width: 16, height: 12, "aria-hidden": "true" });
    mark.append(rect(0, 0, 16, 12, { fill: fill(name) }));
    return mark;
  }
  // Draws into a container at its width, and again whenever that changes.
  function fitted(container, draw) {
    let drawn = 0;
    const again = () => {
      const width = Math.floor(container.clientWidth);
      if (width > 0 && width !== drawn) {
        drawn = width;
        dom.clear(container, ...[draw(width)].flat());
      }
    };
    new ResizeObserver(again).observe(container);
    again();
    return () => {
      drawn = 0;
      again();
    };
  }
  return { el, root, text, line, rect, linear, ticks, xAxis, yAxis, textures, fill, nth, legend,
           swatch, fitted };
})();
