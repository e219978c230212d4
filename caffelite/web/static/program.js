// The Program of a step: its kernels as bars in time, over the memory that they use, before and after each pass; and
// what one kernel has read and written.

import { colour, formatNumber } from "./charts.js";
import { $, clearCanvas, make } from "./page.js";
import { classColour, mix, rgb, signedColour } from "./pictures.js";

const BAND = 30, MEMORY = 130, GAP = 8; // pixels of the kernels, of the memory, and between them
const CELL = 16, MAX_ROWS = 16, MAX_COLUMNS = 32; // of a picture of numbers

let timeline = null, stage = 0, at = 0, bars = [];

/** Show the stages and kernels of a "kernels" message. `showLoop(name)` is called for a kernel that is clicked. */
export function showKernels(message, showLoop) {
  const isOther = timeline === null || timeline.stages.length !== message.stages.length;
  timeline = message;
  at = message.at;
  if (isOther) {
    $("stage").replaceChildren(...timeline.stages.map(({ name }, i) => new Option(name.replaceAll("_", " "), i)));
    stage = timeline.stages.length - 1;
    $("stage").value = stage;
  }
  $("kernels").replaceChildren(...timeline.kernels.map((kernel) => make(
    "tr", {}, cell(kernel.number + 1, "number"), buttonCell(kernel.kernel, showLoop), cell(kernel.shapes),
    cell(kernel.microseconds.toFixed(2), "number"), cell(callerText(kernel)),
  )));
  $("kernelnote").textContent = message.note ?? "";
  drawBars();
  markCurrent();
}

/** Show the numbers of a weight that is followed. */
export function showWeight(weight) {
  $("value").textContent = weight.value.toPrecision(6);
  $("weightloss").textContent = formatNumber(weight.loss);
  $("gradient").textContent = formatNumber(weight.gradient);
  $("difference").textContent = formatNumber(weight.difference);
  $("epsilon").textContent = weight.epsilon;
  $("count").textContent = weight.points;
  const rows = weight.rows.map(({ x, h, delta, product }, i) => {
    const point = x ? `(${x.map((a) => a.toFixed(2)).join(", ")})` : i + 1;
    const numbers = [h, delta, product].map((value) => make("td", { className: "number" }, formatNumber(value)));
    return make("tr", {}, make("td", {}, point), ...numbers);
  });
  $("products").replaceChildren(...rows);
}

/** The kernels that read or write the number that is followed. A net that is not recorded has none. */
export function showWeightKernels(touching, showLoop) {
  $("weightkernels").classList.toggle("hidden", !touching?.length);
  $("touching").replaceChildren(...(touching ?? []).map((kernel) => {
    const lines = kernel.callers.map(({ file, line, text: code }) => make("div", {}, make("code", {}, code), ` ${file}:${line}`));
    const time = cell(kernel.microseconds.toFixed(2), "number");
    return make("tr", {}, buttonCell(kernel.kernel, showLoop), cell(kernel.does.join(", ")), time, make("td", {}, ...lines));
  }));
}

const callerText = ({ callers }) => callers.map(({ file, line }) => `${file.replace("caffelite/", "")}:${line}`).join(", ");

const cell = (content, className = "") => make("td", { className }, content);

function buttonCell(kernel, showLoop) {
  const properties = { className: "link", "aria-label": `the loop of ${kernel}`, onclick: () => showLoop(kernel) };
  return cell(make("button", properties, kernel));
}

// ---- bars ----

export function drawBars() {
  const canvas = $("bars");
  if (timeline === null || canvas.clientWidth === 0) return;
  const width = canvas.clientWidth, page = rgb(colour("--card"));
  const { microseconds, writes, calls, bars: temporaries, size } = timeline.stages[stage];
  const largest = Math.max(...timeline.stages.map((s) => sum(s.microseconds))), highest = Math.max(1, ...timeline.stages.map((s) => s.size));
  canvas.style.height = `${BAND + GAP + MEMORY}px`;
  const pen = clearCanvas(canvas, width, BAND + GAP + MEMORY);
  const across = (t) => (t / largest) * width, paint = (b) => `rgb(${mix(page, rgb(classColour(b % 7)), 0.55)})`;
  const ends = [];
  let end = 0;
  for (const t of microseconds) ends.push((end += t));
  const begins = ends.map((e, i) => e - microseconds[i]);
  bars = [];
  calls.forEach((name, i) => {
    const box = [across(begins[i]), 0, Math.max(1, across(microseconds[i])), BAND];
    pen.fillStyle = writes[i] < 0 ? colour("--line") : paint(writes[i]);
    pen.fillRect(...box);
    pen.strokeStyle = colour("--card");
    pen.strokeRect(...box);
    bars.push({ box, words: `${i + 1}. ${name}: ${microseconds[i].toFixed(2)} µs` });
    pen.fillStyle = colour("--ink");
    pen.font = "11px system-ui, sans-serif";
    if (pen.measureText(name).width < box[2] - 6) pen.fillText(name, box[0] + 3, BAND / 2 + 4);
  });
  pen.strokeStyle = colour("--line");
  pen.strokeRect(0.5, BAND + GAP + 0.5, width - 1, MEMORY - 1);
  for (const { buffer, text: shape, begin, end: last, offset, nbytes } of temporaries) {
    const box = [
      across(begins[begin]), BAND + GAP + (offset / highest) * MEMORY, Math.max(1, across(ends[last] - begins[begin])),
      Math.max(1, (nbytes / highest) * MEMORY),
    ];
    pen.fillStyle = paint(buffer);
    pen.fillRect(...box);
    bars.push({ box, words: `an array of ${shape}, ${nbytes.toLocaleString("en")} bytes: from kernel ${begin + 1} to ${last + 1}` });
  }
  if (stage === timeline.stages.length - 1 && at > 0) {
    pen.strokeStyle = colour("--ink");
    pen.lineWidth = 2;
    pen.strokeRect(...bars[at - 1].box);
  }
  const facts = `${calls.length} kernels, ${sum(microseconds).toFixed(1)} µs, ${size.toLocaleString("en")} bytes of temporaries`;
  $("stagefacts").textContent = facts;
  canvas.setAttribute("aria-label", `the kernels in time, over the memory they use: ${facts}`);
}

