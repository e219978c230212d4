// Line charts on a canvas: several lines, linear or logarithmic, smoothed, with the values under the pointer.

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const DASHES = [[], [5, 4], [2, 3], [8, 3, 2, 3]];
const HEIGHT = 190, LEFT = 60, RIGHT = 10, TOP = 10, BOTTOM = 26; // pixels

/** A number as a reader wants it: 0.0123, 12.3, 1.2e-7. */
export function text(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

/** The running mean that forgets: m ← s m + (1 − s) x, begun at the first value. */
export function smoothed(values, share) {
  if (!share) return values;
  const found = new Float64Array(values.length);
  let mean = NaN;
  values.forEach((value, i) => {
    mean = Number.isFinite(mean) ? share * mean + (1 - share) * value : value;
    found[i] = mean;
  });
  return found;
}

/** Draw a chart into an element, made once. Lines are {name, x, y, colour, dash}; options {log, smooth, label}. */
export function chart(element, lines, options) {
  const canvas = element.querySelector("canvas") ?? made(element);
  canvas.lines = lines.map((line) => ({ ...line, y: smoothed(line.y, options.smooth) }));
  canvas.options = options;
  draw(canvas);
  const last = lines.map((line) => `${line.name} ${text(line.y[line.y.length - 1])}`).join(", ");
  canvas.setAttribute("aria-label", `${options.label}: ${last || "no values yet"}`);
}

function made(element) {
  const canvas = document.createElement("canvas");
  canvas.setAttribute("role", "img");
  element.append(canvas);
  canvas.onpointermove = (event) => { canvas.pointer = event.offsetX; draw(canvas); };
  canvas.onpointerleave = () => { canvas.pointer = null; draw(canvas); };
  new ResizeObserver(() => canvas.lines && draw(canvas)).observe(element);
  return canvas;
}

function draw(canvas) {
  const { lines, options } = canvas;
  const width = canvas.parentElement.clientWidth, ratio = devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = HEIGHT * ratio;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${HEIGHT}px`;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = "12px system-ui, sans-serif";
  const shown = (y) => (options.log ? (y > 0 ? Math.log10(y) : NaN) : y);
  const ys = lines.flatMap((line) => Array.from(line.y, shown)).filter(Number.isFinite);
  const xs = lines.flatMap((line) => [line.x[0], line.x[line.x.length - 1]]).filter(Number.isFinite);
  if (!ys.length) {
    pen.fillStyle = colour("--soft");
    pen.fillText("Nothing is measured yet.", LEFT, HEIGHT / 2);
    return;
  }
  let [low, high] = [Math.min(...ys), Math.max(...ys)];
  if (high - low < 1e-12) [low, high] = [low - 0.5, high + 0.5];
  const [first, last] = [Math.min(...xs), Math.max(...xs, Math.min(...xs) + 1)];
  const place = (x) => LEFT + ((x - first) / (last - first)) * (width - LEFT - RIGHT);
  const level = (y) => TOP + (1 - (shown(y) - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const unit = options.unit ?? "epoch";
  axes(pen, width, { low, high, first, last, place, log: options.log, unit });
  for (const line of lines) {
    pen.strokeStyle = colour(line.colour);
    pen.lineWidth = 1.8;
    pen.setLineDash(DASHES[line.dash ?? 0]);
    pen.globalAlpha = line.faint ? 0.45 : 1;
    pen.beginPath();
    let down = false;
    for (let i = 0; i < line.y.length; i++) {
      const y = level(line.y[i]);
      if (!Number.isFinite(y)) { down = false; continue; }
      if (down) pen.lineTo(place(line.x[i]), y);
      else pen.moveTo(place(line.x[i]), y);
      down = true;
    }
    pen.stroke();
    if (line.y.length === 1) pen.fillRect(place(line.x[0]) - 1.5, level(line.y[0]) - 1.5, 3, 3);
  }
  pen.globalAlpha = 1;
  pen.setLineDash([]);
  if (canvas.pointer != null) values(pen, canvas, { width, first, last, place, unit });
}

function axes(pen, width, { low, high, first, last, place, log, unit }) {
  pen.strokeStyle = colour("--line");
  pen.fillStyle = colour("--soft");
  pen.lineWidth = 1;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (let i = 0; i <= 3; i++) {
    const y = TOP + (i / 3) * (HEIGHT - TOP - BOTTOM);
    const value = high - (i / 3) * (high - low);
    pen.beginPath();
    pen.moveTo(LEFT, y);
    pen.lineTo(width - RIGHT, y);
    pen.stroke();
    pen.fillText(text(Number((log ? 10 ** value : value).toPrecision(3))), LEFT - 6, y);
  }
  pen.textBaseline = "alphabetic";
  pen.textAlign = "left";
  pen.fillText(Math.round(first).toLocaleString("en"), place(first), HEIGHT - 8);
  pen.textAlign = "right";
  pen.fillText(Math.round(last).toLocaleString("en"), place(last), HEIGHT - 8);
  pen.textAlign = "center";
  pen.fillText(unit, (LEFT + width - RIGHT) / 2, HEIGHT - 8);
}

function values(pen, canvas, { width, first, last, place, unit }) {
  const share = Math.min(1, Math.max(0, (canvas.pointer - LEFT) / (width - LEFT - RIGHT)));
  const x = Math.round(first + share * (last - first));
  const found = canvas.lines.map((line) => {
    let i = line.x.findIndex((value) => value >= x);
    if (i < 0) i = line.x.length - 1;
    return `${line.name} ${text(line.y[i])}`;
  });
  const said = [`${unit} ${x.toLocaleString("en")}`, ...found];
  const wide = Math.max(...said.map((line) => pen.measureText(line).width)) + 16;
  const left = place(x) + wide + 8 > width ? place(x) - wide - 8 : place(x) + 8;
  pen.strokeStyle = colour("--soft");
  pen.beginPath();
  pen.moveTo(place(x), TOP);
  pen.lineTo(place(x), HEIGHT - BOTTOM);
  pen.stroke();
  pen.fillStyle = colour("--card");
  pen.strokeStyle = colour("--line");
  pen.fillRect(left, TOP, wide, 17 * said.length + 8);
  pen.strokeRect(left, TOP, wide, 17 * said.length + 8);
  pen.fillStyle = colour("--ink");
  pen.textAlign = "left";
  said.forEach((line, i) => pen.fillText(line, left + 8, TOP + 17 * (i + 1)));
}
