// Tables: a row for each group, which opens to show its runs.

const STATES = { done: "done", diverged: "diverged", unfinished: "unfinished", broken: "cannot be read" };

function stateOf(run) {
  let text = STATES[run.state];
  if (run.state === "diverged" && run.diverged !== null) text += ` at step ${fixed(run.diverged, 0)}`;
  if (run.state === "unfinished") text = run.reached === null ? "no epoch yet" : `epoch ${trimmed(run.reached)}${run.epochs ? ` of ${run.epochs}` : ""}`;
  return element("span", { class: `state ${run.state}`, title: run.problems.join("\n") || null }, text);
}

function groupLabel(content, number) {
  return [element("i", { class: `swatch g${number % 8}` }), content.groups[number].label];
}

/** What tells a group's recipe from the others', beside its name. */
function tags(content, number) {
  const { label } = content.groups[number];
  const words = content.differences
    .filter(({ key, values }) => key !== "method" && values[number] !== null)
    .map(({ key, values }) => `${key.split(".").pop()} ${values[number]}`)
    .filter((text) => !label.includes(text));
  const shown = words.length > 4 ? [...words.slice(0, 3), `${words.length - 3} more`] : words;
  return shown.map((text) => element("span", { class: "tag" }, text));
}

/** A heading cell with name, unit and meaning. */
const heading = (name) => element("th", { scope: "col", class: "number", title: name.meaning || null }, name.text, name.unit ? element("span", { class: "unit" }, `, ${name.unit}`) : null);

/**
 * A table whose group rows open.
 * @param headings cells of the head, after the first.
 * @param groupCells, runCells functions of a group's number and of (group, run's place in it).
 */
function openingTable(content, opened, id, caption, headings, groupCells, runCells) {
  const bodies = content.groups.map((group, number) => {
    const key = `${id} ${group.label}`;
    const rows = group.runs.map((index, place) => {
      const run = content.runs[index];
      return element("tr", { class: "single" }, element("th", { scope: "row" }, run.name), runCells(number, place, run));
    });
    const opens = group.runs.length > 1 || content.runs[group.runs[0]].name !== group.label;
    const button = element("button", { type: "button", class: "open", "aria-expanded": String(opened.has(key)) }, groupLabel(content, number));
    const show = () => rows.forEach((row) => (row.hidden = !opened.has(key)));
    button.addEventListener("click", () => {
      if (!opened.delete(key)) opened.add(key);
      button.setAttribute("aria-expanded", String(opened.has(key)));
      show();
    });
    show();
    return element("tbody", {}, element("tr", {}, element("th", { scope: "row" }, opens ? button : groupLabel(content, number), id === "summary-table" ? tags(content, number) : null), groupCells(number)), opens ? rows : null);
  });
  return element(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    element("table", { id }, element("caption", {}, element("span", {}, caption)), element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "method"), headings)), bodies),
  );
}

const numberCell = (child) => element("td", { class: "number" }, child);

function summaryTable(content, opened) {
  const { columns, rows } = content.summary;
  const spread = (cell) => cell && { mean: cell.mean, error: cell.std };
  const decimals = columns.map((_, k) => decimalsFor(rows.map((row) => spread(row.cells[k]))));
  const gainDecimals = decimals[columns.findIndex((column) => column.key === "test_accuracy")] || 2;
  const compared = rows.some((row) => row.against !== null);
  const references = new Set(rows.map((row) => row.against).filter((label) => label !== null));
  const against = references.size === 1 ? `against ${[...references][0]}` : "against its reference";
  const place = Math.max(columns.findIndex((column) => column.key === "test_accuracy"), 0) + 1;
  const insert = (cells, extra) => (compared ? [...cells.slice(0, place), extra, ...cells.slice(place)] : cells);
  const headings = insert(columns.map(heading), element("th", { scope: "col", class: "number", title: "Mean difference in test accuracy, seed by seed" }, against, element("span", { class: "unit" }, ", points")));
  const several = content.groups.some((group) => group.runs.length > 1);
  const caption = columns.length ? `What came out${several ? ": mean ± standard deviation over seeds; differences seed by seed, ± standard error" : ""}` : "No run has ended yet";
  return openingTable(
    content, opened, "summary-table", caption,
    [element("th", { scope: "col" }, "runs"), headings],
    (number) => {
      const row = rows[number];
      const cells = row.cells.map((cell, k) => numberCell(withError(spread(cell), decimals[k])));
      const gain = row.gain ? withError({ mean: row.gain.mean, error: row.gain.stderr }, gainDecimals, "+") : "";
      return [element("td", {}, runsText(content, number, row)), insert(cells, numberCell(gain))];
    },
    (number, place, run) => {
      const cells = columns.map((column, k) => numberCell(withError(column.key in run.result ? { mean: run.result[column.key] } : null, decimals[k])));
      return [element("td", {}, stateOf(run)), insert(cells, numberCell(""))];
    },
  );
}

