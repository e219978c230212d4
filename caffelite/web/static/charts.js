// Line charts on a canvas: linear or logarithmic, smoothed, with values under the pointer or the arrow keys, and all of
// it in words for who does not see the canvas.

import { clearCanvas, drawNextFrame, make, strokeLine } from "./page.js";

/** The value of a CSS variable, such as "--ink". */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const LINES = ["--blue", "--orange", "--green", "--violet", "--red", "--sky", "--grey"];
const lineColour = (key) => colour(typeof key === "string" ? key : LINES[key % LINES.length]);

const MAX_DECADES = 5; // of a logarithmic axis of quantiles: some numbers may be next to 0
const LEFT = 52, RIGHT = 10, TOP = 8, BOTTOM = 22; // pixels around the plot

/** Write a number with about four digits. */
export function formatNumber(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2).replaceAll("-", "−").replace("+", "");
  if (Number.isInteger(value) || size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(4))).replace("-", "−");
}

/** Write a number of things. */
export const formatCount = (n) => (n === null || n === undefined ? "–" : Math.round(n).toLocaleString("en"));

/** Write a number at an axis, with as few digits as it takes. */
function formatTick(value) {
  const size = Math.abs(value);
  if (size === 0 || (size >= 1e-3 && size < 1e6)) return value.toLocaleString("en", { maximumSignificantDigits: 6 });
  return value.toExponential().replaceAll("-", "−").replace("+", "");
}

/** An exponential moving average that does not begin at 0; NaN stays a gap. `weight` 0 changes nothing. */
export function smooth(values, weight) {
  if (weight === 0) return values;
  const result = new Float32Array(values.length);
  let sum = 0, mass = 0;
  for (let i = 0; i < values.length; i++) {
    if (Number.isNaN(values[i])) {
      result[i] = NaN;
      continue;
    }
    sum = weight * sum + (1 - weight) * values[i];
    mass = weight * mass + (1 - weight);
    result[i] = sum / mass;
  }
  return result;
}

/** Round numbers at which an axis has its marks. */
export function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= rough * 0.999);
  const marks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) marks.push(i * step);
  return marks;
}

/** Powers of ten, or of it and round multiples, that are at most so many. */
function logTicks(low, high, count) {
  const decades = [];
  for (let e = Math.floor(low); e <= Math.ceil(high); e++) decades.push(e);
  const choices = [[[1, 2, 3, 5, 7], 1], [[1, 2, 5], 1], ...[1, 2, 3, 5, 10, 20].map((step) => [[1], step])];
  const marks = choices
    .map(([multiples, step]) => decades.filter((e) => e % step === 0).flatMap((e) => multiples.map((m) => e + Math.log10(m))))
    .map((all) => all.filter((e) => e >= low && e <= high))
    .find((all) => all.length <= count);
  return marks?.length > 1 ? marks : ticks(10 ** low, 10 ** high, Math.min(4, count)).map(Math.log10);
}

let drawn = 0; // frames of all charts, for tests and curious readers

export class LineChart {
  /**
   * Put a chart into `host`. `options`: `title`, `unit` of x, such as "epoch", `log` and `smoothing` to begin with, and
   * `height` in pixels.
   */
  constructor(host, { title, unit = "epoch", log = false, smoothing = 0, height = 180 }) {
    Object.assign(this, { title, unit, log, smoothing, series: [], cursor: null, marks: [], zoom: null, selection: null });
    this.redraw = drawNextFrame(() => this.draw());
    this.keys = make("span", { className: "keys" });
    this.canvas = make("canvas", { tabIndex: 0, role: "img" });
    this.canvas.style.height = `${height}px`;
    this.words = make("p", { className: "only-read" });
    const legend = make("figcaption", {}, make("h3", {}, title), this.keys);
    this.figure = make("figure", { className: "chart", "data-chart": title }, legend, this.canvas, this.words);
    host.append(this.figure);
    new ResizeObserver(() => this.redraw()).observe(this.canvas);
    this.canvas.addEventListener("pointermove", ({ offsetX }) => this.setCursor(offsetX));
    this.canvas.addEventListener("pointerleave", () => this.setCursor(null));
    this.canvas.addEventListener("blur", () => this.setCursor(null));
    this.canvas.addEventListener("keydown", (event) => this.moveCursor(event));
  }

