// Elements made of plain data. Text goes in as text: no name a user gave is ever read as HTML.
const dom = (() => {
  function set(element, attributes) {
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (name === "on") {
        for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
      } else if (name === "style") {
        for (const [property, given] of Object.entries(value)) {
          element.style.setProperty(property, given);
        }
      } else {
        element.setAttribute(name, value === true ? "" : value);
      }
    }
    return element;
  }
  function el(tag, attributes = {}, ...children) {
    const element = set(document.createElement(tag), attributes);
    element.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return element;
  }
  const byId = (id) => document.getElementById(id);
  function clear(element, ...children) {
    element.replaceChildren(...children);
    return element;
  }

  const box = byId("tip");
  function place(x, y) {
    const { width, height } = box.getBoundingClientRect();
    box.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 4))}px`;
    const below = y + 18 + height < innerHeight;
    box.style.top = `${Math.max(4, below ? y + 18 : y - height - 12)}px`;
  }
  function showTip(text, x, y) {
    box.textContent = text;
    box.hidden = false;
    place(x, y);
  }
  function hideTip() {
    box.hidden = true;
  }
  // What hovering over an element, or reaching it with the keyboard, says.
  function tip(element, text) {
    const words = () => (typeof text === "function" ? text() : text);
    element.addEventListener("pointermove", (event) => showTip(words(), event.clientX, event.clientY));
    element.addEventListener("pointerleave", hideTip);
    element.addEventListener("focus", () => {
      const { left, bottom } = element.getBoundingClientRect();
      showTip(words(), left, bottom - 12);
    });
    element.addEventListener("blur", hideTip);
    return element;
  }
  addEventListener("keydown", (event) => {
    if (event.key === "Escape") hideTip();
  });

  function figure(title, note, ...children) {
    const caption = el("figcaption", {}, title);
    if (note) caption.append(" ", el("span", { class: "faint small" }, note));
    return el("figure", {}, caption, ...children);
  }
  function choice(label, options, chosen, act) {
    const select = el("select", { on: { change: () => act(Number(select.value)) } },
      options.map((words, at) => el("option", { value: at, selected: at === chosen }, words)));
    return { label: el("label", {}, `${label} `, select), select };
  }
  function table(heads, rows, numbers = []) {
    const kind = (at) => (numbers.includes(at) ? "n" : null);
    return el("div", { class: "wide" }, el("table", {},
      el("thead", {}, el("tr", {}, heads.map((head, at) =>
        el("th", { scope: "col", class: kind(at) }, head)))),
      el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map((cell, at) =>
        el("td", { class: kind(at) }, cell)))))));
  }
  return { el, set, byId, clear, tip, showTip, hideTip, figure, choice, table };
})();
