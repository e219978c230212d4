// A net that learns names: ten that it writes, what it expects after the letters that the user types, and its units.

import { colour } from "./charts.js";
import { $, make, strokeLine } from "./page.js";
import { fillCanvas, rgb, signedColour } from "./pictures.js";
import { unitPicture } from "./predictions.js";

const KINDS = [["", ""], ["training", "in the training data"], ["test", "a test name"]];
const BARS = 150, LABELS = 24, MAX_CELL = 22, SQUARES = 256; // pixels of parts of the picture
const LEFT = 26; // pixels of the numbers of the units

/** Let the page ask for the names of another draw, and for other letters. */
export function readLetters(ask) {
  const input = $("prefix");
  let draw = 0;
  const read = () => ask({ ask: "read", text: input.value, draw });
  input.oninput = () => {
    input.value = input.value.toLowerCase().replaceAll(/[^a-z]/g, "");
    read();
  };
  $("others").onclick = () => {
    draw = (draw + 1) % 1000;
    read();
  };
}

/** Show the names that the net has written. Those of the data are underlined, as the curves are drawn. */
export function showWritten({ written, kinds, text }) {
  if (document.activeElement !== $("prefix")) $("prefix").value = text;
  $("written").replaceChildren(...written.map((name, i) => {
    const [className, words] = KINDS[kinds[i]];
    return make("li", { className, title: words }, name || "–", ...(words ? [make("span", { className: "only-read" }, `, ${words}`)] : []));
  }));
}

/** The letters that the net has read, one a column. */
const readBy = ({ labels }, { text }) => [labels[0], ...text];

/** Draw what the net expects after the last letter, and the units of the last hidden layer after each letter. */
export function drawNext(canvas, config, frame) {
  const units = frame.units.at(-1), count = units?.shape[0] ?? 0, cell = Math.min(MAX_CELL, SQUARES / count);
  const height = Math.round(BARS + LABELS + (count ? LABELS + count * cell : 0)), width = canvas.width;
  if (canvas.height !== height) canvas.height = height;
  const pen = fillCanvas(canvas, "--card"), classes = config.outputs, wide = width / classes;
  const p = frame.output.subarray(-classes), highest = Math.max(...p), scale = (BARS - 20) / Math.max(0.3, highest);
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  p.forEach((value, c) => {
    pen.fillStyle = colour("--blue");
    pen.fillRect(c * wide + 1.5, BARS - value * scale, wide - 3, value * scale);
    pen.fillStyle = colour("--ink");
    pen.font = `${value === highest ? 700 : 400} 14px system-ui, sans-serif`;
    pen.fillText(config.labels[c], (c + 0.5) * wide, BARS + LABELS / 2);
    if (value === highest) pen.fillText(`${Math.round(100 * value)} %`, Math.max(22, Math.min(width - 22, (c + 0.5) * wide)), BARS - value * scale - 10);
  });
  pen.strokeStyle = colour("--soft");
  pen.setLineDash([5, 4]);
  strokeLine(pen, 0, BARS - scale / classes, width, BARS - scale / classes);
  pen.setLineDash([]);
  for (let j = 0; j < count; j++) {
    const top = BARS + 2 * LABELS + j * cell;
    drawCells(pen, config, frame, [frame.units.length - 1, j], LEFT, top, width - LEFT, cell);
    pen.fillStyle = colour("--soft");
    pen.font = "11px system-ui, sans-serif";
    pen.fillText(j + 1, LEFT / 2, top + cell / 2);
  }
  if (count) writeLetters(pen, config, frame, LEFT, BARS + 1.5 * LABELS, width - LEFT, 15);
  canvas.setAttribute("aria-label", describeNext(config, frame, p));
}

/** What the net expects, in words. */
function describeNext({ labels, setting }, { text }, p) {
  const best = [...p.keys()].sort((a, b) => p[b] - p[a]).slice(0, 3);
  const words = best.map((c) => `${c ? labels[c] : "the end"} ${Math.round(100 * p[c])} %`).join(", ");
  const units = setting.layers.length ? `; and the units of layer ${setting.layers.length} after each letter` : "";
  return `what the net expects ${text ? `after ${text}` : "first"}: ${words}${units}`;
}

/** Draw a unit, [hidden layer, number], large: a square for each letter. */
export function drawLetters(canvas, config, frame, place) {
  const pen = fillCanvas(canvas, "--card"), { width, height } = canvas, side = Math.min(width / readBy(config, frame).length, height - 2 * LABELS);
  writeLetters(pen, config, frame, 0, LABELS, width, 20);
  drawCells(pen, config, frame, place, 0, 2 * LABELS, width, side);
}

/** A unit's outputs as squares from left to right: one for each letter. */
export function drawCells(pen, config, frame, place, left, top, width, height) {
  const { bytes } = unitPicture(frame, place), page = rgb(colour("--track")), wide = width / bytes.length;
  const gap = wide > 8 ? 1 : 0;
  bytes.forEach((byte, t) => {
    pen.fillStyle = `rgb(${signedColour((byte - 128) / 127, page)})`;
    pen.fillRect(left + t * wide + gap, top + gap, wide - 2 * gap, height - 2 * gap);
  });
}

function writeLetters(pen, config, frame, left, middle, width, size) {
  const letters = readBy(config, frame);
  Object.assign(pen, { textAlign: "center", textBaseline: "middle", fillStyle: colour("--ink"), font: `600 ${size}px system-ui, sans-serif` });
  letters.forEach((letter, t) => pen.fillText(letter, left + ((t + 0.5) * width) / letters.length, middle));
}