  /**
   * Show lines: `{name, x, y, low, high, quantiles, faint, dashed, key}`. `low` and `high` are a band around y, or
   * missing. `quantiles` are lines of which the first and the last, the second and the last but one … are bands. `key` is
   * the number of a colour, or the name of a CSS variable. `marks` are vertical lines, {x, name, key}.
   */
  show(series, marks = []) {
    this.marks = marks;
    this.series = series.filter(({ y }) => y.length > 0);
    this.figure.hidden = this.series.length === 0;
    this.redraw();
  }

  set(options) {
    Object.assign(this, options);
    this.redraw();
  }

  /** Where the lines are: the range of x, and that of y, in powers of ten if it is logarithmic; of `zoom` only. */
  ranges([from, to] = [-Infinity, Infinity]) {
    let left = Infinity, right = -Infinity, low = Infinity, high = -Infinity;
    for (const [x, y] of this.lines.flatMap(({ x, y, quantiles }) => (quantiles ?? [y]).map((line) => [x, line]))) {
      for (let i = 0; i < x.length; i++) {
        const value = this.log ? Math.log10(y[i]) : y[i];
        if (!Number.isFinite(value) || x[i] < from || x[i] > to) continue;
        left = Math.min(left, x[i]);
        right = Math.max(right, x[i]);
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
    }
    if (left > right) return null;
    if (this.log && this.lines[0].quantiles) low = Math.max(low, high - MAX_DECADES);
    if (left === right) [left, right] = [left - 0.5, right + 0.5];
    if (from !== -Infinity) [left, right] = [from, to];
    const margin = (high - low) * 0.06 || Math.abs(high) * 0.5 || 0.5;
    return { left, right, low: low - margin, high: high + margin };
  }

  /** The ranges for `zoom`; if it has no points, the height of all lines. */
  zoomed() {
    const [left, right] = this.zoom;
    return this.ranges(this.zoom) ?? { ...this.whole, left, right };
  }

  draw() {
    const { width, height } = this.canvas.getBoundingClientRect();
    if (width === 0) return;
    const pen = clearCanvas(this.canvas, width, height);
    this.lines = this.series.map((line, i) => ({
      ...line,
      y: line.faint ? line.y : smooth(line.y, this.smoothing),
      colour: lineColour(line.key ?? i),
    }));
    this.whole = this.ranges();
    const range = (this.range = this.whole && this.zoom ? this.zoomed() : this.whole);
    this.describe();
    if (range === null) return;
    const across = (x) => LEFT + ((x - range.left) / (range.right - range.left)) * (width - LEFT - RIGHT);
    const up = (y) => height - BOTTOM - ((y - range.low) / (range.high - range.low)) * (height - TOP - BOTTOM);
    Object.assign(this, { across, width });
    this.drawAxes(pen, width, height, range, across, up);
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, TOP - 2, width - LEFT - RIGHT + 2, height - TOP - BOTTOM + 4);
    pen.clip();
    for (const line of this.lines) this.drawLine(pen, line, across, up);
    for (const mark of this.marks) this.drawMark(pen, mark, across(mark.x), height);
    if (this.selection) {
      pen.globalAlpha = 0.2;
      pen.fillStyle = colour("--strong");
      pen.fillRect(this.selection[0], TOP, this.selection[1] - this.selection[0], height - TOP - BOTTOM);
    }
    pen.restore();
    if (this.cursor !== null) this.drawCursor(pen, height, across, up);
    this.figure.dataset.frames = String(++drawn);
  }

