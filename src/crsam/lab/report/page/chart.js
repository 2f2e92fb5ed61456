// One chart: lines with bands over a shared x axis. Two canvases, so that moving the cursor
// never draws the lines again.

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
      {
        type: "button",
        class: "small",
        "aria-pressed": "false",
        "aria-label": `${about.text}: logarithmic scale`,
        onclick: () => this.toggleLog(),
      },
      "log",
    );
    this.figure = element(
      "figure",
      { class: "chart", "data-curve": about.id },
      element(
        "figcaption",
        { title: about.meaning || null },
        element("span", { class: "name" }, about.text),
        about.unit ? element("span", { class: "unit" }, ` ${about.unit}`) : null,
        this.logButton,
      ),
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
    return (
      MARGIN.left + ((x - this.from) / (this.to - this.from)) * (this.width - MARGIN.left - MARGIN.right)
    );
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
    drawAxes(c, this);
    c.save();
    c.beginPath();
    c.rect(
      MARGIN.left,
      MARGIN.top - 1,
      width - MARGIN.left - MARGIN.right,
      height - MARGIN.top - MARGIN.bottom + 2,
    );
    c.clip();
    for (const line of this.lines) if (line.low) drawBand(c, this, line);
    for (const line of this.lines) drawLine(c, this, line, line.single ? 1 : 2, line.single ? 0.55 : 1);
    c.restore();
    for (const line of this.lines) drawBad(c, this, line);
    this.drawCursor();
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
    if (run) drawLine(c, this, run, 2.5, 1);
    if (cursor !== null && cursor >= this.from && cursor <= this.to) {
      c.strokeStyle = this.colours.muted;
      c.lineWidth = 1;
      c.beginPath();
      c.moveTo(Math.round(this.px(cursor)) + 0.5, MARGIN.top);
      c.lineTo(Math.round(this.px(cursor)) + 0.5, height - MARGIN.bottom);
      c.stroke();
      for (const line of this.lines) drawDot(c, this, line, cursor);
    }
    if (this.drag) {
      const [a, b] = [this.drag.from.x, this.drag.to.x].sort((p, q) => p - q);
      c.fillStyle = this.colours.muted;
      c.globalAlpha = 0.18;
      c.fillRect(
        Math.max(a, MARGIN.left),
        MARGIN.top,
        Math.min(b, width - MARGIN.right) - Math.max(a, MARGIN.left),
        height - MARGIN.top - MARGIN.bottom,
      );
      c.globalAlpha = 1;
    }
    this.tell(cursor, run);
  }

  /** The values at the cursor, or the last ones, in words under the chart. */
  tell(cursor, run) {
    const words = [];
    const shown = this.lines.filter((line) => line.x.length && (!line.single || line === run));
    for (const line of shown) {
      const k = cursor === null ? lastValue(line) : nearest(line.x, cursor);
      const spread = line.high && isNumber(line.high[k]) ? ` ± ${short(line.high[k] - line.y[k], 2)}` : "";
      const text =
        line.y[k] === null ? ((line.bad || []).includes(line.x[k]) ? "not finite" : "—") : short(line.y[k]);
      words.push(
        element(
          "span",
          { class: "value" },
          element("i", { class: `swatch g${line.group % 8}` }),
          `${line.label} `,
          element("b", {}, text),
          element("span", { class: "error" }, spread),
        ),
      );
    }
    const place = cursor !== null && shown.length ? shown[0].x[nearest(shown[0].x, cursor)] : cursor;
    const x = place === null ? "end" : `${this.about.xText || "epoch"} ${trimmed(place)}`;
    this.readout.replaceChildren(element("span", { class: "where" }, x), ...words);
    this.top.setAttribute(
      "aria-label",
      `${this.about.text}, ${this.readout.textContent}. Arrow keys move the cursor, plus and minus zoom, 0 shows all.`,
    );
  }
}

/** The last place where something was written, be it finite or not. */
function lastValue(line) {
  const bad = new Set(line.bad);
  for (let k = line.x.length - 1; k >= 0; k--) if (line.y[k] !== null || bad.has(line.x[k])) return k;
  return line.x.length - 1;
}
