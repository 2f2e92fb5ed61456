// Landscapes side by side: one scale, one angle, one cut for all of them.

const FIRST_TURN = { yaw: 0.65, pitch: 0.62 };

class Landscapes {
  constructor(content, state) {
    this.state = state;
    this.turn = { ...FIRST_TURN, turned: () => this.schedule(), reset: () => this.face(FIRST_TURN) };
    this.scale = { low: 0, high: 1, up: (v) => v };
    this.grid = element("div", { class: "surfaces" });
    this.lineHolder = element("div", { class: "charts" });
    this.logBox = element("input", { type: "checkbox", id: "log-height", onchange: () => this.rescale() });
    this.allBox = element("input", { type: "checkbox", id: "all-surfaces", onchange: () => this.arrange() });
    this.cut = element("input", {
      type: "range",
      id: "cut",
      min: "2",
      max: "100",
      value: "100",
      "aria-label": "Cut the surfaces off above this height",
      oninput: () => this.rescale(),
    });
    this.cutText = element("output", { for: "cut" });
    this.bar = element("canvas", { class: "ramp", "aria-hidden": "true" });
    this.barTexts = [element("span"), element("span")];
    this.several = element("label", { class: "check", for: "all-surfaces" }, this.allBox, "all seeds");
    this.controls = element(
      "div",
      { class: "controls" },
      element("label", { class: "check", for: "log-height" }, this.logBox, "logarithmic height"),
      this.several,
      element("label", { class: "check", for: "cut" }, "cut at ", this.cut, this.cutText),
      element("span", { class: "legend" }, this.barTexts[0], this.bar, this.barTexts[1], " loss, nats"),
      element("button", { type: "button", onclick: () => this.turn.reset() }, "Reset view"),
    );
    this.section = element(
      "section",
      { id: "landscapes", "aria-labelledby": "landscapes-title" },
      element("h2", { id: "landscapes-title" }, "Landscapes"),
      element(
        "p",
        { class: "note" },
        "The loss around the trained weights, which are the dot at the origin; all on one scale. Drag, or use the arrow keys, to turn them together. Lines join points of equal loss. Grey: cut off. Holes: not evaluated, or not finite.",
      ),
      this.controls,
      this.grid,
      this.lineHolder,
    );
    this.update(content);
  }

  update(content) {
    this.content = content;
    // Surfaces that someone is turning are not put up anew while other runs go on.
    const key = JSON.stringify([content.landscapes, content.groups]);
    if (key === this.key) return;
    this.key = key;
    this.section.hidden = content.landscapes.length === 0;
    const planes = content.landscapes.filter((each) => each.y);
    this.views = planes.map((each) => {
      const run = content.runs[each.run];
      return new SurfaceView(each, run.name, run.group, this.turn, this.scale);
    });
    this.controls.hidden = planes.length === 0;
    this.several.hidden = new Set(this.views.map((view) => view.group)).size === this.views.length;
    this.showLines(content.landscapes.filter((each) => !each.y));
    this.arrange();
    this.rescale();
  }

  /** The first seed of each group, or all. */
  arrange() {
    const seen = new Set();
    this.shown = this.views.filter((view) => {
      const again = seen.has(view.group);
      seen.add(view.group);
      return (this.allBox.checked || !again) && !this.state.hides(view.group);
    });
    this.grid.replaceChildren(...this.shown.map((view) => view.figure));
    this.schedule();
  }

  /** One scale for all, hidden ones too: what is toggled must not move the others. */
  rescale() {
    const values = this.views.flatMap((view) => view.landscape.loss.flat()).filter(isNumber);
    const low = values.reduce((a, b) => Math.min(a, b), Infinity);
    const top = values.reduce((a, b) => Math.max(a, b), -Infinity);
    if (!(low <= top)) return;
    const share = Number(this.cut.value) / 100;
    const log = this.logBox.checked;
    // On a logarithmic scale the lowest loss would be infinitely deep if it were 0.
    const shift = low > 0 ? 0 : 1e-6 * (top - low) - low;
    const up = log ? (v) => Math.log(Math.max(v + shift, 1e-300)) : (v) => v;
    const high = log ? Math.exp(up(low) + share * (up(top) - up(low))) - shift : low + share * (top - low);
    Object.assign(this.scale, { low, high, up, cutting: share < 1 });
    this.cutText.textContent = short(high, 3);
    this.barTexts[0].textContent = short(low, 3);
    this.barTexts[1].textContent = short(high, 3);
    this.schedule();
  }

  face(angles) {
    Object.assign(this.turn, angles);
    this.schedule();
  }

  schedule() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      const colours = palette();
      for (const view of this.shown) view.draw(colours);
      if (this.chart && this.chart.figure.isConnected) this.chart.draw();
      this.drawRamp();
    });
  }

  drawRamp() {
    const { context: c, width, height } = sharpen(this.bar);
    for (let k = 0; k < width; k++) {
      const [r, g, b] = shadeAt(k / Math.max(width - 1, 1));
      c.fillStyle = `rgb(${r | 0},${g | 0},${b | 0})`;
      c.fillRect(k, 0, 1.5, height);
    }
  }

  showLines(lines) {
    this.lines = lines;
    if (!lines.length) {
      this.lineHolder.replaceChildren();
      return;
    }
    const xs = lines.flatMap((each) => each.x);
    const view = {
      range: null,
      cursor: null,
      whole: () => [Math.min(...xs), Math.max(...xs)],
      moved: () => requestAnimationFrame(() => this.chart.drawCursor()),
      zoomed: () => this.chart.draw(),
      zoomBy: () => undefined,
    };
    const about = {
      id: "landscape-line",
      text: "loss along a line",
      unit: "nats",
      xText: "x",
      meaning: aboutText(lines[0].about),
    };
    this.chart = new Chart(about, view);
    this.lineHolder.replaceChildren(this.chart.figure);
    this.chart.lines = this.shownLines();
  }

  shownLines() {
    return this.lines
      .map((each) => ({ each, run: this.content.runs[each.run] }))
      .filter(({ run }) => !this.state.hides(run.group))
      .map(({ each, run }) => ({
        label: run.name,
        group: run.group,
        single: false,
        x: each.x,
        y: each.loss[0],
        bad: each.x.filter((_, k) => each.loss[0][k] === null),
      }));
  }

  /** After a group was hidden or shown. */
  draw() {
    if (this.chart && this.lines.length) this.chart.lines = this.shownLines();
    this.arrange();
  }
}
