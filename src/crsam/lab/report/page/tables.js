// Tables: a row for each group, which opens to show its runs.

const STATES = { done: "done", diverged: "diverged", unfinished: "unfinished", broken: "cannot be read" };

function stateOf(run) {
  let text = STATES[run.state];
  if (run.state === "diverged" && run.diverged !== null) text += ` at step ${fixed(run.diverged, 0)}`;
  if (run.state === "unfinished")
    text =
      run.reached === null
        ? "no epoch yet"
        : `epoch ${trimmed(run.reached)}${run.epochs ? ` of ${run.epochs}` : ""}`;
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
const heading = (name) =>
  element(
    "th",
    { scope: "col", class: "number", title: name.meaning || null },
    name.text,
    name.unit ? element("span", { class: "unit" }, `, ${name.unit}`) : null,
  );

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
      return element(
        "tr",
        { class: "single" },
        element("th", { scope: "row" }, run.name),
        runCells(number, place, run),
      );
    });
    const opens = group.runs.length > 1 || content.runs[group.runs[0]].name !== group.label;
    const button = element(
      "button",
      { type: "button", class: "open", "aria-expanded": String(opened.has(key)) },
      groupLabel(content, number),
    );
    const show = () => rows.forEach((row) => (row.hidden = !opened.has(key)));
    button.addEventListener("click", () => {
      if (!opened.delete(key)) opened.add(key);
      button.setAttribute("aria-expanded", String(opened.has(key)));
      show();
    });
    show();
    return element(
      "tbody",
      {},
      element(
        "tr",
        {},
        element(
          "th",
          { scope: "row" },
          opens ? button : groupLabel(content, number),
          id === "summary-table" ? tags(content, number) : null,
        ),
        groupCells(number),
      ),
      opens ? rows : null,
    );
  });
  return element(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    element(
      "table",
      { id },
      element("caption", {}, element("span", {}, caption)),
      element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "method"), headings)),
      bodies,
    ),
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
  const place =
    Math.max(
      columns.findIndex((column) => column.key === "test_accuracy"),
      0,
    ) + 1;
  const insert = (cells, extra) =>
    compared ? [...cells.slice(0, place), extra, ...cells.slice(place)] : cells;
  const headings = insert(
    columns.map(heading),
    element(
      "th",
      { scope: "col", class: "number", title: "Mean difference in test accuracy, seed by seed" },
      against,
      element("span", { class: "unit" }, ", points"),
    ),
  );
  const several = content.groups.some((group) => group.runs.length > 1);
  const caption = columns.length
    ? `What came out${several ? ": mean ± standard deviation over seeds; differences seed by seed, ± standard error" : ""}`
    : "No run has ended yet";
  return openingTable(
    content,
    opened,
    "summary-table",
    caption,
    [element("th", { scope: "col" }, "runs"), headings],
    (number) => {
      const row = rows[number];
      const cells = row.cells.map((cell, k) => numberCell(withError(spread(cell), decimals[k])));
      const gain = row.gain
        ? withError({ mean: row.gain.mean, error: row.gain.stderr }, gainDecimals, "+")
        : "";
      return [element("td", {}, runsText(content, number, row)), insert(cells, numberCell(gain))];
    },
    (number, place, run) => {
      const cells = columns.map((column, k) =>
        numberCell(
          withError(column.key in run.result ? { mean: run.result[column.key] } : null, decimals[k]),
        ),
      );
      return [element("td", {}, stateOf(run)), insert(cells, numberCell(""))];
    },
  );
}

function runsText(content, number, row) {
  const { runs } = content.groups[number];
  if (runs.length === 1) return stateOf(content.runs[runs[0]]);
  const words = [
    row.ended === runs.length ? plural(runs.length, "seed") : `${row.ended} of ${runs.length} ended`,
  ];
  if (row.diverged) words.push(`${row.diverged} diverged`);
  return element(
    "span",
    { class: row.diverged ? "state diverged" : row.ended < runs.length ? "state unfinished" : "state done" },
    words.join(", "),
  );
}

function figuresTable(content, opened, table, id) {
  const decimals = table.columns.map((_, k) => decimalsFor(table.rows.map((row) => row.cells[k])));
  const cells = (values) => values.map((cell, k) => numberCell(withError(cell, decimals[k])));
  return openingTable(
    content,
    opened,
    id,
    table.title,
    table.columns.map(heading),
    (number) => cells(table.rows[number].cells),
    (number, place) => cells(table.rows[number].runs[place]),
  );
}
