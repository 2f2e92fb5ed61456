// A loss surface in three dimensions. Seen from infinitely far, the cells of a height field hide
// each other in the order of their rows and columns: no depth buffer is needed.

class SurfaceView {
  /**
   * @param turn shared by all surfaces: `yaw`, `pitch`, and `turned()` to draw them all.
   * @param scale shared: `low`, `high`, and `up`, which maps a loss to what is drawn.
   */
  constructor(landscape, label, group, turn, scale) {
    Object.assign(this, { landscape, label, group, turn, scale });
    this.canvas = element("canvas", { tabindex: "0", role: "img", "aria-label": this.told() });
    this.caption = element(
      "figcaption",
      {},
      element("i", { class: `swatch g${group % 8}` }),
      label,
      element("span", { class: "unit" }, ` ${aboutText(landscape.about)}`),
    );
    this.figure = element("figure", { class: "surface" }, this.caption, this.canvas);
    this.raster = new Raster();
    this.xs = stretched(landscape.x);
    this.ys = stretched(landscape.y);
    this.listen();
  }

  listen() {
    let last = null;
    this.canvas.addEventListener("pointerdown", (event) => {
      last = event;
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (last) this.rotate((event.clientX - last.clientX) * 0.01, (event.clientY - last.clientY) * 0.008);
      if (last) last = event;
    });
    const end = () => (last = null);
    this.canvas.addEventListener("pointerup", end);
    this.canvas.addEventListener("pointercancel", end);
    this.canvas.addEventListener("dblclick", () => this.turn.reset());
    this.canvas.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.08], ArrowDown: [0, 0.08] }[
        event.key
      ];
      if (by) this.rotate(...by);
      else if (event.key === "0") this.turn.reset();
      else return;
      event.preventDefault();
    });
  }

  rotate(yaw, pitch) {
    this.turn.yaw += yaw;
    this.turn.pitch = Math.min(Math.max(this.turn.pitch + pitch, 0.12), 1.5);
    this.turn.turned();
  }

  /** The shared scale, from 0 to 1; NaN where there is no loss. */
  height(loss) {
    if (!isNumber(loss)) return NaN;
    const { low, high, up } = this.scale;
    return (up(Math.min(loss, high)) - up(low)) / (up(high) - up(low) || 1);
  }

  /** Screen coordinates of a point of the box [−1, 1]² × [0, 1]. */
  place(x, y, z) {
    const across = x * this.cos - y * this.sin;
    const deep = x * this.sin + y * this.cos;
    return [
      this.middleX + across * this.unit,
      this.middleY + (deep * this.sinPitch - (z - 0.5) * 1.25 * this.cosPitch) * this.unit,
    ];
  }

  draw(colours) {
    const { context: c, width, height } = sharpen(this.canvas);
    const { yaw, pitch } = this.turn;
    Object.assign(this, {
      cos: Math.cos(yaw),
      sin: Math.sin(yaw),
      sinPitch: Math.sin(pitch),
      cosPitch: Math.cos(pitch),
    });
    const tall = 2 * Math.SQRT2 * this.sinPitch + 1.25 * this.cosPitch;
    this.unit = Math.min((width - 24) / (2 * Math.SQRT2), (height - 44) / tall);
    this.middleX = width / 2;
    this.middleY = height / 2;
    this.drawBox(c, colours);
    this.drawCells(c, width, height);
    this.drawCentre(c, colours);
  }

  /** The surface in words. */
  told() {
    const values = this.landscape.loss.flat();
    const known = values.filter(isNumber);
    const missing = values.length - known.length;
    const lowest = known.reduce((a, b) => Math.min(a, b), Infinity);
    return `Loss surface of ${this.label}, lowest loss ${short(lowest)}${missing ? `, ${missing} points without a value` : ""}. Arrow keys turn it.`;
  }

  drawBox(c, colours) {
    const corners = [
      [-1, -1],
      [1, -1],
      [1, 1],
      [-1, 1],
    ];
    c.strokeStyle = colours.line;
    c.lineWidth = 1;
    c.beginPath();
    for (const [x, y] of corners) c.lineTo(...this.place(x, y, 0));
    c.closePath();
    // The upright edge that is furthest away carries the scale.
    const [x, y] = corners.reduce((a, b) =>
      a[0] * this.sin + a[1] * this.cos < b[0] * this.sin + b[1] * this.cos ? a : b,
    );
    c.moveTo(...this.place(x, y, 0));
    c.lineTo(...this.place(x, y, 1));
    c.stroke();
    c.fillStyle = colours.muted;
    c.font = "11px system-ui, sans-serif";
    c.textAlign = "center";
    c.textBaseline = "bottom";
    const [topX, topY] = this.place(x, y, 1);
    c.fillText(short(this.scale.high, 3), topX, topY - 3);
    c.textBaseline = "top";
    const near = -Math.sign(y || 1);
    const ends = this.landscape.x;
    for (const [at, value] of [
      [-1, ends[0]],
      [1, ends[ends.length - 1]],
    ]) {
      const [px, py] = this.place(at, near, 0);
      c.fillText(short(value, 2), px, py + 4);
    }
  }

  drawCells(c, width, height) {
    const { loss } = this.landscape;
    const [rows, columns] = [loss.length, loss[0].length];
    const heights = loss.map((row) => row.map((value) => this.height(value)));
    const corners = heights.map((row, j) =>
      row.map((z, i) => [...this.place(this.xs[i], this.ys[j], z), z, this.light(heights, j, i)]),
    );
    const [upX, upY] = [this.sin > 0, this.cos > 0];
    this.raster.start(width, height);
    for (let m = 0; m < rows - 1; m++) {
      const j = upY ? m : rows - 2 - m;
      for (let n = 0; n < columns - 1; n++) {
        const i = upX ? n : columns - 2 - n;
        const [a, b, d, e] = [corners[j][i], corners[j][i + 1], corners[j + 1][i], corners[j + 1][i + 1]];
        if (Number.isNaN(a[2] + b[2] + d[2] + e[2])) continue;
        this.raster.triangle(a, b, d, this.scale.cutting);
        this.raster.triangle(e, d, b, this.scale.cutting);
      }
    }
    this.raster.contours();
    this.raster.finish(c);
  }

  /** How much a point is lit, from 0 to 1: more where the slope faces the upper left. */
  light(heights, j, i) {
    const slope = (ahead, behind, far, near) => (ahead - behind) / (far - near) || 0;
    const [left, right] = [Math.max(i - 1, 0), Math.min(i + 1, this.xs.length - 1)];
    const [below, above] = [Math.max(j - 1, 0), Math.min(j + 1, this.ys.length - 1)];
    const alongX = slope(heights[j][right], heights[j][left], this.xs[right], this.xs[left]);
    const alongY = slope(heights[above][i], heights[below][i], this.ys[above], this.ys[below]);
    const across = alongX * this.cos - alongY * this.sin;
    const deep = alongX * this.sin + alongY * this.cos;
    const facing = (across * 0.6 - deep * 0.5) / Math.sqrt(1 + alongX * alongX + alongY * alongY);
    return Math.min(Math.max(0.6 + facing * 0.75, 0), 1);
  }

  /** The trained weights lie at the origin. */
  drawCentre(c, colours) {
    const { x, y, loss } = this.landscape;
    const [i, j] = [nearest(x, 0), nearest(y, 0)];
    const z = this.height(loss[j][i]);
    if (z !== z || x[0] > 0 || x[x.length - 1] < 0) return;
    c.beginPath();
    c.arc(...this.place(this.xs[i], this.ys[j], z), 4, 0, 7);
    c.fillStyle = colourOf(this.group, colours);
    c.strokeStyle = "#fff";
    c.lineWidth = 1.5;
    c.fill();
    c.stroke();
  }
}

/** Coordinates brought to [−1, 1]. */
function stretched(values) {
  const low = values[0];
  const span = values[values.length - 1] - low || 1;
  return values.map((value) => ((value - low) / span) * 2 - 1);
}

function aboutText(about) {
  const words = [];
  if (about.kind)
    words.push(
      {
        filter: "filter-normalised directions",
        eigenvector: "top eigenvectors",
        line: "line between models",
        plane: "plane through models",
      }[about.kind] || about.kind,
    );
  if (isNumber(about.samples))
    words.push(
      `${fixed(about.samples, 0)} ${{ train: "training" }[about.split] || about.split || ""} images`,
    );
  if (Array.isArray(about.of) && about.of.length > 1) words.push(about.of.join(", "));
  if (about.complete === false) words.push("not complete yet");
  return words.join(" · ");
}
