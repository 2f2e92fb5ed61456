// One chart: lines with bands over a shared x axis. Two canvases, so that moving the cursor
// never draws the lines again.

const MARGIN = { left: 58, right: 12, top: 8, bottom: 26 };

/** Round values that cut the range into about `count` parts. */
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.75);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
  return found;
}

/** Powers of ten, or round values where the range has less than one of them. */
function logTicks(low, high) {
  const found = [];
  const every = Math.max(Math.ceil((high - low) / 6), 1);
  for (let k = Math.ceil(low - 1e-9); k <= high + 1e-9; k += every) found.push(k);
  if (found.length > 1) return found;
  return ticks(10 ** low, 10 ** high, 4).filter((v) => v > 0).map(Math.log10);
}

const tickText = (value, step) => (step && Math.abs(value) < step * 1e-6 ? "0" : trimmed(value, 3));

/** The index of the x nearest to a value; xs are sorted. */
function nearest(xs, value) {
  let low = 0;
  let high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] < value) low = middle;
    else high = middle;
  }
  return Math.abs(xs[low] - value) <= Math.abs(xs[high] - value) ? low : high;
}

class Chart {
  /**
   * @param about text, unit, meaning, and xText, the name of the x axis.
   * @param view shared by all charts: `range` ([a, b] or null), `cursor` (x or null),
   *   `moved()` and `zoomed()` to tell the others.
   */
  constructor(about, view) {
    this.about = about;
    this.view = view;
    this.lines = [];
    this.log = false;
    this.drag = null;
    this.pointed = null;
    this.base = element("canvas", { class: "base", "aria-hidden": "true" });
    this.top = element("canvas", { class: "top", tabindex: "0", role: "img" });
    this.readout = element("div", { class: "readout" });
    this.logButton = element(
      "button",
      { type: "button", class: "small", "aria-pressed": "false", "aria-label": `${about.text}: logarithmic scale`, onclick: () => this.toggleLog() },
      "log",
    );
    this.figure = element(
      "figure",
      { class: "chart", "data-curve": about.id },
      element("figcaption", { title: about.meaning || null }, element("span", { class: "name" }, about.text), about.unit ? element("span", { class: "unit" }, ` ${about.unit}`) : null, this.logButton),
      element("div", { class: "canvases" }, this.base, this.top),
      this.readout,
    );
    this.listen();
  }

  listen() {
    const top = this.top;
    top.addEventListener("pointerdown", (event) => {
      if (event.pointerType !== "touch" && event.button === 0) {
        this.drag = { from: this.at(event), to: this.at(event) };
        top.setPointerCapture(event.pointerId);
      }
      this.point(event);
    });
    top.addEventListener("pointermove", (event) => {
      if (this.drag) this.drag.to = this.at(event);
      this.point(event);
    });
    top.addEventListener("pointerup", () => this.endDrag());
    top.addEventListener("pointercancel", () => (this.drag = null));
    top.addEventListener("pointerleave", () => {
      this.pointed = null;
      if (!this.drag) this.moveTo(null);
    });
    top.addEventListener("dblclick", () => this.zoomTo(null));
    top.addEventListener("keydown", (event) => this.press(event));
  }

  at(event) {
    const box = this.top.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  point(event) {
    this.pointed = this.at(event);
    this.moveTo(this.valueAt(this.pointed.x));
  }

  moveTo(x) {
    this.view.cursor = x;
    this.view.moved();
  }

  endDrag() {
    const drag = this.drag;
    this.drag = null;
    if (!drag) return;
    const [a, b] = [this.valueAt(drag.from.x), this.valueAt(drag.to.x)].sort((p, q) => p - q);
    if (Math.abs(drag.to.x - drag.from.x) > 6) this.zoomTo([a, b]);
    else this.view.moved();
  }

  zoomTo(range) {
    this.view.range = range;
    this.view.zoomed();
  }

  press(event) {
    const line = this.lines.find((each) => each.x.length);
    if (!line) return;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) {
      const now = this.view.cursor === null ? line.x.length - 1 : nearest(line.x, this.view.cursor) + step;
      this.moveTo(line.x[Math.min(Math.max(now, 0), line.x.length - 1)]);
    } else if (event.key === "+" || event.key === "=") this.view.zoomBy(0.5);
    else if (event.key === "-") this.view.zoomBy(2);
    else if (event.key === "0" || event.key === "Escape") this.zoomTo(null);
    else if (event.key === "l") this.toggleLog();
    else return;
    event.preventDefault();
  }

  toggleLog() {
    this.log = !this.log;
    this.logButton.setAttribute("aria-pressed", String(this.log));
    this.draw();
  }

  /** What to show: {label, group, x, y, low, high, bad, single, num}; y may hold null. */
  show(lines) {
    this.lines = lines;
    this.draw();
  }

