// A loss surface in three dimensions on a plain canvas. Seen from infinitely far, the cells of a
// height field hide each other in the order of their rows and columns: no depth buffer is needed.

const STOPS = [[38, 42, 104], [32, 92, 140], [36, 148, 142], [122, 195, 120], [246, 226, 128]];
const SHADES = 256;

/** Colours from low to high: dark to light, also for those who see no red or green. */
function shadeAt(share) {
  const place = Math.min(Math.max(share, 0), 1) * (STOPS.length - 1);
  const k = Math.min(Math.floor(place), STOPS.length - 2);
  return STOPS[k].map((value, channel) => value + (STOPS[k + 1][channel] - value) * (place - k));
}

const RAMP = Array.from({ length: SHADES }, (_, index) => shadeAt(index / (SHADES - 1)));

class SurfaceView {
  /**
   * @param turn shared by all surfaces: `yaw`, `pitch`, and `turned()` to draw them all.
   * @param scale shared: `low`, `high`, and `up`, which maps a loss to what is drawn.
   */
  constructor(landscape, label, group, turn, scale) {
    Object.assign(this, { landscape, label, group, turn, scale });
    this.canvas = element("canvas", { tabindex: "0", role: "img" });
    this.caption = element("figcaption", {}, element("i", { class: `swatch g${group % 8}` }), label, element("span", { class: "unit" }, ` ${aboutText(landscape.about)}`));
    this.figure = element("figure", { class: "surface" }, this.caption, this.canvas);
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
      const by = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.08], ArrowDown: [0, 0.08] }[event.key];
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
    return [this.middleX + across * this.unit, this.middleY + (deep * this.sinPitch - (z - 0.5) * 1.25 * this.cosPitch) * this.unit];
  }

  draw() {
    const { context: c, width, height } = sharpen(this.canvas);
    const { yaw, pitch } = this.turn;
    Object.assign(this, { cos: Math.cos(yaw), sin: Math.sin(yaw), sinPitch: Math.sin(pitch), cosPitch: Math.cos(pitch) });
    const tall = 2 * Math.SQRT2 * this.sinPitch + 1.25 * this.cosPitch;
    this.unit = Math.min((width - 24) / (2 * Math.SQRT2), (height - 44) / tall);
    this.middleX = width / 2;
    this.middleY = height / 2;
    const colours = palette();
    this.drawBox(c, colours);
    this.drawCells(c);
    this.drawCentre(c, colours);
    const lowest = Math.min(...this.landscape.loss.flat().filter(isNumber));
    const missing = this.landscape.loss.flat().filter((loss) => !isNumber(loss)).length;
    this.canvas.setAttribute("aria-label", `Loss surface of ${this.label}, lowest loss ${short(lowest)}${missing ? `, ${missing} points without a value` : ""}. Arrow keys turn it.`);
  }

  drawBox(c, colours) {
    const corners = [[-1, -1], [1, -1], [1, 1], [-1, 1]];
    c.strokeStyle = colours.line;
    c.lineWidth = 1;
    c.beginPath();
    for (const [x, y] of corners) c.lineTo(...this.place(x, y, 0));
    c.closePath();
    // The upright edge that is furthest away carries the scale.
    const [x, y] = corners.reduce((a, b) => (a[0] * this.sin + a[1] * this.cos < b[0] * this.sin + b[1] * this.cos ? a : b));
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
    for (const [at, value] of [[-1, ends[0]], [1, ends[ends.length - 1]]]) {
      const [px, py] = this.place(at, near, 0);
      c.fillText(short(value, 2), px, py + 4);
    }
  }

  drawCells(c) {
    const { loss } = this.landscape;
    const [rows, columns] = [loss.length, loss[0].length];
    const heights = loss.map((row) => row.map((value) => this.height(value)));
    const points = heights.map((row, j) => row.map((z, i) => this.place(this.xs[i], this.ys[j], z)));
    const upX = this.sin > 0;
    const upY = this.cos > 0;
    c.lineWidth = 0.7;
    c.lineJoin = "round";
    for (let m = 0; m < rows - 1; m++) {
      const j = upY ? m : rows - 2 - m;
      for (let n = 0; n < columns - 1; n++) {
        const i = upX ? n : columns - 2 - n;
        const a = heights[j][i];
        const b = heights[j][i + 1];
        const d = heights[j + 1][i];
        const e = heights[j + 1][i + 1];
        const mean = (a + b + d + e) / 4;
        if (mean !== mean) continue;
        const cut = loss[j][i] > this.scale.high && loss[j + 1][i + 1] > this.scale.high;
        c.fillStyle = c.strokeStyle = this.shade(mean, (b + e - a - d) / (this.xs[i + 1] - this.xs[i]), (d + e - a - b) / (this.ys[j + 1] - this.ys[j]), cut);
        c.beginPath();
        c.moveTo(...points[j][i]);
        c.lineTo(...points[j][i + 1]);
        c.lineTo(...points[j + 1][i + 1]);
        c.lineTo(...points[j + 1][i]);
        c.closePath();
        c.fill();
        c.stroke();
      }
    }
  }

  /** The colour of a height, lighter where the slope faces the light at the upper left. */
  shade(height, slopeX, slopeY, cut) {
    const [r, g, b] = cut ? [150, 150, 156] : RAMP[Math.round(Math.min(Math.max(height, 0), 1) * (SHADES - 1))];
    const across = slopeX * this.cos - slopeY * this.sin;
    const deep = slopeX * this.sin + slopeY * this.cos;
    const light = 0.93 + (0.28 * (across * 0.35 - deep * 0.25)) / Math.sqrt(1 + slopeX * slopeX + slopeY * slopeY);
    return `rgb(${(r * light) | 0},${(g * light) | 0},${(b * light) | 0})`;
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
  if (about.kind) words.push({ filter: "filter-normalised directions", eigenvector: "top eigenvectors", line: "line between models", plane: "plane through models" }[about.kind] || about.kind);
  if (isNumber(about.samples)) words.push(`${fixed(about.samples, 0)} ${about.split || ""} images`);
  if (Array.isArray(about.of) && about.of.length > 1) words.push(about.of.join(", "));
  if (about.complete === false) words.push("not complete yet");
  return words.join(" · ");
}
