// Tools of a chart: zoom into a range of x, and download the picture or the numbers.

import { colour, formatNumber } from "./charts.js";
import { download, make } from "./page.js";

const MIN_DRAG = 8; // pixels from which on the pointer marks a range
const DOUBLE_TAP = 350; // milliseconds between two taps, at most

/** Add the tools. `onZoom(range)` gets a range of x, or null for all; it zooms this chart and those beside it. */
export function addTools(chart, onZoom) {
  const whole = make("button", { className: "whole", title: "Escape, or a double click", onclick: () => onZoom(null) }, "All steps");
  const png = make("button", { "aria-label": `${chart.title} as PNG`, onclick: () => savePicture(chart) }, "PNG");
  const csv = make("button", { "aria-label": `${chart.title} as CSV`, onclick: () => saveNumbers(chart) }, "CSV");
  chart.figure.querySelector("figcaption").append(make("span", { className: "tools" }, whole, png, csv));
  addDrag(chart, onZoom);
  addPinch(chart, onZoom);
  chart.canvas.addEventListener("dblclick", () => onZoom(null));
  chart.canvas.addEventListener("keydown", ({ key }) => {
    if (key === "Escape") onZoom(null);
    if ((key === "+" || key === "-") && chart.range) onZoom(scaleRange(chart, key === "+" ? 0.5 : 2));
  });
}

/** Mark a range with the mouse. */
function addDrag(chart, onZoom) {
  const { canvas } = chart;
  let start = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch" || event.button !== 0 || !chart.range) return;
    start = event.offsetX;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", ({ offsetX }) => {
    if (start !== null) chart.set({ selection: [start, offsetX].sort((a, b) => a - b) });
  });
  canvas.addEventListener("pointerup", ({ offsetX }) => {
    if (start === null) return;
    const ends = [start, offsetX].sort((a, b) => a - b).map((at) => chart.xAt(at));
    const isRange = Math.abs(offsetX - start) >= MIN_DRAG && ends[1] > ends[0];
    start = null;
    chart.set({ selection: null });
    if (isRange) onZoom(ends);
  });
  canvas.addEventListener("pointercancel", () => {
    start = null;
    chart.set({ selection: null });
  });
}

/** Zoom by two fingers: the steps under them stay there. One moves the cursor or scrolls; a double tap shows all steps. */
function addPinch(chart, onZoom) {
  const { canvas } = chart, fingers = new Map(); // where each is
  const places = () => [...fingers.values()].sort((a, b) => a - b);
  let steps = null, lastTap = null;
  canvas.addEventListener("pointerdown", ({ pointerType, pointerId, offsetX, timeStamp }) => {
    if (pointerType !== "touch" || !chart.range) return;
    fingers.set(pointerId, offsetX);
    steps = fingers.size === 2 ? places().map((at) => chart.xAt(at)) : null;
    const isDouble = fingers.size === 1 && lastTap && timeStamp - lastTap.time < DOUBLE_TAP && Math.abs(offsetX - lastTap.at) < 4 * MIN_DRAG;
    if (isDouble) onZoom(null);
    lastTap = fingers.size === 1 && !isDouble ? { time: timeStamp, at: offsetX } : null;
  });
  canvas.addEventListener("pointermove", ({ pointerId, offsetX }) => {
    if (!fingers.has(pointerId)) return;
    fingers.set(pointerId, offsetX);
    if (!steps) return;
    chart.setCursor(null);
    const [from, to] = places();
    if (to - from >= MIN_DRAG && steps[1] > steps[0]) onZoom(limitRange(chart, chart.rangeAt(steps, [from, to])));
  });
  for (const kind of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(kind, ({ pointerId }) => {
      if (fingers.delete(pointerId)) steps = null;
    });
  }
  for (const kind of ["touchstart", "touchmove"]) { // the page scrolls by one finger, not by two
    canvas.addEventListener(kind, (event) => event.touches.length > 1 && event.cancelable && event.preventDefault(), { passive: false });
  }
}

/** The range around the cursor, or the middle, that is so many times as wide; null if it has all lines. */
function scaleRange(chart, factor) {
  const { range: { left, right }, cursor } = chart;
  const middle = cursor ?? (left + right) / 2, half = ((right - left) * factor) / 2;
  return limitRange(chart, [middle - half, middle + half]);
}

/** The part of a range that has lines; null if it has all of them. */
function limitRange({ whole }, [from, to]) {
  const left = Math.max(whole.left, from), right = Math.min(whole.right, to);
  return left <= whole.left && right >= whole.right ? null : [left, right];
}

function savePicture({ canvas, title, lines }) {
  const { width } = canvas.getBoundingClientRect(), ratio = canvas.width / width, font = "12px system-ui, sans-serif";
  const picture = make("canvas", { width: canvas.width }), pen = picture.getContext("2d");
  pen.font = font;
  const names = lines.filter(({ name, faint }) => name && !faint).map(({ name, colour: ink, y }) => [`${name} ${formatNumber(y[y.length - 1])}`, ink]);
  let right = 10, down = 34; // where the next name of the legend begins
  const legend = names.map(([words, ink]) => {
    const long = 33 + pen.measureText(words).width;
    if (right > 10 && right + long > width) [right, down] = [10, down + 18];
    right += long;
    return [words, ink, right - long, down];
  });
  const head = down + 12;
  picture.height = canvas.height + head * ratio;
  pen.fillStyle = colour("--card");
  pen.fillRect(0, 0, picture.width, picture.height);
  pen.drawImage(canvas, 0, head * ratio);
  pen.scale(ratio, ratio);
  pen.textBaseline = "middle";
  pen.fillStyle = colour("--ink");
  pen.font = "600 14px system-ui, sans-serif";
  pen.fillText(title, 10, 14);
  pen.font = font;
  for (const [words, ink, at, height] of legend) {
    pen.fillStyle = ink;
    pen.fillRect(at, height - 2, 12, 3);
    pen.fillStyle = colour("--soft");
    pen.fillText(words, at + 17, height);
  }
  picture.toBlob((blob) => download(`${title}.png`, blob));
}

function saveNumbers({ title, unit, series }) {
  const quote = (words) => (/[",\n]/.test(words) ? `"${words.replaceAll('"', '""')}"` : words);
  const cell = (value) => (value === undefined || Number.isNaN(value) ? "" : String(value));
  const lines = series.flatMap((line) => line.quantiles?.map((y, i) => ({ ...line, name: line.levels[i], y })) ?? [line]);
  const rows = lines.flatMap(({ name, x, y, low, high }) =>
    Array.from(x, (at, i) => [quote(name || title), at, cell(y[i]), cell(low?.[i] ?? y[i]), cell(high?.[i] ?? y[i])].join(",")));
  download(`${title}.csv`, new Blob([[`line,${unit},mean,least,greatest`, ...rows, ""].join("\n")], { type: "text/csv" }));
}
