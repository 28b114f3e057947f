// Light or dark: what the system prefers until the reader chooses.
const theme = (() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const listeners = [];
  const page = document.documentElement;
  // Reports are also shown in frames that may keep nothing.
  function kept() {
    try {
      return localStorage.getItem("trainscout-theme");
    } catch {
      return null;
    }
  }
  function keep(name) {
    try {
      localStorage.setItem("trainscout-theme", name);
    } catch {
      // Chosen for this view only.
    }
  }
  const current = () => page.dataset.theme || (dark.matches ? "dark" : "light");
  function announce(button) {
    const other = current() === "dark" ? "light" : "dark";
    button.textContent = other === "dark" ? "☾ Dark" : "☀ Light";
    button.setAttribute("aria-label", `Show the report in ${other} colours`);
    for (const listen of listeners) listen();
  }
  function start(button) {
    const chosen = kept();
    if (chosen === "dark" || chosen === "light") page.dataset.theme = chosen;
    button.addEventListener("click", () => {
      page.dataset.theme = current() === "dark" ? "light" : "dark";
      keep(page.dataset.theme);
      announce(button);
    });
    dark.addEventListener("change", () => announce(button));
    announce(button);
  }
  const colour = (name) => getComputedStyle(page).getPropertyValue(name).trim();
  return { start, colour, onChange: (listen) => listeners.push(listen) };
})();
