// What the net predicts: regions or values over the plane; else how often it predicts which class for which, or its numbers
// over the true ones.

import { colour } from "./charts.js";
import { strokeLine } from "./page.js";
import { BLUE, CLASSES, ORANGE, asPixel, classColour, drawPixels, drawPoint, fillCanvas, imageFigure, mix, rgb, signedColour } from "./pictures.js";

const MAX_MISTAKES = 12, REDRAW_INTERVAL = 500; // pictures of mistakes, and milliseconds between two looks at them

const LEVELS = 64; // shades of a class
let shades = null; // the pixels of all colours, for this colour of the page

/** The pixels of bytes, 128 is 0, and of classes by how sure the net is; for the present colours of the page. */
export function pixels() {
  const ground = colour("--card");
  if (shades?.ground !== ground) {
    const page = rgb(ground);
    shades = {
      ground,
      byteColours: Int32Array.from({ length: 256 }, (_, byte) => asPixel(signedColour((byte - 128) / 127, page))),
      classShades: CLASSES.map((hex) =>
        Int32Array.from({ length: LEVELS + 1 }, (_, level) => asPixel(mix(page, rgb(hex), 0.1 + (0.45 * level) / LEVELS)))),
    };
  }
  return shades;
}

/** Draw on `canvas` what the frame's net predicts. `showHeldOut`: also the points that are held out. */
export function drawPredictions(canvas, mistakes, config, frame, showHeldOut) {
  if (config.picture === "plane") drawPlane(canvas, config, frame, showHeldOut);
  else if (config.classes) drawConfusion(canvas, mistakes, config, frame);
  else drawScatter(canvas, config, frame);
}

function drawPlane(canvas, config, { output }, showHeldOut) {
  const [rows, wide, count] = output.shape, card = colour("--card"), extent = extentOf(config);
  const { byteColours, classShades } = pixels();
  const pixelAt = config.classes
    ? (k) => {
      const best = argmax(output, k, count), sure = (output[k * count + best] - 1 / count) / (1 - 1 / count);
      return classShades[best % CLASSES.length][Math.round(LEVELS * (Number.isFinite(sure) ? sure : 0))];
    }
    : (k) => byteColours[Math.max(0, Math.min(255, Math.round(128 + 102 * output[k])))];
  drawPixels(canvas.getContext("2d"), pixelAt, rows, wide, true, 0, 0, canvas.width, canvas.height);
  const pointColour = pointColours(config);
  drawTraining(canvas, config);
  if (showHeldOut) config.held_y.forEach((value, i) => drawPoint(canvas, config.held_x, i, extent, 4.2, card, pointColour(value), 2));
  const kind = config.classes ? "the classes" : "the numbers";
  canvas.setAttribute("aria-label", `${kind} over the plane, with ${config.y.length} training points and ${config.held_y.length} test points`);
}

const extentOf = ({ reach }) => [-reach, reach, -reach, reach];

function pointColours(config, page = rgb(colour("--card"))) {
  return (value) => (config.classes ? classColour(value) : `rgb(${signedColour(value, page)})`);
}

/** The points of the training, each with a ring of the text's colour, because the ground may have their own. */
function drawTraining(canvas, config) {
  const pointColour = pointColours(config), ink = colour("--ink");
  config.y.forEach((value, i) => drawPoint(canvas, config.x, i, extentOf(config), 4.2, pointColour(value), ink, 0.7));
}

/** The picture of a unit, [hidden layer, number]: bytes, 128 is 0. */
export function unitPicture(frame, [layer, j]) {
  const pictures = frame.units[layer], [, rows, wide] = pictures.shape;
  return { bytes: pictures.subarray(j * rows * wide, (j + 1) * rows * wide), rows, wide };
}

/** Draw the picture of a unit: bytes over the plane or of an image, or bars. */
export function drawUnitPicture(pen, config, { bytes, rows, wide }, left, top, side) {
  if (rows === 1) {
    drawBars(pen, config, bytes, left, top, side);
    return;
  }
  const { byteColours } = pixels(), isFromBelow = config.picture === "plane"; // the rows of an image begin above
  pen.imageSmoothingEnabled = isFromBelow;
  drawPixels(pen, (k) => byteColours[bytes[k]], rows, wide, isFromBelow, left, top, side, side);
}

/** A bar for each class, or part of the points: up from the middle above 0, down below. */
function drawBars(pen, config, bytes, left, top, side) {
  const wide = side / bytes.length;
  bytes.forEach((byte, k) => {
    const value = (byte - 128) / 127;
    pen.fillStyle = config.classes ? classColour(k) : colour("--strong");
    pen.fillRect(left + k * wide + 0.5, top + side / 2 - Math.max(0, value) * (side / 2), wide - 1, (Math.abs(value) * side) / 2);
  });
}