function runsText(content, number, row) {
  const { runs } = content.groups[number];
  if (runs.length === 1) return stateOf(content.runs[runs[0]]);
  const words = [row.ended === runs.length ? plural(runs.length, "seed") : `${row.ended} of ${runs.length} ended`];
  if (row.diverged) words.push(`${row.diverged} diverged`);
  return element("span", { class: row.diverged ? "state diverged" : row.ended < runs.length ? "state unfinished" : "state done" }, words.join(", "));
}

function geometryTable(content, opened, table, index) {
  const decimals = table.columns.map((_, k) => decimalsFor(table.rows.map((row) => row.cells[k])));
  const cells = (values) => values.map((cell, k) => numberCell(withError(cell, decimals[k])));
  return openingTable(
    content, opened, `geometry-${index}`, table.title, table.columns.map(heading),
    (number) => cells(table.rows[number].cells),
    (number, place) => cells(table.rows[number].runs[place]),
  );
}

/** Keys of the recipes that differ, marked where a value is not the first group's. */
function differencesTable(content) {
  const { differences, groups } = content;
  if (!differences.length) return element("p", { class: "note" }, groups.length > 1 ? "The recipes that could be read are the same." : "All runs have the same recipe.");
  return element(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "Differences between the recipes" },
    element(
      "table",
      { id: "differences" },
      element("caption", {}, element("span", {}, "Where the recipes differ; all other keys are the same. Marked: not as in the first column.")),
      element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "key"), groups.map((_, number) => element("th", { scope: "col" }, groupLabel(content, number))))),
      element("tbody", {}, differences.map(({ key, values }) => element(
        "tr", {}, element("th", { scope: "row" }, element("code", {}, key)),
        values.map((value, k) => element("td", { class: value !== values[0] ? "differs" : null }, value === null ? "—" : element("code", {}, value))),
      ))),
    ),
  );
}

function recipes(content) {
  return content.groups.map((group, number) => {
    const text = content.runs[group.runs[0]].recipe;
    return text ? element("details", {}, element("summary", {}, groupLabel(content, number), " — whole recipe"), element("pre", { tabindex: "0" }, text)) : null;
  });
}

function environmentTable(content) {
  const { environments } = content;
  const keys = ["hardware", "processes", "python", "torch", "crsam", "commit", "date"];
  if (!environments.length) return element("p", { class: "note" }, "No run has an environment.json that could be read.");
  return element(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "Environment" },
    element("table", { id: "environment-table" },
      element("caption", {}, element("span", {}, environments.length > 1 ? "The runs were not all made in one environment. Marked: not as in the first row." : "All runs were made in one environment.")),
      element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "runs"), keys.map((key) => element("th", { scope: "col" }, key)))),
      element("tbody", {}, environments.map(({ values, runs }) => element("tr", {}, element("th", { scope: "row", title: names(content, runs) }, plural(runs.length, "run")), keys.map((key) => element("td", { class: values[key] !== environments[0].values[key] ? "differs" : null }, values[key] || "—")))))),
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
  return element("div", { class: "command" }, element("p", { class: "note" }, note), element("div", {}, element("pre", { tabindex: "0" }, code), button));
}
