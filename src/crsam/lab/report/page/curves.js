// The curves of all runs: a chart each, with one cursor and one zoom for all of them.

/** A run's curve as a chart wants it; "nan" was written as not finite, null not at all. */
function runLine(content, index, about) {
  const run = content.runs[index];
  const lines = run.series[about.kind];
  const values = lines && lines.y[about.key];
  if (!values) return null;
  return {
    label: run.name,
    group: run.group,
    single: true,
    x: lines.x,
    y: values.map((value) => (isNumber(value) ? value : null)),
    bad: lines.x.filter((_, k) => values[k] === "nan"),
  };
}

/** Mean of a group's runs, and a band of one standard deviation, at every x that any of them has. */
function meanLine(label, group, lines) {
  const at = new Map();
  const bad = new Set();
  for (const line of lines) {
    line.bad.forEach((x) => bad.add(x));
    line.x.forEach((x, k) => {
      if (!at.has(x)) at.set(x, []);
      if (line.y[k] !== null) at.get(x).push(line.y[k]);
    });
  }
  const x = [...at.keys()].sort((a, b) => a - b);
  const made = {
    label,
    group,
    single: false,
    x,
    y: [],
    low: [],
    high: [],
    bad: [...bad].sort((a, b) => a - b),
  };
  for (const key of x) {
    const values = bad.has(key) ? [] : at.get(key);
    const mean = values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
    const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
    const std = values.length > 1 ? Math.sqrt(squares / (values.length - 1)) : null;
    made.y.push(mean);
    made.low.push(std === null ? mean : mean - std);
    made.high.push(std === null ? mean : mean + std);
  }
  if (lines.length < 2) made.low = made.high = undefined;
  return made;
}

class Curves {
  /** @param state which groups are hidden, which curves are shown, whether single runs are. */
  constructor(content, state) {
    this.state = state;
    this.charts = new Map();
    this.view = {
      range: null,
      cursor: null,
      whole: () => this.whole,
      moved: () => this.schedule("drawCursor"),
      zoomed: () => this.zoomed(),
      zoomBy: (factor) => this.zoomBy(factor),
    };
    this.grid = element("div", { class: "charts" });
    this.reset = element(
      "button",
      { type: "button", disabled: true, onclick: () => this.zoomTo(null) },
      "Show all",
    );
    this.picks = element("div", { class: "picks" });
    const singles = element("input", {
      type: "checkbox",
      id: "singles",
      onchange: () => this.toggleSingles(singles.checked),
    });
    this.section = element(
      "section",
      { id: "curves", "aria-labelledby": "curves-title" },
      element("h2", { id: "curves-title" }, "Curves"),
      (this.note = element("p", { class: "note" })),
      element(
        "div",
        { class: "controls" },
        element("label", { class: "check", for: "singles" }, singles, "single runs"),
        element(
          "span",
          { class: "zoom", role: "group", "aria-label": "Zoom of the epochs" },
          element(
            "button",
            { type: "button", "aria-label": "Zoom in", onclick: () => this.zoomBy(0.5) },
            "+",
          ),
          element("button", { type: "button", "aria-label": "Zoom out", onclick: () => this.zoomBy(2) }, "−"),
          this.reset,
        ),
      ),
      this.picks,
      this.grid,
    );
    this.update(content);
  }