/** Draw on `canvas` one unit, [hidden layer, number], large, with the points if it is over the plane. */
export function drawUnit(canvas, config, frame, place) {
  drawUnitPicture(fillCanvas(canvas, "--track"), config, unitPicture(frame, place), 0, 0, canvas.width);
  if (config.picture === "plane") drawTraining(canvas, config);
}

/** Draw a small picture of a data set: points of the plane, an image or a word. */
export function drawDataset(canvas, data) {
  const pen = fillCanvas(canvas, "--track"), { width } = canvas, ground = colour("--track"), page = rgb(ground);
  if (data?.image) {
    const { image } = data, side = Math.sqrt(image.length);
    pen.imageSmoothingEnabled = false;
    drawPixels(pen, (k) => asPixel(mix(page, rgb(colour("--ink")), image[k])), side, side, false, 0, 0, width, width);
  } else if (data?.word) {
    pen.fillStyle = colour("--ink");
    pen.font = "600 34px system-ui, sans-serif";
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText(data.word, width / 2, width / 2);
  } else if (data) {
    const fill = pointColours(data, page);
    data.y.forEach((value, i) => drawPoint(canvas, data.x, i, [-1.25, 1.25, -1.25, 1.25], 3.6, fill(value), ground, 0.5));
  } else {
    pen.fillStyle = colour("--soft");
    for (let i = 0; i < 9; i++) pen.fillRect(14 + 18 * (i % 3), 14 + 18 * Math.floor(i / 3), 15, 15);
  }
}

function argmax(output, row, count) {
  let best = 0;
  for (let c = 1; c < count; c++) if (output[row * count + c] > output[row * count + best]) best = c;
  return best;
}

function drawConfusion(canvas, mistakes, config, { output }) {
  const count = config.outputs, counts = Array.from({ length: count }, () => new Array(count).fill(0)), wrong = [];
  config.held_y.forEach((truth, i) => {
    const predicted = argmax(output, i, count);
    counts[truth][predicted]++;
    if (predicted !== truth) wrong.push([i, truth, predicted]);
  });
  const pen = fillCanvas(canvas, "--card"), page = rgb(colour("--card")), left = 70, size = (canvas.width - left) / count;
  pen.textBaseline = "middle";
  counts.forEach((row, truth) => {
    const all = row.reduce((a, b) => a + b, 0) || 1;
    row.forEach((n, predicted) => {
      const share = n / all, y = truth * size;
      pen.fillStyle = `rgb(${mix(page, predicted === truth ? BLUE : ORANGE, n ? 0.12 + 0.75 * share : 0.03)})`;
      pen.fillRect(left + predicted * size + 1, y + 1, size - 2, size - 2);
      if (n === 0) return;
      pen.fillStyle = share > 0.5 && predicted === truth ? "#fff" : colour("--ink");
      pen.font = `${Math.min(15, size / 2.2)}px system-ui, sans-serif`;
      pen.textAlign = "center";
      pen.fillText(n, left + (predicted + 0.5) * size, y + size / 2);
    });
    pen.fillStyle = colour("--soft");
    pen.font = "13px system-ui, sans-serif";
    pen.textAlign = "right";
    pen.fillText(config.labels[truth].slice(0, 9), left - 8, (truth + 0.5) * size, left - 10);
    pen.textAlign = "center";
    pen.fillText(config.labels[truth].slice(0, 9), left + (truth + 0.5) * size, canvas.height - left / 2, size);
  });
  const words = `A row for each true class, a column for each predicted class: ${wrong.length} of ${config.held_y.length} test points are wrong`;
  canvas.setAttribute("aria-label", words);
  canvas.dataset.wrong = wrong.length;
  if (config.picture === "image") showMistakes(mistakes, config, wrong);
}

let lastDrawn = 0;
function showMistakes(host, config, wrong) {
  const now = performance.now();
  if (now - lastDrawn < REDRAW_INTERVAL && host.dataset.wrong) return;
  lastDrawn = now;
  host.dataset.wrong = wrong.length;
  const side = Math.sqrt(config.inputs), images = Uint8Array.from(config.held_x, (v) => Math.max(0, Math.min(255, 255 * v)));
  images.shape = [config.held_y.length, side, side, 1];
  host.replaceChildren(...wrong.slice(0, MAX_MISTAKES).map(([i, truth, predicted]) =>
    imageFigure(images, i, `${truth} → ${predicted}`, `a ${truth}, predicted as ${predicted}`)));
}

function drawScatter(canvas, config, { output }) {
  const pen = fillCanvas(canvas, "--card"), truth = config.held_y, margin = 34, size = canvas.width - 2 * margin;
  const all = [...truth, ...output].filter(Number.isFinite);
  const low = Math.min(...all), high = Math.max(...all, low + 1e-6);
  const place = (value) => ((value - low) / (high - low)) * size;
  pen.strokeStyle = colour("--line");
  pen.strokeRect(margin, margin, size, size);
  strokeLine(pen, margin, margin + size, margin + size, margin);
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
  canvas.setAttribute("aria-label", `predicted over true numbers of ${truth.length} test points; on the line, both are equal`);
}
