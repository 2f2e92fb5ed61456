// The axes of a chart, and places on them.

const MARGIN = { left: 58, right: 12, top: 8, bottom: 26 };

/** Round values that cut the range into about `count` parts. */
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.75);
  const found = [];
  // So deep in a zoom that k + 1 is k, there would be no end.
  const isLast = (k) => !(k * step <= high + step * 1e-9) || found.length > 50;
  for (let k = Math.ceil(low / step - 1e-9); !isLast(k); k++) found.push(k * step);
  return found;
}

/** Powers of ten, or round values where the range has less than one of them. */
function logTicks(low, high) {
  const found = [];
  const every = Math.max(Math.ceil((high - low) / 6), 1);
  for (let k = Math.ceil(low - 1e-9); k <= high + 1e-9; k += every) found.push(k);
  if (found.length > 1) return found;
  return ticks(10 ** low, 10 ** high, 4)
    .filter((v) => v > 0)
    .map(Math.log10);
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

function drawAxes(c, chart) {
  const { width, height } = chart;
  c.font = "11px system-ui, sans-serif";
  c.lineWidth = 1;
  c.strokeStyle = chart.colours.line;
  c.fillStyle = chart.colours.muted;
  c.textAlign = "right";
  c.textBaseline = "middle";
  const ys = chart.log ? logTicks(chart.low, chart.high) : ticks(chart.low, chart.high, 4);
  for (const y of ys) {
    const value = chart.log ? 10 ** y : y;
    const at = Math.round(chart.py(value)) + 0.5;
    c.beginPath();
    c.moveTo(MARGIN.left, at);
    c.lineTo(width - MARGIN.right, at);
    c.stroke();
    c.fillText(tickText(value, chart.log ? 0 : ys[1] - ys[0]), MARGIN.left - 7, at);
  }
  c.textBaseline = "top";
  c.textAlign = "center";
  const xs = ticks(chart.from, chart.to, Math.min(width / 80, 8));
  for (const x of xs) c.fillText(tickText(x, xs[1] - xs[0]), chart.px(x), height - MARGIN.bottom + 8);
  c.textAlign = "right";
  c.fillText(chart.about.xText || "epoch", MARGIN.left - 18, height - MARGIN.bottom + 8);
}
