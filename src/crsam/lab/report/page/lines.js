// What a chart draws for each of its lines: the line, its band, crosses, a dot at the cursor.

/** Runs of neighbours that all have a value. */
function stretches(chart, line) {
  const found = [];
  let start = -1;
  for (let k = 0; k <= line.x.length; k++) {
    const there = k < line.x.length && line.y[k] !== null && isNumber(chart.py(line.y[k]));
    if (there && start < 0) start = k;
    if (!there && start >= 0) {
      found.push([start, k]);
      start = -1;
    }
  }
  return found;
}

function drawLine(c, chart, line, weight, alpha) {
  c.strokeStyle = c.fillStyle = colourOf(line.group, chart.colours);
  c.setLineDash(dashOf(line.group));
  c.globalAlpha = alpha;
  c.lineWidth = weight;
  c.lineJoin = "round";
  for (const [start, end] of stretches(chart, line)) {
    c.beginPath();
    for (let k = start; k < end; k++) c.lineTo(chart.px(line.x[k]), chart.py(line.y[k]));
    if (end - start === 1) c.arc(chart.px(line.x[start]), chart.py(line.y[start]), weight, 0, 7);
    c.stroke();
  }
  c.setLineDash([]);
  c.globalAlpha = 1;
}

function drawBand(c, chart, line) {
  c.fillStyle = colourOf(line.group, chart.colours);
  c.globalAlpha = 0.16;
  const floor = chart.height;
  const edge = (value) => (isNumber(chart.py(value)) ? chart.py(value) : floor);
  for (const [start, end] of stretches(chart, line)) {
    c.beginPath();
    for (let k = start; k < end; k++) c.lineTo(chart.px(line.x[k]), edge(line.high[k]));
    for (let k = end - 1; k >= start; k--) c.lineTo(chart.px(line.x[k]), edge(line.low[k]));
    c.fill();
  }
  c.globalAlpha = 1;
}

/** A cross on the axis where a value was written that is not finite. */
function drawBad(c, chart, line) {
  c.strokeStyle = colourOf(line.group, chart.colours);
  c.lineWidth = 1.5;
  const y = chart.height - MARGIN.bottom;
  let last = -Infinity;
  for (const x of line.bad || []) {
    const at = chart.px(x);
    if (x < chart.from || x > chart.to || at - last < 5) continue;
    last = at;
    c.beginPath();
    c.moveTo(at - 3, y - 3);
    c.lineTo(at + 3, y + 3);
    c.moveTo(at + 3, y - 3);
    c.lineTo(at - 3, y + 3);
    c.stroke();
  }
}

function drawDot(c, chart, line, cursor) {
  if (line.single || !line.x.length) return;
  const k = nearest(line.x, cursor);
  if (line.y[k] === null) return;
  c.fillStyle = colourOf(line.group, chart.colours);
  c.strokeStyle = chart.colours.paper;
  c.lineWidth = 1.5;
  c.beginPath();
  c.arc(chart.px(line.x[k]), chart.py(line.y[k]), 4, 0, 7);
  c.fill();
  c.stroke();
}
