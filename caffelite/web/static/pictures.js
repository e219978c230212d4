// Pictures of numbers: the plane, images, histograms.

import { colour } from "./charts.js";

// M. Okabe and K. Ito, "Color Universal Design", 2008; the order is that of caffelite's figures.
export const CLASSES = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#888888"];

export const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
export const mix = (a, b, share) => a.map((value, i) => Math.round(value + share * (b[i] - value)));

/** The colour of a number from `low` to `high`: blue below the middle, orange above it. */
function numberColour(value, low, high, ground) {
  const share = Math.max(-1, Math.min(1, (2 * (value - low)) / (high - low || 1) - 1));
  return mix(ground, rgb(CLASSES[share < 0 ? 0 : 1]), 0.85 * Math.abs(share));
}

/** Draw regions or values over the plane, and the points. */
export function drawPlane(canvas, { extent, points, truth, classes, labels, sure, wrong, values }) {
  const pen = canvas.getContext("2d"), ground = rgb(colour("--card"));
  const [rows, columns] = (labels ?? values).shape;
  const image = new ImageData(columns, rows);
  const low = truth.reduce((a, b) => Math.min(a, b)), high = truth.reduce((a, b) => Math.max(a, b));
  for (let k = 0; k < rows * columns; k++) {
    const place = 4 * ((rows - 1 - Math.floor(k / columns)) * columns + (k % columns));
    const chance = 1 / (classes ?? 1);
    const paint = labels
      ? mix(ground, rgb(CLASSES[labels[k] % 8]), 0.06 + (0.44 * (sure[k] / 255 - chance)) / (1 - chance))
      : numberColour(values[k], low, high, ground);
    image.data.set([...paint, 255], place);
  }
  const small = new OffscreenCanvas(columns, rows);
  small.getContext("2d").putImageData(image, 0, 0);
  pen.imageSmoothingEnabled = true;
  pen.drawImage(small, 0, 0, canvas.width, canvas.height);
  const [left, right, bottom, top] = extent, size = canvas.width / 720;
  for (let i = 0; i < truth.length; i++) {
    const isWrong = wrong?.[i] === 1;
    pen.beginPath();
    pen.arc(
      ((points[2 * i] - left) / (right - left)) * canvas.width,
      (1 - (points[2 * i + 1] - bottom) / (top - bottom)) * canvas.height,
      (isWrong ? 8 : 6.5) * size, 0, 2 * Math.PI,
    );
    pen.fillStyle = labels ? CLASSES[truth[i] % 8] : `rgb(${numberColour(truth[i], low, high, ground)})`;
    pen.fill();
    pen.lineWidth = (isWrong ? 3.5 : 1.5) * size;
    pen.strokeStyle = colour(isWrong ? "--ink" : "--card");
    pen.stroke();
  }
}

/** A figure of image number i of many, (n, height, width, channels), with words below it. */
export function imageFigure(images, i, words, label) {
  const [, height, width, channels] = images.shape, size = height * width;
  const canvas = document.createElement("canvas"), image = new ImageData(width, height);
  [canvas.width, canvas.height] = [width, height];
  for (let p = 0; p < size; p++) {
    for (let c = 0; c < 3; c++) image.data[4 * p + c] = images[(i * size + p) * channels + Math.min(c, channels - 1)];
    image.data[4 * p + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return figure(canvas, words, label);
}

/** A figure of filter number i: 0 is grey; colours if it has three channels, otherwise orange above 0, violet below. */
export function filterFigure(filters, i) {
  const [, height, width, channels] = filters.shape, size = height * width;
  const own = filters.subarray(i * size * channels, (i + 1) * size * channels);
  const largest = own.reduce((a, b) => Math.max(a, Math.abs(b)), 0) || 1;
  const canvas = document.createElement("canvas"), image = new ImageData(width, height);
  [canvas.width, canvas.height] = [width, height];
  for (let p = 0; p < size; p++) {
    const value = own[p * channels] / largest;
    const paint = channels === 3
      ? [0, 1, 2].map((c) => 127.5 + (127.5 * own[3 * p + c]) / largest)
      : mix([119, 119, 119], value < 0 ? [45, 0, 96] : [255, 207, 122], Math.abs(value));
    image.data.set([...paint, 255], 4 * p);
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return figure(canvas, "", `filter ${i + 1}, up to ±${largest.toPrecision(2)}`);
}

function figure(canvas, words, label) {
  const element = document.createElement("figure");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  element.append(canvas);
  if (words) element.append(Object.assign(document.createElement("figcaption"), { textContent: words }));
  return element;
}

/** A canvas with the bars of a histogram. */
export function histogram(counts, label) {
  const canvas = document.createElement("canvas"), ratio = devicePixelRatio || 1;
  [canvas.width, canvas.height] = [120 * ratio, 24 * ratio];
  const pen = canvas.getContext("2d"), largest = Math.log1p(counts.reduce((a, b) => Math.max(a, b), 1));
  pen.fillStyle = colour("--strong");
  const width = canvas.width / counts.length;
  counts.forEach((count, i) => {
    const height = (Math.log1p(count) / largest) * canvas.height;
    pen.fillRect(i * width, canvas.height - height, Math.max(1, width - ratio), height);
  });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  return canvas;
}
