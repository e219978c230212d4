// What the net predicts: regions or values over the plane; else how often each class is taken for which, or the numbers that it
// predicts against the true ones.

import { colour } from "./charts.js";
import { CLASSES, mixed, pictureOf, rgb } from "./pictures.js";

const BLUE = rgb("#0072B2"), ORANGE = rgb("#E69F00");
const MOST_MISTAKES = 12, AGAIN = 500; // pictures of mistakes, and milliseconds between two looks at them

/** The colour of a number of −1 … 1: blue, the page, orange. */
export const signed = (value, page) => mixed(page, value < 0 ? BLUE : ORANGE, Math.min(1, Math.abs(value)));

/** The colour of a class. */
export const ofClass = (c) => CLASSES[c % CLASSES.length];

const LEVELS = 64; // shades of a class
const asPixel = ([r, g, b]) => (255 << 24) | (b << 16) | (g << 8) | r; // browsers' machines are little-endian
let shades = null; // the pixels of all colours, for this colour of the page

/** The pixels of bytes, 128 is 0, and of classes by how sure the net is; for the present colours of the page. */
export function pixels() {
  const ground = colour("--card");
  if (shades?.ground !== ground) {
    const page = rgb(ground);
    shades = {
      ground,
      ofByte: Int32Array.from({ length: 256 }, (_, byte) => asPixel(signed((byte - 128) / 127, page))),
      ofClass: CLASSES.map((hex) =>
        Int32Array.from({ length: LEVELS + 1 }, (_, level) => asPixel(mixed(page, rgb(hex), 0.1 + (0.45 * level) / LEVELS)))),
    };
  }
  return shades;
}

/** Draw a picture of so many rows of pixels, the first one below or above, over a part of a canvas. */
export function drawPixels(pen, pixelsOf, rows, wide, isFromBelow, left, top, width, height) {
  const small = new OffscreenCanvas(wide, rows), brush = small.getContext("2d"), image = brush.createImageData(wide, rows);
  const into = new Int32Array(image.data.buffer);
  for (let row = 0, k = 0; row < rows; row++) {
    let at = (isFromBelow ? rows - 1 - row : row) * wide;
    for (let column = 0; column < wide; column++) into[at++] = pixelsOf(k++);
  }
  brush.putImageData(image, 0, 0);
  pen.drawImage(small, left, top, width, height);
}

/** Draw on `canvas` what the frame's net says of what was told. `withHeld`: also the points that are held out. */
export function drawSaid(canvas, mistakes, told, frame, withHeld) {
  mistakes.hidden = told.picture !== "image";
  if (told.picture === "plane") drawPlane(canvas, told, frame, withHeld);
  else if (told.classes) drawConfusion(canvas, mistakes, told, frame);
  else drawAgainst(canvas, told, frame);
}

function drawPlane(canvas, told, { output }, withHeld) {
  const [rows, wide, count] = output.shape, page = rgb(colour("--card"));
  const pen = canvas.getContext("2d"), range = told.reach;
  const { ofByte, ofClass: ofSure } = pixels();
  const pixelOf = told.classes
    ? (k) => {
      const best = bestOf(output, k, count), sure = (output[k * count + best] - 1 / count) / (1 - 1 / count);
      return ofSure[best % CLASSES.length][Math.round(LEVELS * (Number.isFinite(sure) ? sure : 0))];
    }
    : (k) => ofByte[Math.max(0, Math.min(255, Math.round(128 + 102 * output[k])))];
  drawPixels(pen, pixelOf, rows, wide, true, 0, 0, canvas.width, canvas.height);
  const points = (x, y, hollow) => {
    for (let i = 0; i < y.length; i++) {
      pen.beginPath();
      pen.arc(((x[2 * i] + range) / (2 * range)) * canvas.width, (1 - (x[2 * i + 1] + range) / (2 * range)) * canvas.height, 4.2, 0, 7);
      const paint = told.classes ? ofClass(y[i]) : `rgb(${signed(y[i], page)})`;
      pen.fillStyle = hollow ? colour("--card") : paint;
      pen.fill();
      pen.lineWidth = hollow ? 2 : 1;
      pen.strokeStyle = hollow ? paint : colour("--card");
      pen.stroke();
    }
  };
  points(told.x, told.y, false);
  if (withHeld) points(told.held_x, told.held_y, true);
  const kind = told.classes ? "the classes" : "the numbers";
  canvas.setAttribute("aria-label", `${kind} over the plane, with ${told.y.length} points of the training and ${told.held_y.length} held out`);
}

