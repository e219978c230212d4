// Tools of a chart: zoom into a range of x, and download the picture or the numbers.

import { colour, formatNumber } from "./charts.js";
import { download, make } from "./page.js";

const MIN_DRAG = 8; // pixels from which on the pointer marks a range

/** Add the tools. `onZoom(range)` gets a range of x, or null for all; it zooms this chart and those beside it. */
export function addTools(chart, onZoom) {
  const whole = make("button", { className: "whole", title: "Escape, or a double click", onclick: () => onZoom(null) }, "All steps");
  const png = make("button", { "aria-label": `${chart.title} as PNG`, onclick: () => savePicture(chart) }, "PNG");
  const csv = make("button", { "aria-label": `${chart.title} as CSV`, onclick: () => saveNumbers(chart) }, "CSV");
  chart.figure.querySelector("figcaption").append(make("span", { className: "tools" }, whole, png, csv));
  addDrag(chart, onZoom);
  chart.canvas.addEventListener("dblclick", () => onZoom(null));
  chart.canvas.addEventListener("keydown", ({ key }) => {
    if (key === "Escape") onZoom(null);
    if ((key === "+" || key === "-") && chart.range) onZoom(scaleRange(chart, key === "+" ? 0.5 : 2));
  });
}

/** Mark a range with the mouse. A finger moves the cursor, as before. */
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

/** The range around the cursor, or the middle, that is so many times as wide; null if it has all lines. */
function scaleRange({ range: { left, right }, whole, cursor }, factor) {
  const middle = cursor ?? (left + right) / 2, half = ((right - left) * factor) / 2;
  const scaled = [Math.max(whole.left, middle - half), Math.min(whole.right, middle + half)];
  return scaled[0] <= whole.left && scaled[1] >= whole.right ? null : scaled;
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
  const rows = series.flatMap(({ name, x, y, low, high }) =>
    Array.from(x, (at, i) => [quote(name || title), at, cell(y[i]), cell(low?.[i] ?? y[i]), cell(high?.[i] ?? y[i])].join(",")));
  download(`${title}.csv`, new Blob([[`line,${unit},mean,least,greatest`, ...rows, ""].join("\n")], { type: "text/csv" }));
}
