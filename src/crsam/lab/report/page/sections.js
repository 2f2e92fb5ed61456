// How the runs were made: recipes, environments and commands.

/** Keys of the recipes that differ, marked where a value is not the first group's. */
function differencesTable(content) {
  const { differences, groups } = content;
  if (!differences.length)
    return element(
      "p",
      { class: "note" },
      groups.length > 1 ? "The recipes that could be read are the same." : "All runs have the same recipe.",
    );
  return element(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "Differences between the recipes" },
    element(
      "table",
      { id: "differences" },
      element(
        "caption",
        {},
        element(
          "span",
          {},
          "Where the recipes differ; all other keys are the same. Marked: not as in the first column.",
        ),
      ),
      element(
        "thead",
        {},
        element(
          "tr",
          {},
          element("th", { scope: "col" }, "key"),
          groups.map((_, number) => element("th", { scope: "col" }, groupLabel(content, number))),
        ),
      ),
      element(
        "tbody",
        {},
        differences.map(({ key, values }) =>
          element(
            "tr",
            {},
            element("th", { scope: "row" }, element("code", {}, key)),
            values.map((value, k) =>
              element(
                "td",
                { class: value !== values[0] ? "differs" : null },
                value === null ? "—" : element("code", {}, value),
              ),
            ),
          ),
        ),
      ),
    ),
  );
}

function recipes(content) {
  return content.groups.map((group, number) => {
    const text = content.runs[group.runs[0]].recipe;
    return text
      ? element(
          "details",
          {},
          element("summary", {}, groupLabel(content, number), " — whole recipe"),
          element("pre", { tabindex: "0" }, text),
        )
      : null;
  });
}

function environmentTable(content) {
  const { environments } = content;
  const keys = ["hardware", "processes", "python", "torch", "crsam", "commit", "date"];
  if (!environments.length)
    return element("p", { class: "note" }, "No run has an environment.json that could be read.");
  return element(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "Environment" },
    element(
      "table",
      { id: "environment-table" },
      element(
        "caption",
        {},
        element(
          "span",
          {},
          environments.length > 1
            ? "The runs were not all made in one environment. Marked: not as in the first row."
            : "All runs were made in one environment.",
        ),
      ),
      element(
        "thead",
        {},
        element(
          "tr",
          {},
          element("th", { scope: "col" }, "runs"),
          keys.map((key) => element("th", { scope: "col" }, key)),
        ),
      ),
      element(
        "tbody",
        {},
        environments.map(({ values, runs }) =>
          element(
            "tr",
            {},
            element("th", { scope: "row", title: names(content, runs) }, plural(runs.length, "run")),
            keys.map((key) =>
              element(
                "td",
                { class: values[key] !== environments[0].values[key] ? "differs" : null },
                values[key] || "—",
              ),
            ),
          ),
        ),
      ),
    ),
  );
}

const names = (content, runs) => runs.map((index) => content.runs[index].name).join(", ");

function commandLine(command, note) {
  const button = element("button", { type: "button", class: "small copy" }, "copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(command);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "selected";
    }
    setTimeout(() => (button.textContent = "copy"), 1500);
  });
  const code = element("code", {}, command);
  return element(
    "div",
    { class: "command" },
    element("p", { class: "note" }, note),
    element("div", {}, element("pre", { tabindex: "0" }, code), button),
  );
}
