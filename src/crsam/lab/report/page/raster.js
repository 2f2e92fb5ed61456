// Fills triangles pixel by pixel, with colour and light running smoothly over them, at twice the
// resolution of the page: no seams between cells, smooth edges, the same speed on any machine.

const STOPS = [
  [38, 42, 104],
  [32, 92, 140],
  [36, 148, 142],
  [122, 195, 120],
  [246, 226, 128],
];
const CUT_OFF = [150, 150, 156];
const SHADES = 256;
const LIGHTS = 48;
const CONTOURS = 14;
const FINENESS = 2;

/** Colours from low to high: dark to light, also for those who see no red or green. */
function shadeAt(share) {
  const place = Math.min(Math.max(share, 0), 1) * (STOPS.length - 1);
  const k = Math.min(Math.floor(place), STOPS.length - 2);
  return STOPS[k].map((value, channel) => value + (STOPS[k + 1][channel] - value) * (place - k));
}

/** All colours there can be, as pixels: by light, then by height; the last height is cut off. */
const PIXELS = (() => {
  const made = new Uint32Array(LIGHTS * (SHADES + 1));
  for (let light = 0; light < LIGHTS; light++) {
    const share = 0.62 + (0.55 * light) / (LIGHTS - 1);
    for (let shade = 0; shade <= SHADES; shade++) {
      const colour = shade === SHADES ? CUT_OFF : shadeAt(shade / (SHADES - 1));
      const [r, g, b] = colour.map((value) => Math.min(value * share, 255) | 0);
      made[light * (SHADES + 1) + shade] = (255 << 24) | (b << 16) | (g << 8) | r;
    }
  }
  return made;
})();

class Raster {
  constructor() {
    this.canvas = document.createElement("canvas");
  }

  /** Empty, and of this size in CSS pixels. */
  start(width, height) {
    this.width = Math.max(width * FINENESS, 1);
    this.height = Math.max(height * FINENESS, 1);
    if (this.canvas.width !== this.width || this.canvas.height !== this.height) {
      Object.assign(this.canvas, { width: this.width, height: this.height });
      this.context = this.canvas.getContext("2d");
      this.image = this.context.createImageData(this.width, this.height);
      this.pixels = new Uint32Array(this.image.data.buffer);
      this.levels = new Uint8Array(this.pixels.length);
    }
    this.pixels.fill(0);
    this.levels.fill(0);
  }

  /** Corners are [x, y, height from 0 to 1, light from 0 to 1]; what came before is covered. */
  triangle(p, q, r, cutting) {
    const { width, pixels, levels } = this;
    const x0 = p[0] * FINENESS;
    const y0 = p[1] * FINENESS;
    const x1 = q[0] * FINENESS - x0;
    const y1 = q[1] * FINENESS - y0;
    const x2 = r[0] * FINENESS - x0;
    const y2 = r[1] * FINENESS - y0;
    const area = x1 * y2 - x2 * y1;
    if (Math.abs(area) < 1e-9) return;
    const left = Math.max(Math.floor(x0 + Math.min(0, x1, x2)), 0);
    const right = Math.min(Math.ceil(x0 + Math.max(0, x1, x2)), width - 1);
    const top = Math.max(Math.floor(y0 + Math.min(0, y1, y2)), 0);
    const bottom = Math.min(Math.ceil(y0 + Math.max(0, y1, y2)), this.height - 1);
    // u and v are the shares of q and r in a pixel, and grow by the same amount from one to the next.
    const stepU = y2 / area;
    const stepV = -y1 / area;
    const stepHeight = stepU * (q[2] - p[2]) + stepV * (r[2] - p[2]);
    const stepLight = stepU * (q[3] - p[3]) + stepV * (r[3] - p[3]);
    for (let y = top; y <= bottom; y++) {
      const dx = left + 0.5 - x0;
      const dy = y + 0.5 - y0;
      let u = (dx * y2 - x2 * dy) / area;
      let v = (x1 * dy - dx * y1) / area;
      let height = p[2] + u * (q[2] - p[2]) + v * (r[2] - p[2]);
      let light = p[3] + u * (q[3] - p[3]) + v * (r[3] - p[3]);
      for (let at = y * width + left; at <= y * width + right; at++) {
        // A little beyond its edges, so that neighbours leave no gap.
        if (u > -1e-6 && v > -1e-6 && u + v < 1 + 1e-6) {
          const shade = cutting && height > 0.9999 ? SHADES : (height * (SHADES - 1) + 0.5) | 0;
          pixels[at] = PIXELS[((light * (LIGHTS - 1) + 0.5) | 0) * (SHADES + 1) + shade];
          levels[at] = 1 + ((height * CONTOURS) | 0);
        }
        u += stepU;
        v += stepV;
        height += stepHeight;
        light += stepLight;
      }
    }
  }

  /** Darkens the pixels at which one contour of equal height meets the next. */
  contours() {
    const { width, levels, pixels } = this;
    for (let at = 0; at < levels.length - width; at++) {
      const level = levels[at];
      if (!level) continue;
      const beside = levels[at + 1];
      const below = levels[at + width];
      if ((beside && Math.abs(beside - level) === 1) || (below && Math.abs(below - level) === 1)) {
        const old = pixels[at];
        // Three quarters of each channel.
        pixels[at] = (old & 0xff000000) | (((old >>> 2) & 0x3f3f3f) * 3);
      }
    }
  }

  /** Puts it onto a canvas of the page. */
  finish(context) {
    this.context.putImageData(this.image, 0, 0);
    context.imageSmoothingQuality = "high";
    context.drawImage(this.canvas, 0, 0, this.width / FINENESS, this.height / FINENESS);
  }
}
