// Every trial, a page at a time: sorting and filtering move row numbers, never elements.
const trialTable = (() => {
  const { el } = dom;
  const PAGE = 50;
  // As the search ranks them: what fits first, fastest first.
  const UNSORTED = -1;
  const MARK = { ok: "✓", tight: "~", oom: "✕", pruned: "–", invalid: "∅", failed: "!" };
  const SAID = { ok: "fits", tight: "tight", oom: "out of memory", pruned: "pruned", invalid: "invalid",
                 failed: "failed" };

  // The columns of the record, readable by row.
  function viewOf(record) {
    const { trials } = record;
    const { row: rows, ...figures } = trials.simulated;
    const at = new Map(rows.map((row, place) => [row, place]));
    const coded = (column, row) => (column.code[row] < 0 ? "" : column.values[column.code[row]]);
    const figure = (name) => (row) => (at.has(row) ? figures[name][at.get(row)] : null);
    // Of what can run: what cannot takes no time and costs nothing.
    const ran = (name) => (row) => (coded(trials.status, row) === "oom" ? null : figure(name)(row));
    return {
      count: trials.count,
      simulated: { rows, at, ...figures },
      number: (row) => trials.number[row],
      rowOf: new Map(trials.number.map((number, row) => [number, row])),
      words: (row) => trials.words[row],
      status: (row) => coded(trials.status, row),
      rule: (row) => coded(trials.rule, row),
      reason: (row) => coded(trials.reason, row),
      figure,
      ran,
    };
  }
  function why(view, row) {
    if (view.status(row) === "oom") {
      const headroom = view.figure("headroom_bytes")(row);
      return headroom === null ? "" : `lacks ${format.gib(-headroom)}`;
    }
    return [view.rule(row), view.reason(row)].filter(Boolean).join(": ");
  }
  function columnsOf(record, view) {
    const numeric = (label, value, words) => ({ label, value, words, numeric: true });
    const columns = [
      numeric("trial", view.number, String),
      { label: "status", value: view.status, words: (status) => SAID[status] },
      { label: "recipe", value: view.words, words: String, kind: "recipe" },
      numeric("step", view.ran("step_time_s"), format.seconds),
      numeric("memory", view.figure("needed_bytes"), format.gib),
      numeric("headroom", view.figure("headroom_bytes"), format.gib),
      numeric("MFU", view.ran("mfu"), format.percent),
      numeric("run", view.ran("cost_of_run_usd"), format.usd),
    ];
    const shown = { cost: 1, step_time: 1, memory: 1, mfu: 1 };
    record.trials.objectives.forEach((objective, at) => {
      if (shown[objective.name]) return;
      const of = record.objectives[at];
      columns.push(numeric(format.name(of), (row) => objective.values[row], (value) => format.objective(value, of)));
    });
    columns.push({ label: "why", words: String, kind: "text",
      value: (row) => why(view, row) });
    return columns;
  }
  function draw(section, record, view) {
    const columns = columnsOf(record, view);
    const state = { sort: UNSORTED, down: false, page: 0, words: "", status: "", rows: [] };
    const lower = new Array(view.count);
    // What the filter looks through, made when first needed.
    const haystack = (row) => (lower[row] ??= `${view.words(row)} ${view.status(row)} ${SAID[view.status(row)]} ` +
      `${view.rule(row)} ${view.reason(row)}`.toLowerCase());

    const step = view.figure("step_time_s");
    const rankOf = (row) => {
      const seconds = step(row);
      return seconds === null || view.status(row) === "ok" ? seconds : Number.MAX_VALUE;
    };
    function arrange() {
      const terms = state.words.toLowerCase().split(/\s+/).filter(Boolean);
      const brushed = selection.brushed();
      const rows = [];
      for (let row = 0; row < view.count; row += 1) {
        if (state.status && view.status(row) !== state.status) continue;
        if (brushed && !brushed.has(row)) continue;
        if (terms.length && !terms.every((term) => haystack(row).includes(term))) continue;
        rows.push(row);
      }
      const value = state.sort === UNSORTED ? rankOf : columns[state.sort].value;
      const keys = new Map(rows.map((row) => [row, value(row)]));
      const sign = state.down ? -1 : 1;
      // Trials without the figure come last whichever way it is sorted.
      rows.sort((a, b) => {
        const [x, y] = [keys.get(a), keys.get(b)];
        const [noX, noY] = [x === null || x === "", y === null || y === ""];
        if (noX || noY) return noX - noY || a - b;
        return sign * (x < y ? -1 : x > y ? 1 : 0) || a - b;
      });
      state.rows = rows;
      state.page = Math.min(state.page, Math.max(0, Math.ceil(rows.length / PAGE) - 1));
    }
    const body = el("tbody");
    const said = el("span", { role: "status" });
    const heads = columns.map((column, at) => el("th", { scope: "col", class: column.numeric ? "n" : null },
      el("button", { type: "button", on: { click: () => {
        if (state.sort === at) state.down = !state.down;
        else Object.assign(state, { sort: at, down: false });
        state.page = 0;
        refresh();
      } } }, column.label)));
    const turn = (by) => el("button", { type: "button", on: { click: () => {
      state.page += by;
      show();
    } } }, by < 0 ? "← Previous" : "Next →");
    const [before, after] = [turn(-1), turn(1)];

    function cell(column, row) {
      const value = column.value(row);
      const words = value === null || value === "" ? "" : column.words(value);
      if (column.label === "status") {
        return el("td", {}, el("span", { class: "status", "data-mark": MARK[value] }, words));
      }
      const kind = column.numeric ? "n" : column.kind === "text" ? "text" : null;
      return el("td", { class: kind }, column.kind === "recipe"
        ? el("button", { type: "button", class: "recipe pick", on: { click: (event) => {
          event.stopPropagation();
          selection.choose(view.number(row));
        } } }, words) : words);
    }
    function show() {
      const first = state.page * PAGE;
      const rows = state.rows.slice(first, first + PAGE);
      dom.clear(body, ...rows.map((row) => el("tr", {
        "aria-selected": view.number(row) === selection.chosen() ? "true" : "false",
        on: { click: () => selection.choose(view.number(row)) },
      }, columns.map((column) => cell(column, row)))));
      const total = format.plural(view.count, "trial");
      const range = rows.length ? `${format.grouped(first + 1)} to ${format.grouped(first + rows.length)} of ` : "";
      said.textContent = `${range}${format.grouped(state.rows.length)}` +
        (state.rows.length === view.count ? ` trials` : ` that match, of ${total}`) +
        (selection.brushed() ? " (brushed above)" : "");
      before.disabled = state.page === 0;
      after.disabled = first + PAGE >= state.rows.length;
      heads.forEach((head, at) => head.setAttribute("aria-sort",
        at === state.sort ? (state.down ? "descending" : "ascending") : "none"));
    }
    function refresh() {
      arrange();
      show();
    }
    const filter = el("input", { type: "search", placeholder: "tp4 pp12 bubble …", "aria-label":
      "Filter trials by words of recipe, status and reason", on: { input: () => {
      Object.assign(state, { words: filter.value, page: 0 });
      refresh();
    } } });
    const statuses = ["", ...record.trials.status.values];
    const { label } = dom.choice("status", statuses.map((status) => SAID[status] || "all"), 0, (at) => {
      Object.assign(state, { status: statuses[at], page: 0 });
      refresh();
    });
    section.append(
      el("p", {}, counts(record)),
      record.trials.omitted ? el("p", { class: "notice" }, `${format.grouped(record.trials.omitted)} trials ` +
        "are left out here, first those that were not simulated; trials.csv has all.") : "",
      el("div", { class: "controls" }, el("label", {}, "filter ", filter), label, before, after, said),
      el("div", { class: "scroller wide", tabindex: 0, role: "region", "aria-label": "Table of trials",
                  style: { "max-height": "560px" } },
        el("table", { class: "trials" }, el("thead", {}, el("tr", {}, heads)), body)));
    selection.onChoose(show);
    selection.onBrush(() => {
      state.page = 0;
      refresh();
    });
    refresh();
  }
  function counts(record) {
    const { counts: of, rules, stopped, wall_s: wall, space_size: size, resumed_trials: resumed } = record.search;
    const named = Object.entries(of).filter(([, count]) => count > 0).map(([status, count]) => {
      const because = Object.entries(rules[status] || {}).sort((a, b) => b[1] - a[1])
        .map(([rule, each]) => `${rule} ${format.grouped(each)}`).join(", ");
      return `${format.grouped(count)} ${status === "ok" ? "fit" : SAID[status]}${because ? ` (${because})` : ""}`;
    });
    const all = Object.values(of).reduce((sum, each) => sum + each, 0);
    return `${format.plural(all, "point")} proposed of ${format.grouped(size)} in the space` +
      `${resumed ? `, ${format.grouped(resumed)} of them resumed` : ""}${named.length ? `: ${named.join("; ")}` : ""}. ` +
      `${wall.toFixed(1)} s; ended because ${stopped}.`;
  }
  return { draw, viewOf, why };
})();