  update(content) {
    this.content = content;
    this.means = new Map();
    const xs = content.runs.flatMap((run) =>
      Object.values(run.series).flatMap((lines) => [lines.x[0], lines.x[lines.x.length - 1]]),
    );
    this.whole = xs.length ? [Math.min(...xs), Math.max(...xs)] : [0, 1];
    const thinned = Math.max(1, ...content.runs.map((run) => run.thinned));
    const several = content.groups.some((group) => group.runs.length > 1);
    this.note.textContent =
      (several ? "Lines are means over seeds, bands one standard deviation to each side. " : "") +
      "Drag over a chart to zoom, double-click to see all again; a cross on the axis marks a value that is not finite." +
      (thinned > 1 ? ` Each point is the mean of up to ${thinned} lines of metrics.jsonl.` : "");
    this.section.hidden = content.curves.length === 0;
    for (const about of content.curves) {
      about.id = `${about.kind}.${about.key}`;
      if (!this.state.known.has(about.id)) {
        this.state.known.add(about.id);
        if (about.shown) this.state.curves.add(about.id);
      }
    }
    const kinds = [...new Set(content.curves.map((about) => about.kind))];
    this.picks.replaceChildren(
      ...kinds.map((kind) => {
        const mine = content.curves.filter((about) => about.kind === kind);
        return element(
          "div",
          { class: "chips", role: "group", "aria-label": `Curves shown: ${mine[0].word}` },
          element("span", { class: "kind" }, mine[0].word),
          mine.map((about) => this.pick(about)),
        );
      }),
    );
    this.arrange();
  }

  pick(about) {
    const button = element(
      "button",
      {
        type: "button",
        class: "chip",
        title: about.meaning || null,
        "data-pick": about.id,
        "aria-pressed": String(this.state.curves.has(about.id)),
      },
      about.brief,
    );
    button.addEventListener("click", () => {
      const shown = !this.state.curves.has(about.id);
      if (shown) this.state.curves.add(about.id);
      else this.state.curves.delete(about.id);
      button.setAttribute("aria-pressed", String(shown));
      this.arrange();
    });
    return button;
  }

  arrange() {
    const wanted = this.content.curves.filter((about) => this.state.curves.has(about.id));
    for (const about of wanted)
      if (!this.charts.has(about.id)) this.charts.set(about.id, new Chart(about, this.view));
    const figures = wanted.map((about) => this.charts.get(about.id).figure);
    const same =
      figures.length === this.grid.children.length &&
      figures.every((figure, k) => this.grid.children[k] === figure);
    if (!same) this.grid.replaceChildren(...figures);
    this.draw();
  }

  lines(about) {
    if (!this.means.has(about.id)) {
      const groups = this.content.groups.map((group, number) => {
        const singles = group.runs.map((index) => runLine(this.content, index, about)).filter(Boolean);
        return { singles, mean: singles.length ? meanLine(group.label, number, singles) : null };
      });
      this.means.set(about.id, groups);
    }
    const shown = this.means.get(about.id).filter((group, number) => group.mean && !this.state.hides(number));
    const singles = this.state.singles ? shown.flatMap((group) => group.singles) : [];
    return [...singles, ...shown.map((group) => group.mean)];
  }

  /** All charts; nothing is drawn twice within a frame. */
  draw() {
    for (const about of this.content.curves) {
      if (this.state.curves.has(about.id) && this.charts.has(about.id))
        this.charts.get(about.id).lines = this.lines(about);
    }
    this.schedule("draw");
  }

  schedule(what) {
    this.pending = this.pending === "draw" ? "draw" : what;
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      const job = this.pending;
      this.pending = null;
      for (const id of this.state.curves) {
        const chart = this.charts.get(id);
        if (chart && chart.figure.isConnected) chart[job]();
      }
    });
  }

  zoomTo(range) {
    this.view.range = range;
    this.zoomed();
  }

  zoomed() {
    this.reset.disabled = this.view.range === null;
    this.draw();
  }

  zoomBy(factor) {
    const [from, to] = this.view.range || this.whole;
    const middle = this.view.cursor === null ? (from + to) / 2 : this.view.cursor;
    const range = [
      Math.max(middle - (middle - from) * factor, this.whole[0]),
      Math.min(middle + (to - middle) * factor, this.whole[1]),
    ];
    this.zoomTo(range[1] - range[0] >= (this.whole[1] - this.whole[0]) * 0.999 ? null : range);
  }

  toggleSingles(shown) {
    this.state.singles = shown;
    this.draw();
  }
}
