// Puts the page together, and keeps it up to date where it is served live.

const state = {
  hidden: new Set(),
  known: new Set(),
  curves: new Set(),
  singles: false,
  opened: new Set(),
  content: null,
  hides(number) {
    return this.hidden.has(this.content.groups[number].label);
  },
};
const root = document.getElementById("page");
const live = root.dataset.live === "true";
const parts = {};

function section(id, title, ...children) {
  return element(
    "section",
    { id, "aria-labelledby": `${id}-title` },
    element("h2", { id: `${id}-title` }, title),
    children,
  );
}

function headline(content) {
  const { runs, made } = content;
  const words = [plural(runs.length, "run"), `made ${made.date}`, `crsam ${made.crsam}`];
  if (content.setting.length) words.unshift(content.setting.join(", "));
  return element(
    "header",
    { class: "top" },
    element(
      "div",
      {},
      element("p", { class: "over" }, live ? "crsam, live" : "crsam report"),
      element("h1", {}, content.title),
      element("p", { class: "note" }, words.join(" · ")),
    ),
    element("div", { class: "aside" }, live ? parts.pulse : null, parts.theme),
  );
}

function themeButton() {
  const button = element("button", { type: "button", id: "theme" }, "Theme: auto");
  button.addEventListener("click", () => {
    const next = { "": "light", light: "dark", dark: "" }[document.documentElement.dataset.theme || ""];
    document.documentElement.dataset.theme = next;
    button.textContent = `Theme: ${next || "auto"}`;
    redraw();
  });
  return button;
}

function navigation(content) {
  const entries = [
    ["summary", "Summary"],
    ["curves", "Curves", content.curves.length],
    ["landscapes", "Landscapes", content.landscapes.length],
    ["geometry", "Geometry", content.geometry.length],
    ["robustness", "Robustness", content.robustness.length],
    ["recipes", "Recipes"],
    ["environment", "Environment"],
    ["reproduce", "Reproduce"],
  ];
  const links = entries
    .filter(([, , there]) => there === undefined || there > 0)
    .map(([id, text]) => element("a", { href: `#${id}` }, text));
  return element("nav", { "aria-label": "Sections" }, links);
}

/** A chip for each group: shows or hides it in all curves and landscapes. */
function toggles(content) {
  return element(
    "div",
    { class: "toggles chips", role: "group", "aria-label": "Methods shown in curves and landscapes" },
    content.groups.map((group, number) => {
      const button = element(
        "button",
        {
          type: "button",
          class: "chip",
          "data-group": String(number),
          "aria-pressed": String(!state.hides(number)),
        },
        groupLabel(content, number),
      );
      button.addEventListener("click", () => {
        if (!state.hidden.delete(group.label)) state.hidden.add(group.label);
        button.setAttribute("aria-pressed", String(!state.hides(number)));
        parts.curves.draw();
        parts.landscapes.draw();
      });
      return button;
    }),
  );
}

function problems(content) {
  const bad = content.runs.filter((run) => run.problems.length);
  if (!bad.length) return null;
  return element(
    "details",
    { class: "problems", id: "problems", open: bad.length <= 6 },
    element("summary", {}, `Not everything is as it should be in ${plural(bad.length, "run")}`),
    element(
      "ul",
      {},
      bad.map((run) => element("li", {}, element("b", {}, run.name), `: ${run.problems.join("; ")}`)),
    ),
  );
}

function reproduce(content) {
  const made = content.commands.map(({ command, runs }) =>
    commandLine(
      command,
      runs.length === content.runs.length
        ? "All runs were made by"
        : `${plural(runs.length, "run")} (${names(content, runs)}) by`,
    ),
  );
  const withRecipe = content.groups.filter((group) => content.runs[group.runs[0]].recipe);
  const again = withRecipe.length
    ? commandLine(
        "crsam train RUN/recipe.toml --out again",
        "Any single run, from the recipe in its folder, by",
      )
    : null;
  return made.length || again
    ? [made, again]
    : element("p", { class: "note" }, "No run says how it was made.");
}