  measure() {
    const [from, to] = this.view.range || this.view.whole(this);
    this.from = from;
    this.to = to > from ? to : from + 1;
    const up = this.log ? (v) => (v > 0 ? Math.log10(v) : NaN) : (v) => v;
    let low = Infinity;
    let high = -Infinity;
    for (const line of this.lines) {
      for (let k = 0; k < line.x.length; k++) {
        if (line.x[k] < this.from || line.x[k] > this.to || line.y[k] === null) continue;
        for (const value of [line.y[k], line.low && line.low[k], line.high && line.high[k]]) {
          const v = isNumber(value) ? up(value) : NaN;
          if (v < low) low = v;
          if (v > high) high = v;
        }
      }
    }
    if (!(low <= high)) [low, high] = this.log ? [-1, 0] : [0, 1];
    const pad = (high - low || Math.abs(high) || 1) * 0.05;
    this.low = low - pad;
    this.high = high + pad;
    this.up = up;
  }

  valueAt(px) {
    const { left, right } = MARGIN;
    const share = (px - left) / Math.max(this.width - left - right, 1);
    return this.from + Math.min(Math.max(share, 0), 1) * (this.to - this.from);
  }

  px(x) {
    return MARGIN.left + ((x - this.from) / (this.to - this.from)) * (this.width - MARGIN.left - MARGIN.right);
  }

  py(y) {
    const share = (this.up(y) - this.low) / (this.high - this.low);
    return this.height - MARGIN.bottom - share * (this.height - MARGIN.top - MARGIN.bottom);
  }

  draw() {
    const { context: c, width, height } = sharpen(this.base);
    Object.assign(this, { width, height });
    this.colours = palette();
    this.measure();
    this.drawAxes(c);
    c.save();
    c.beginPath();
    c.rect(MARGIN.left, MARGIN.top - 1, width - MARGIN.left - MARGIN.right, height - MARGIN.top - MARGIN.bottom + 2);
    c.clip();
    for (const line of this.lines) if (line.low) this.drawBand(c, line);
    for (const line of this.lines) this.drawLine(c, line, line.single ? 1 : 2, line.single ? 0.55 : 1);
    c.restore();
    for (const line of this.lines) this.drawBad(c, line);
    this.drawCursor();
  }

  drawAxes(c) {
    const { width, height } = this;
    c.font = "11px system-ui, sans-serif";
    c.lineWidth = 1;
    c.strokeStyle = this.colours.line;
    c.fillStyle = this.colours.muted;
    c.textAlign = "right";
    c.textBaseline = "middle";
    const ys = this.log ? logTicks(this.low, this.high) : ticks(this.low, this.high, 4);
    for (const y of ys) {
      const value = this.log ? 10 ** y : y;
      const at = Math.round(this.py(value)) + 0.5;
      c.beginPath();
      c.moveTo(MARGIN.left, at);
      c.lineTo(width - MARGIN.right, at);
      c.stroke();
      c.fillText(tickText(value, this.log ? 0 : ys[1] - ys[0]), MARGIN.left - 7, at);
    }
    c.textBaseline = "top";
    c.textAlign = "center";
    const xs = ticks(this.from, this.to, Math.min(width / 80, 8));
    for (const x of xs) c.fillText(tickText(x, xs[1] - xs[0]), this.px(x), height - MARGIN.bottom + 8);
    c.textAlign = "right";
    c.fillText(this.about.xText || "epoch", MARGIN.left - 7, height - MARGIN.bottom + 8);
  }

  /** Runs of neighbours that all have a value. */
  stretches(line) {
    const found = [];
    let start = -1;
    for (let k = 0; k <= line.x.length; k++) {
      const there = k < line.x.length && line.y[k] !== null && isNumber(this.py(line.y[k]));
      if (there && start < 0) start = k;
      if (!there && start >= 0) {
        found.push([start, k]);
        start = -1;
      }
    }
    return found;
  }

  drawLine(c, line, weight, alpha) {
    c.strokeStyle = c.fillStyle = colourOf(line.group, this.colours);
    c.setLineDash(dashOf(line.group));
    c.globalAlpha = alpha;
    c.lineWidth = weight;
    c.lineJoin = "round";
    for (const [start, end] of this.stretches(line)) {
      c.beginPath();
      for (let k = start; k < end; k++) c.lineTo(this.px(line.x[k]), this.py(line.y[k]));
      if (end - start === 1) c.arc(this.px(line.x[start]), this.py(line.y[start]), weight, 0, 7);
      c.stroke();
    }
    c.setLineDash([]);
    c.globalAlpha = 1;
  }