const sum = (values) => values.reduce((a, b) => a + b, 0);

$("stage").onchange = () => {
  stage = Number($("stage").value);
  drawBars();
};
$("bars").onpointermove = ({ offsetX, offsetY }) => {
  const bar = bars.find(({ box: [x, y, w, h] }) => offsetX >= x && offsetX <= x + w && offsetY >= y && offsetY <= y + h);
  if (bar) $("barfacts").textContent = bar.words;
};
let pointed = -1;
$("bars").onkeydown = (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (step === undefined || bars.length === 0) return;
  event.preventDefault();
  pointed = Math.max(0, Math.min(bars.length - 1, pointed + step));
  $("barfacts").textContent = bars[pointed].words;
};

// ---- one kernel ----

/** Show what a kernel has read and written: a "kernel" message. */
export function showKernel(message) {
  at = message.at;
  $("ran").classList.remove("hidden");
  const ends = message.at === message.of ? " The step is done." : "";
  $("rantitle").textContent = `Kernel ${message.at} of ${message.of}: ${message.kernel}.${ends}`;
  $("ran").dataset.kernel = message.kernel;
  $("operands").replaceChildren(...message.operands.map(operand));
  drawBars();
  markCurrent();
}

/** No kernel of the next step has run: the net has taken a step, or is another one. */
export function forgetKernel() {
  if (at === 0) return;
  at = 0;
  drawBars();
  markCurrent();
}

function markCurrent() {
  [...$("kernels").children].forEach((row, i) => row.classList.toggle("current", i === at - 1));
}

/** A figure of an operand: its numbers as colours, those before it was written beside them. */
function operand({ name, shape, written, values, before }) {
  const words = `${written ? "writes" : "reads"} ${name}, ${shape.join(" × ") || 1}`;
  const figure = make("figure", {}, make("figcaption", {}, words)), note = (text) => make("span", { className: "soft small" }, text);
  const all = before ? [["before", before], ["after", values]] : [["", values]];
  const largest = Math.max(1e-30, ...all.map(([, x]) => x.reduce((a, b) => Math.max(a, Number.isFinite(b) ? Math.abs(b) : 0), 0)));
  for (const [when, x] of all) {
    if (when) figure.append(note(when));
    figure.append(numbers(x, largest, `${words} ${when}`));
  }
  figure.append(note(`up to ±${formatNumber(largest)}`));
  return figure;
}

function numbers(values, largest, label) {
  const rows = Math.min(values.shape[0], MAX_ROWS), columns = Math.min(values.shape[1], MAX_COLUMNS);
  const canvas = make("canvas", { width: columns * CELL, height: rows * CELL, role: "img" });
  const page = rgb(colour("--track")), pen = canvas.getContext("2d");
  for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) {
    const value = values[i * values.shape[1] + j];
    pen.fillStyle = Number.isFinite(value) ? `rgb(${signedColour(value / largest, page)})` : colour("--ink");
    pen.fillRect(j * CELL, i * CELL, CELL - 1, CELL - 1);
  }
  const first = Array.from(values.subarray(0, 8), (x) => formatNumber(x)).join(", ");
  canvas.setAttribute("aria-label", `${label}: ${first}${values.length > 8 ? " …" : ""}`);
  canvas.onpointermove = ({ offsetX, offsetY }) => {
    const i = Math.floor(offsetY / CELL), j = Math.floor(offsetX / CELL);
    if (i < rows && j < columns) canvas.title = `row ${i + 1}, column ${j + 1}: ${values[i * values.shape[1] + j]}`;
  };
  return make("div", { className: "numbers" }, canvas);
}

// ---- the loop of a kernel ----

/** Show the lines and machine instructions of a "loop" message. */
export function showLoop({ kernel, loops }) {
  $("loop").classList.remove("hidden");
  $("looptitle").textContent = `The loop of ${kernel}`;
  $("looptext").replaceChildren(...loops.flatMap(({ kernel: name, file, lines, isa, instructions, count, problem }) => {
    const parts = [heading(lines.length ? `${name}, in Cython, which becomes C: ${file}` : `${name}: caffelite's source has the lines of its loop, and is not installed here`)];
    if (lines.length) parts.push(listing(lines.join("\n")));
    parts.push(heading(problem || `What the C compiler made of its inner loop, for ${isa}: ${count} machine instructions`));
    if (instructions.length) {
      const wide = Math.max(...instructions.map(([code]) => code.length));
      parts.push(listing(instructions.map(([code, meaning]) => `${code.padEnd(wide)}   ${meaning}`).join("\n")));
    }
    return parts;
  }));
  $("loop").scrollIntoView({ block: "nearest" });
}
$("close").onclick = () => $("loop").classList.add("hidden");

const heading = (words) => make("h3", {}, words);
const listing = (lines) => make("pre", { className: "scrolls" }, make("code", {}, lines));