  drawAxes(pen, width, height, { left, right, low, high }, across, up) {
    pen.font = "11px system-ui, sans-serif";
    pen.lineWidth = 1;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    const tall = height - TOP - BOTTOM;
    const marks = this.log ? logTicks(low, high, tall / 20) : ticks(low, high, Math.max(4, tall / 26));
    for (const at of marks) {
      const y = Math.round(up(at)) + 0.5;
      pen.strokeStyle = colour("--line");
      strokeLine(pen, LEFT, y, width - RIGHT, y);
      pen.fillStyle = colour("--soft");
      pen.fillText(formatTick(Number((this.log ? 10 ** at : at).toPrecision(this.log ? 2 : 6))), LEFT - 7, y);
    }
    pen.textBaseline = "alphabetic";
    pen.fillText(this.unit, LEFT - 7, height - 5);
    for (const at of ticks(left, right, (width - LEFT - RIGHT) / 70).filter((at) => Math.abs(at - Math.round(at)) < 1e-6)) {
      const words = formatTick(Number(at.toPrecision(6))), half = pen.measureText(words).width / 2;
      if (across(at) - half < LEFT - 4) continue;
      pen.textAlign = across(at) + half > width ? "right" : "center";
      pen.fillText(words, Math.min(across(at), width), height - 5);
    }
  }

  drawLine(pen, { x, y, low, high, quantiles = [], colour: ink, faint, dashed }, across, up) {
    const place = (value) => up(this.log ? Math.log10(value) : value);
    pen.strokeStyle = pen.fillStyle = ink;
    const bands = quantiles.slice(0, quantiles.length / 2).map((line, i) => [line, quantiles.at(-1 - i)]);
    if (low && this.smoothing === 0) bands.push([low, high]);
    for (const [low, high] of bands) {
      pen.globalAlpha = quantiles.length ? 0.28 : 0.16;
      pen.beginPath();
      for (let i = 0; i < x.length; i++) pen.lineTo(across(x[i]), place(high[i]));
      for (let i = x.length - 1; i >= 0; i--) pen.lineTo(across(x[i]), Math.min(place(low[i]), 1e4)); // far below, if log 0
      pen.fill();
    }
    pen.globalAlpha = faint ? 0.35 : 1;
    pen.lineWidth = faint ? 1 : 1.75;
    pen.lineJoin = "round";
    pen.setLineDash(dashed ? [5, 4] : []);
    pen.beginPath();
    let isDown = false;
    for (let i = 0; i < x.length; i++) {
      const at = place(y[i]);
      if (Number.isFinite(at)) isDown ? pen.lineTo(across(x[i]), at) : pen.moveTo(across(x[i]), at);
      isDown = Number.isFinite(at);
    }
    pen.stroke();
    pen.setLineDash([]);
    if (x.length === 1 && isDown) {
      pen.beginPath();
      pen.arc(across(x[0]), place(y[0]), 3, 0, 7);
      pen.fill();
    }
    pen.globalAlpha = 1;
  }

  drawMark(pen, { name, key }, x, height) {
    pen.strokeStyle = pen.fillStyle = colour(key);
    pen.lineWidth = 1;
    pen.setLineDash([2, 3]);
    strokeLine(pen, x, TOP, x, height - BOTTOM);
    pen.setLineDash([]);
    pen.font = "11px system-ui, sans-serif";
    pen.textAlign = x > this.width / 2 ? "right" : "left";
    Object.assign(pen, { strokeStyle: colour("--card"), lineWidth: 4 }); // a ground, because lines may be below it
    for (const write of ["strokeText", "fillText"]) pen[write](name, x + (x > this.width / 2 ? -4 : 4), TOP + 8);
  }