  drawBand(c, line) {
    c.fillStyle = colourOf(line.group, this.colours);
    c.globalAlpha = 0.16;
    const floor = this.height;
    const edge = (value) => (isNumber(this.py(value)) ? this.py(value) : floor);
    for (const [start, end] of this.stretches(line)) {
      c.beginPath();
      for (let k = start; k < end; k++) c.lineTo(this.px(line.x[k]), edge(line.high[k]));
      for (let k = end - 1; k >= start; k--) c.lineTo(this.px(line.x[k]), edge(line.low[k]));
      c.fill();
    }
    c.globalAlpha = 1;
  }

  /** A cross on the axis where a value was written that is not finite. */
  drawBad(c, line) {
    c.strokeStyle = colourOf(line.group, this.colours);
    c.lineWidth = 1.5;
    const y = this.height - MARGIN.bottom;
    let last = -Infinity;
    for (const x of line.bad || []) {
      const at = this.px(x);
      if (x < this.from || x > this.to || at - last < 5) continue;
      last = at;
      c.beginPath();
      c.moveTo(at - 3, y - 3);
      c.lineTo(at + 3, y + 3);
      c.moveTo(at + 3, y - 3);
      c.lineTo(at - 3, y + 3);
      c.stroke();
    }
  }

  /** The single run nearest to the pointer, if it is near. */
  pointedRun() {
    if (!this.pointed || this.view.cursor === null) return null;
    let best = null;
    let least = 14;
    for (const line of this.lines) {
      if (!line.single || !line.x.length) continue;
      const k = nearest(line.x, this.view.cursor);
      const off = line.y[k] === null ? NaN : Math.abs(this.py(line.y[k]) - this.pointed.y);
      if (off < least) [best, least] = [line, off];
    }
    return best;
  }

  drawCursor() {
    const { context: c, width, height } = sharpen(this.top);
    const cursor = this.view.cursor;
    const run = this.pointedRun();
    if (run) this.drawLine(c, run, 2.5, 1);
    if (cursor !== null && cursor >= this.from && cursor <= this.to) {
      c.strokeStyle = this.colours.muted;
      c.lineWidth = 1;
      c.beginPath();
      c.moveTo(Math.round(this.px(cursor)) + 0.5, MARGIN.top);
      c.lineTo(Math.round(this.px(cursor)) + 0.5, height - MARGIN.bottom);
      c.stroke();
      for (const line of this.lines) this.drawDot(c, line, cursor);
    }
    if (this.drag) {
      const [a, b] = [this.drag.from.x, this.drag.to.x].sort((p, q) => p - q);
      c.fillStyle = this.colours.muted;
      c.globalAlpha = 0.18;
      c.fillRect(Math.max(a, MARGIN.left), MARGIN.top, Math.min(b, width - MARGIN.right) - Math.max(a, MARGIN.left), height - MARGIN.top - MARGIN.bottom);
      c.globalAlpha = 1;
    }
    this.tell(cursor, run);
  }

  drawDot(c, line, cursor) {
    if (line.single || !line.x.length) return;
    const k = nearest(line.x, cursor);
    if (line.y[k] === null) return;
    c.fillStyle = colourOf(line.group, this.colours);
    c.strokeStyle = this.colours.paper;
    c.lineWidth = 1.5;
    c.beginPath();
    c.arc(this.px(line.x[k]), this.py(line.y[k]), 4, 0, 7);
    c.fill();
    c.stroke();
  }

  /** The values at the cursor, or the last ones, in words under the chart. */
  tell(cursor, run) {
    const words = [];
    const shown = this.lines.filter((line) => line.x.length && (!line.single || line === run));
    for (const line of shown) {
      const k = cursor === null ? lastValue(line) : nearest(line.x, cursor);
      const spread = line.high && isNumber(line.high[k]) ? ` ± ${short(line.high[k] - line.y[k], 2)}` : "";
      const text = line.y[k] === null ? ((line.bad || []).includes(line.x[k]) ? "not finite" : "—") : short(line.y[k]);
      words.push(
        element("span", { class: "value" }, element("i", { class: `swatch g${line.group % 8}` }), `${line.label} `, element("b", {}, text), element("span", { class: "error" }, spread)),
      );
    }
    const place = cursor !== null && shown.length ? shown[0].x[nearest(shown[0].x, cursor)] : cursor;
    const x = place === null ? "end" : `${this.about.xText || "epoch"} ${trimmed(place)}`;
    this.readout.replaceChildren(element("span", { class: "where" }, x), ...words);
    this.top.setAttribute("aria-label", `${this.about.text}, ${this.readout.textContent}. Arrow keys move the cursor, plus and minus zoom, 0 shows all.`);
  }
}

/** The last place where something was written, be it finite or not. */
function lastValue(line) {
  const bad = new Set(line.bad);
  for (let k = line.x.length - 1; k >= 0; k--) if (line.y[k] !== null || bad.has(line.x[k])) return k;
  return line.x.length - 1;
}
