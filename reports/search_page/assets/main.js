// Reads the record and has every section drawn; sections without content go away.
const main = (() => {
  const { el, byId } = dom;
  // Elements that choose a trial, by pointer or keyboard.
  function selectable(element, number) {
    element.addEventListener("click", () => selection.choose(number));
    element.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      selection.choose(number);
    });
    return element;
  }
  function chosenLine(view) {
    const line = el("p", { class: "chosen-recipe", role: "status" }, "Nothing chosen.");
    selection.onChoose((number) => {
      const row = view.rowOf.get(number);
      if (row === undefined) {
        line.textContent = `Chosen: trial ${number}, which is in trials.csv only.`;
        return;
      }
      const step = view.ran("step_time_s")(row);
      const parts = [`Chosen: ${view.words(row)}`];
      if (step !== null) {
        parts.push(`step ${format.seconds(step)}`, `memory ${format.gib(view.figure("needed_bytes")(row))}`,
          `run ${format.usd(view.figure("cost_of_run_usd")(row))}`);
      }
      line.textContent = [...parts, trialTable.why(view, row)].filter(Boolean).join("; ");
    });
    return line;
  }
  function tradeOffs(section, record, view) {
    section.append(chosenLine(view), scatter.draw(record, view), parallel.draw(record, view));
  }
  function closest(section, record) {
    section.querySelector("h2").textContent = "Closest misses";
    section.dataset.title = "Closest misses";
    section.append(el("p", {}, "Of the recipes that were simulated, those that lack least memory; below is " +
      "what each of their stages needs."), ranking.list(record.recipes, false));
  }
  // In the frame of MLflow's artifact viewer, links within the page would ask for another one.
  function go(event) {
    event.preventDefault();
    const target = byId(event.currentTarget.getAttribute("href").slice(1));
    target.scrollIntoView();
    target.setAttribute("tabindex", "-1");
    target.focus({ preventScroll: true });
  }
  function start() {
    const record = JSON.parse(byId("record").textContent);
    document.body.prepend(svg.textures());
    theme.start(byId("theme"));
    document.querySelector("a.skip").addEventListener("click", go);
    const view = trialTable.viewOf(record);
    const { answered } = record;
    const some = record.recipes.length > 0;
    const draws = {
      answer: answer.draw,
      why: answered ? breakdown.draw : record.recipes.length > 1 ? closest : null,
      tradeoffs: view.simulated.rows.length > 1 ? tradeOffs : null,
      layouts: record.map.cells.length > 1 ? layoutMap.draw : null,
      memory: some ? memory.draw : null,
      pipeline: answered ? pipeline.draw : null,
      sure: answered ? sensitivity.draw : null,
      trials: trialTable.draw,
      launch: record.launch.length ? launch.draw : null,
      particulars: particulars.draw,
    };
    for (const [id, draw] of Object.entries(draws)) {
      const section = byId(id);
      if (draw === null) {
        section.remove();
        continue;
      }
      draw(section, record, view);
      byId("sections").append(el("a", { href: `#${id}`, on: { click: go } }, section.dataset.title));
    }
    if (some) selection.choose(record.recipes[0].number);
    document.documentElement.dataset.ready = "true";
  }
  return { start, selectable, go };
})();
main.start();
