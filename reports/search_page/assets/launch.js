// The files that start the best recipe, ready to copy.
const launch = (() => {
  const { el } = dom;
  // Inside another page's frame, files beside the report cannot be reached.
  const framed = window.parent !== window;
  async function copy(text, button) {
    const words = button.textContent;
    const done = (!framed && await copyDirectly(text)) || copyBySelecting(text);
    button.textContent = done ? "Copied" : "Select the text below and copy it";
    setTimeout(() => {
      button.textContent = words;
    }, 2000);
  }
  async function copyDirectly(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      return false;
    }
  }
  // Frames without leave to use the clipboard may still copy what is selected.
  function copyBySelecting(text) {
    const area = el("textarea", { readonly: true, "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
  const copier = (file, words) => {
    const button = el("button", { type: "button", on: { click: () => copy(file.text, button) } }, words);
    return button;
  };
  const link = (file) => (framed ? el("code", {}, file.name)
    : el("a", { href: file.name.split("/").map(encodeURIComponent).join("/") }, file.name));

  function actions(record) {
    if (!record.launch.length) return "";
    const [first, ...others] = record.launch;
    const rest = others.length ? [" or see ", el("a", { href: "#launch", on: { click: main.go } },
      `${format.plural(others.length, "other launch file")}`)] : [];
    return el("div", { class: "actions" }, copier(first, `Copy ${first.name}`),
      el("span", {}, "open ", link(first), rest));
  }
  function draw(section, record) {
    section.append(el("p", {}, "Generated for ", el("span", { class: "recipe" }, record.recipes[0].words),
      ". Data, tokenizer, learning rate and checkpoints are yours to fill in."));
    record.launch.forEach((file, at) => section.append(el("details", { open: at === 0 },
      el("summary", {}, link(file)), el("div", { class: "controls" }, copier(file, "Copy")),
      el("pre", {}, file.text))));
  }
  return { actions, draw };
})();