  drawCursor(pen, height, across, up) {
    const x = Math.round(across(this.cursor)) + 0.5;
    pen.strokeStyle = colour("--soft");
    strokeLine(pen, x, TOP, x, height - BOTTOM);
    for (const line of this.lines.filter(({ faint }) => !faint)) {
      const i = nearestIndex(line.x, this.cursor);
      pen.fillStyle = line.colour;
      pen.beginPath();
      pen.arc(across(line.x[i]), up(this.log ? Math.log10(line.y[i]) : line.y[i]), 3.5, 0, 7);
      pen.fill();
    }
  }

  /** The x at a place in pixels, inside the range of x. */
  xAt(at) {
    const share = (at - LEFT) / (this.width - LEFT - RIGHT), { left, right } = this.range;
    return left + Math.min(1, Math.max(0, share)) * (right - left);
  }

  /** Move the cursor to a place in pixels, or take it away. */
  setCursor(at) {
    if (at === null || !this.range || !this.across) {
      this.cursor = null;
    } else {
      const { x } = this.longest();
      this.cursor = x[nearestIndex(x, this.xAt(at))];
    }
    this.redraw();
  }

  /** The range of x in which two x are at these places in pixels. */
  rangeAt([first, second], [from, to]) {
    const perPixel = (second - first) / (to - from), left = first - (from - LEFT) * perPixel;
    return [left, left + (this.width - LEFT - RIGHT) * perPixel];
  }

  longest() {
    return this.lines.filter(({ faint }) => !faint).reduce((a, b) => (b.x.length > a.x.length ? b : a));
  }

  moveCursor(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined || !this.range) return;
    event.preventDefault();
    const { x } = this.longest();
    const now = this.cursor === null ? x.length - 1 : nearestIndex(x, this.cursor) + step;
    this.cursor = x[Math.min(x.length - 1, Math.max(0, now))];
    this.redraw();
  }

  /** Write the legend with the values at the cursor, or the newest, and the same in words. */
  describe() {
    const solidLines = this.lines.filter(({ faint }) => !faint);
    while (this.keys.children.length > solidLines.length) this.keys.lastChild.remove();
    const values = {};
    solidLines.forEach((line, i) => {
      const at = this.cursor === null ? line.y.length - 1 : nearestIndex(line.x, this.cursor);
      if (!this.keys.children[i]) this.keys.append(make("span", { className: "key" }, make("i"), make("span"), make("b")));
      const key = this.keys.children[i];
      key.firstChild.style.background = line.dashed ? `repeating-linear-gradient(90deg, ${line.colour} 0 5px, transparent 5px 7px)` : line.colour;
      key.children[1].textContent = line.name;
      key.lastChild.textContent = formatNumber(line.y[at]);
      values[line.name] = line.y[at];
    });
    const where = this.cursor === null ? "" : ` at ${this.unit} ${formatNumber(this.cursor)}`;
    const all = solidLines.map(({ name }) => `${name} ${formatNumber(values[name])}`).join(", ");
    const marks = this.marks.map(({ name, x }) => ` ${name} at ${this.unit} ${formatNumber(x)}.`).join("");
    this.words.textContent = `${this.title}${where}: ${all || "nothing yet"}.${marks}`;
    this.canvas.setAttribute("aria-label", this.words.textContent);
    this.figure.dataset.values = JSON.stringify(values);
    this.figure.dataset.scale = this.log ? "log" : "linear";
    this.figure.dataset.range = this.range ? JSON.stringify([this.range.left, this.range.right]) : "";
    this.figure.classList.toggle("zoomed", Boolean(this.zoom));
    this.figure.dataset.marks = JSON.stringify(this.marks.map(({ name, x }) => [name, x]));
    this.figure.dataset.cursor = this.cursor ?? "";
  }
}

function nearestIndex(x, target) {
  let low = 0, high = x.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    x[middle] < target ? (low = middle) : (high = middle);
  }
  return Math.abs(x[low] - target) <= Math.abs(x[high] - target) ? low : high;
}
