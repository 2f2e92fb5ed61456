// Elements and numbers. Text only ever enters the page as text, never as markup.

/** An element with attributes, listeners (`onclick: f`) and children. */
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return made;
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** A number in few digits, however large or small: 0.0617, 1,109, 3.2e-7. */
function short(value, digits = 4) {
  if (!isNumber(value)) return "—";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e7)) {
    return value
      .toExponential(digits - 2)
      .replace("-", "−")
      .replace("e+", "e")
      .replace("e-", "e−");
  }
  const decimals = size === 0 ? 0 : digits - 1 - Math.floor(Math.log10(size));
  return fixed(value, Math.min(Math.max(decimals, 0), 8));
}

function fixed(value, decimals) {
  const text = Math.abs(value).toLocaleString("en-US", {
    minimumFractionDigits: decimals,
    maximumFractionDigits: decimals,
  });
  return value < 0 && Number(text.replace(/,/g, "")) !== 0 ? `−${text}` : text;
}

/** The same without zeros that say nothing: 6 for 6.00. */
const trimmed = (value, digits = 4) =>
  short(value, digits)
    .replace(/(\.\d*?)0+$/, "$1")
    .replace(/\.$/, "");

/** Decimals for a column, so that its numbers line up: two digits of a usual error. */
function decimalsFor(cells) {
  const sizes = (key) => cells.map((cell) => cell && cell[key]).filter((v) => isNumber(v) && v !== 0);
  const middle = (values) => values.map(Math.abs).sort((a, b) => a - b)[values.length >> 1];
  const errors = sizes("error");
  const [size, digits] = errors.length ? [middle(errors), 2] : [middle(sizes("mean")), 4];
  if (size === undefined) return 0;
  return Math.min(Math.max(digits - 1 - Math.floor(Math.log10(size)), 0), 7);
}

/** "93.24 ± 1.31", the error muted; a dash where there is no value. */
function withError(cell, decimals, sign = "") {
  if (!cell) return element("span", { class: "none", "aria-label": "no value" }, "—");
  const plus = sign && cell.mean >= 0 ? sign : "";
  const value =
    Math.abs(cell.mean) < 10 ** -decimals / 2 && cell.mean !== 0
      ? short(cell.mean, 3)
      : fixed(cell.mean, decimals);
  return element(
    "span",
    {},
    plus + value,
    isNumber(cell.error) ? element("span", { class: "error" }, ` ± ${fixed(cell.error, decimals)}`) : null,
    cell.num < cell.of ? element("span", { class: "error" }, ` (${cell.num} of ${cell.of})`) : null,
  );
}

/** "time, s": a name with its unit. */
const withUnit = (name) => (name.unit ? `${name.text}, ${name.unit}` : name.text);

const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

/** The page's own colours, as the style sheet has them for light or dark. */
function palette() {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue(name).trim();
  return {
    ink: get("--ink"),
    muted: get("--muted"),
    line: get("--line"),
    paper: get("--panel"),
    groups: Array.from({ length: 8 }, (_, index) => get(`--c${index}`)),
  };
}

const DASHES = [[], [7, 3], [2, 3], [8, 3, 2, 3]];
/** More groups than colours: the colours come again, dashed. */
const colourOf = (group, colours) => colours.groups[group % 8];
const dashOf = (group) => DASHES[Math.floor(group / 8) % DASHES.length];

/** A canvas that is as sharp as the screen; returns its context and size in CSS pixels. */
function sharpen(canvas) {
  const scale = Math.min(window.devicePixelRatio || 1, 2);
  const { clientWidth: width, clientHeight: height } = canvas;
  canvas.width = Math.max(Math.round(width * scale), 1);
  canvas.height = Math.max(Math.round(height * scale), 1);
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  return { context, width, height };
}
