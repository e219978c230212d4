// Pictures of numbers: the plane, images, histograms.

import { colour } from "./charts.js";
import { clearCanvas, make } from "./page.js";

// M. Okabe and K. Ito, "Color Universal Design", 2008; the order is that of caffelite's figures.
export const CLASSES = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#888888"];

export const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
export const mix = (a, b, share) => a.map((value, i) => Math.round(value + share * (b[i] - value)));

export const BLUE = rgb(CLASSES[0]);
export const ORANGE = rgb(CLASSES[1]);

/** The colour of a number of −1 … 1: blue, the ground, orange. */
export const signedColour = (value, ground) => mix(ground, value < 0 ? BLUE : ORANGE, Math.min(1, Math.abs(value)));

/** The colour of a class. */
export const classColour = (c) => CLASSES[c % CLASSES.length];

/** A colour as a number, as `drawPixels` takes it. (Browsers' machines are little-endian.) */
export const asPixel = ([r, g, b]) => (255 << 24) | (b << 16) | (g << 8) | r;

/** Fill a canvas with the colour of a CSS variable. Return its pen. */
export function fillCanvas(canvas, name) {
  const pen = canvas.getContext("2d");
  pen.fillStyle = colour(name);
  pen.fillRect(0, 0, canvas.width, canvas.height);
  return pen;
}

/** Draw a picture of so many rows of pixels, the first one below or above, over a part of a canvas. */
export function drawPixels(pen, pixelAt, rows, wide, isFromBelow, left, top, width, height) {
  const small = new OffscreenCanvas(wide, rows), brush = small.getContext("2d"), image = brush.createImageData(wide, rows);
  const into = new Int32Array(image.data.buffer);
  for (let row = 0, k = 0; row < rows; row++) {
    let at = (isFromBelow ? rows - 1 - row : row) * wide;
    for (let column = 0; column < wide; column++) into[at++] = pixelAt(k++);
  }
  brush.putImageData(image, 0, 0);
  pen.drawImage(small, left, top, width, height);
}

/** Draw the point i of points (n, 2) in the plane of this extent: a disc, and a line around it. */
export function drawPoint(canvas, points, i, [left, right, bottom, top], radius, fill, line, lineWidth) {
  const pen = canvas.getContext("2d");
  const across = ((points[2 * i] - left) / (right - left)) * canvas.width;
  const down = (1 - (points[2 * i + 1] - bottom) / (top - bottom)) * canvas.height;
  pen.beginPath();
  pen.arc(across, down, radius, 0, 2 * Math.PI);
  Object.assign(pen, { fillStyle: fill, strokeStyle: line, lineWidth });
  pen.fill();
  pen.stroke();
}

/** Draw regions or values over the plane, and the points. */
export function drawPlane(canvas, { extent, points, truth, classes, labels, sure, wrong, values }) {
  const pen = canvas.getContext("2d"), ground = rgb(colour("--card"));
  const [rows, columns] = (labels ?? values).shape;
  const low = truth.reduce((a, b) => Math.min(a, b)), high = truth.reduce((a, b) => Math.max(a, b));
  const numberColour = (value) => {
    const share = (2 * (value - low)) / (high - low || 1) - 1; // −1 at the lowest, 1 at the highest
    return signedColour(0.85 * Math.max(-1, Math.min(1, share)), ground);
  };
  const chance = 1 / (classes ?? 1);
  const regionColour = (k) => mix(ground, rgb(classColour(labels[k])), 0.06 + (0.44 * (sure[k] / 255 - chance)) / (1 - chance));
  pen.imageSmoothingEnabled = true;
  const pixelAt = (k) => asPixel(labels ? regionColour(k) : numberColour(values[k]));
  drawPixels(pen, pixelAt, rows, columns, true, 0, 0, canvas.width, canvas.height);
  const size = canvas.width / 720, card = colour("--card"), ink = colour("--ink");
  truth.forEach((value, i) => {
    const fill = labels ? classColour(value) : `rgb(${numberColour(value)})`;
    const [radius, line, lineWidth] = wrong?.[i] === 1 ? [8, ink, 3.5] : [6.5, card, 1.5];
    drawPoint(canvas, points, i, extent, radius * size, fill, line, lineWidth * size);
  });
}

/** A figure of image number i of many, (n, height, width, channels), with words below it. */
export function imageFigure(images, i, words, label) {
  const [, height, width, channels] = images.shape, first = i * height * width;
  const pixelAt = (p) => asPixel([0, 1, 2].map((c) => images[(first + p) * channels + Math.min(c, channels - 1)]));
  return makeFigure(pixelAt, height, width, words, label);
}

/** A figure of filter number i: 0 is grey; colours if it has three channels, otherwise orange above 0, violet below. */
export function filterFigure(filters, i) {
  const [, height, width, channels] = filters.shape, size = height * width;
  const own = filters.subarray(i * size * channels, (i + 1) * size * channels);
  const largest = own.reduce((a, b) => Math.max(a, Math.abs(b)), 0) || 1;
  const pixelAt = (p) => {
    if (channels === 3) return asPixel([0, 1, 2].map((c) => Math.round(127.5 + (127.5 * own[3 * p + c]) / largest)));
    const value = own[p * channels] / largest;
    return asPixel(mix([119, 119, 119], value < 0 ? [45, 0, 96] : [255, 207, 122], Math.abs(value)));
  };
  return makeFigure(pixelAt, height, width, "", `filter ${i + 1}, up to ±${largest.toPrecision(2)}`);
}

function makeFigure(pixelAt, height, width, words, label) {
  const canvas = make("canvas", { width, height, role: "img", "aria-label": label });
  drawPixels(canvas.getContext("2d"), pixelAt, height, width, false, 0, 0, width, height);
  return make("figure", {}, canvas, ...(words ? [make("figcaption", {}, words)] : []));
}

/** A canvas with the bars of a histogram. */
export function histogram(counts, label) {
  const canvas = make("canvas", { role: "img", "aria-label": label }), wide = 120, tall = 24;
  const pen = clearCanvas(canvas, wide, tall), largest = Math.log1p(counts.reduce((a, b) => Math.max(a, b), 1));
  pen.fillStyle = colour("--strong");
  const width = wide / counts.length;
  counts.forEach((count, i) => {
    const height = (Math.log1p(count) / largest) * tall;
    pen.fillRect(i * width, tall - height, Math.max(1, width - 1), height);
  });
  return canvas;
}