function bestOf(output, row, count) {
  let best = 0;
  for (let c = 1; c < count; c++) if (output[row * count + c] > output[row * count + best]) best = c;
  return best;
}

function drawConfusion(canvas, mistakes, told, { output }) {
  const count = told.outputs, counts = Array.from({ length: count }, () => new Array(count).fill(0)), wrong = [];
  told.held_y.forEach((truth, i) => {
    const said = bestOf(output, i, count);
    counts[truth][said]++;
    if (said !== truth) wrong.push([i, truth, said]);
  });
  const pen = canvas.getContext("2d"), page = rgb(colour("--card")), left = 70, size = (canvas.width - left) / count;
  pen.fillStyle = colour("--card");
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.textBaseline = "middle";
  counts.forEach((row, truth) => {
    const all = row.reduce((a, b) => a + b, 0) || 1;
    row.forEach((n, said) => {
      const share = n / all, y = truth * size;
      pen.fillStyle = `rgb(${mixed(page, said === truth ? BLUE : ORANGE, n ? 0.12 + 0.75 * share : 0.03)})`;
      pen.fillRect(left + said * size + 1, y + 1, size - 2, size - 2);
      if (n === 0) return;
      pen.fillStyle = share > 0.5 && said === truth ? "#fff" : colour("--ink");
      pen.font = `${Math.min(15, size / 2.2)}px system-ui, sans-serif`;
      pen.textAlign = "center";
      pen.fillText(n, left + (said + 0.5) * size, y + size / 2);
    });
    pen.fillStyle = colour("--soft");
    pen.font = "13px system-ui, sans-serif";
    pen.textAlign = "right";
    pen.fillText(told.labels[truth].slice(0, 9), left - 8, (truth + 0.5) * size, left - 10);
    pen.textAlign = "center";
    pen.fillText(told.labels[truth].slice(0, 9), left + (truth + 0.5) * size, canvas.height - left / 2, size);
  });
  const words = `Each row is a class, each column what the net takes it for: ${wrong.length} of ${told.held_y.length} points that are held out are taken for another class`;
  canvas.setAttribute("aria-label", words);
  canvas.dataset.wrong = wrong.length;
  if (told.picture === "image") showMistakes(mistakes, told, wrong);
}

let looked = 0;
function showMistakes(host, told, wrong) {
  const now = performance.now();
  if (now - looked < AGAIN && host.dataset.wrong) return;
  looked = now;
  host.dataset.wrong = wrong.length;
  const side = Math.sqrt(told.inputs), images = Uint8Array.from(told.held_x, (v) => Math.max(0, Math.min(255, 255 * v)));
  images.shape = [told.held_y.length, side, side, 1];
  host.replaceChildren(...wrong.slice(0, MOST_MISTAKES).map(([i, truth, said]) =>
    pictureOf(images, i, `${truth}, not ${said}`, `a ${truth} that the net takes for a ${said}`)));
}

function drawAgainst(canvas, told, { output }) {
  const pen = canvas.getContext("2d"), truth = told.held_y, margin = 34, size = canvas.width - 2 * margin;
  const all = [...truth, ...output].filter(Number.isFinite);
  const low = Math.min(...all), high = Math.max(...all, low + 1e-6);
  const place = (value) => ((value - low) / (high - low)) * size;
  pen.fillStyle = colour("--card");
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.strokeStyle = colour("--line");
  pen.strokeRect(margin, margin, size, size);
  pen.beginPath();
  pen.moveTo(margin, margin + size);
  pen.lineTo(margin + size, margin);
  pen.stroke();
  pen.fillStyle = colour("--blue");
  pen.globalAlpha = 0.6;
  truth.forEach((y, i) => {
    pen.beginPath();
    pen.arc(margin + place(y), margin + size - place(output[i]), 3.5, 0, 7);
    pen.fill();
  });
  pen.globalAlpha = 1;
  pen.fillStyle = colour("--soft");
  pen.font = "13px system-ui, sans-serif";
  pen.textAlign = "center";
  pen.fillText("true", canvas.width / 2, canvas.height - 10);
  pen.save();
  pen.translate(14, canvas.height / 2);
  pen.rotate(-Math.PI / 2);
  pen.fillText("predicted", 0, 0);
  pen.restore();
  canvas.setAttribute("aria-label", `predicted against true numbers of ${truth.length} points that are held out; on the line both are equal`);
}