function build(content) {
  state.content = content;
  document.title = `${content.title} — crsam`;
  if (!parts.curves) {
    parts.theme = themeButton();
    parts.pulse = element("span", { class: "pulse" });
    parts.curves = new Curves(content, state);
    parts.landscapes = new Landscapes(content, state);
  } else {
    parts.curves.update(content);
    parts.landscapes.update(content);
  }
  const empty = content.runs.length === 0;
  const before = [
    headline(content),
    navigation(content),
    problems(content),
    section(
      "summary",
      "Summary",
      empty
        ? element("p", { class: "note" }, "No run yet. This page will show runs as soon as there are any.")
        : summaryTable(content, state.opened),
    ),
    toggles(content),
  ];
  const geometry = content.geometry.length
    ? section(
        "geometry",
        "Geometry",
        element(
          "p",
          { class: "note" },
          "How flat the place is that each model came to. Of several seeds the mean ± its standard error; of one run its value ± the error of the estimate, where there is one.",
        ),
        content.geometry.map((table, index) =>
          figuresTable(content, state.opened, table, `geometry-${index}`),
        ),
      )
    : null;
  const robustness = content.robustness.length
    ? section(
        "robustness",
        "Robustness",
        element(
          "p",
          { class: "note" },
          "On corrupted images and renditions (crsam evaluate). Of several seeds the mean ± its standard error. A set with corruptions missing has no mean.",
        ),
        content.robustness.map((table, index) =>
          figuresTable(content, state.opened, table, `robustness-${index}`),
        ),
      )
    : null;
  const after = [
    geometry,
    robustness,
    section("recipes", "Recipes", differencesTable(content), recipes(content)),
    section("environment", "Environment", environmentTable(content)),
    section("reproduce", "Reproduce", reproduce(content)),
  ];
  place("before", before);
  place("after", after);
  if (!root.contains(parts.curves.section))
    parts.before.after(parts.curves.section, parts.landscapes.section);
}

/** Charts stay where they are, so that a live update does not disturb who is looking at them. */
function place(name, children) {
  if (!parts[name]) {
    parts[name] = element("div", { class: "part" });
    root.append(parts[name]);
  }
  const opened = new Set(
    [...parts[name].querySelectorAll("details[open] > summary")].map((summary) => summary.textContent),
  );
  parts[name].replaceChildren(...children.filter(Boolean));
  for (const summary of parts[name].querySelectorAll("summary"))
    if (opened.has(summary.textContent)) summary.parentElement.open = true;
}

function redraw() {
  parts.curves.draw();
  parts.landscapes.schedule();
}

async function refresh(known) {
  let tag = known;
  try {
    const answer = await fetch("content.json", {
      headers: known ? { "If-None-Match": known } : {},
      cache: "no-store",
    });
    if (answer.status === 200) {
      const content = await answer.json();
      // Rows are put up anew: whoever is at one of them with the keyboard stays there.
      const controls = () => [...root.querySelectorAll(".part :is(button, a, summary)")];
      const focused = controls().indexOf(document.activeElement);
      build(content);
      if (focused >= 0) controls()[focused]?.focus({ preventScroll: true });
      tag = answer.headers.get("ETag");
    }
    parts.pulse.textContent = `updated ${new Date().toLocaleTimeString()}`;
    parts.pulse.classList.remove("lost");
  } catch {
    parts.pulse.textContent = "no answer: is crsam report --serve still running?";
    parts.pulse.classList.add("lost");
  }
  setTimeout(() => refresh(tag), document.hidden ? 10000 : 2000);
}

build(JSON.parse(document.getElementById("content").textContent));
let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth !== width) redraw();
  width = window.innerWidth;
});
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
if (live) refresh(null);
