// Panels with pictures of the model: the plane, classes, filters, texts, attention.

import { colour, formatCount } from "./charts.js";
import { drawMatrix } from "./matrix.js";
import { $, make } from "./page.js";
import { asPixel, drawPixels, drawPlane, filterFigure, imageFigure, mix, rgb } from "./pictures.js";

const lastDrawn = new Map();

/** Return whether a part has changed since it was drawn last. */
export function isNew(kind, part) {
  const known = lastDrawn.get(kind);
  lastDrawn.set(kind, part);
  return known !== part;
}

/** Draw a part again, or all parts, even if nothing has changed. */
export const forgetDrawn = (kind) => (kind ? lastDrawn.delete(kind) : lastDrawn.clear());

/** Show or hide a panel. Return the part if it has to be drawn. */
export function panel(id, part) {
  $(id).hidden = !part;
  if (!part || !isNew(id, part)) return null;
  let failed = $(id).querySelector(".failed");
  if (part.error && !failed) $(id).append((failed = make("p", { className: "failed soft small" })));
  if (failed) failed.textContent = part.error ? `It cannot be drawn: ${part.error}` : "";
  return part.error ? null : part;
}

export function drawRegions({ regions }) {
  const part = panel("regions", regions);
  if (!part) return;
  drawPlane($("plane"), part);
  const rows = `${formatCount(part.truth.length)} ${part.held_out ? "held-out" : "training"} points`;
  const right = part.right === undefined ? "" : `, ${(100 * part.right).toFixed(1)} % of them right. A ring marks the others`;
  $("regions-title").textContent = part.labels ? "Decision regions" : "Predictions over the plane";
  $("regions-text").textContent = `${rows}${right}.`;
  $("plane").setAttribute("aria-label", `${$("regions-title").textContent}: ${$("regions-text").textContent}`);
  $("plane").dataset.right = part.right ?? "";
  $("plane").dataset.drawn = Number($("plane").dataset.drawn ?? 0) + 1;
}

export function drawMistakes({ mistakes }) {
  const part = panel("mistakes", mistakes);
  if (!part) return;
  const rows = `${part.held_out ? "held-out" : "training"} ${part.images ? "images" : "examples"}`;
  $("mistakes-text").textContent = `${part.wrong} of ${part.of} ${rows} are wrong.`;
  $("mistakes").dataset.wrong = part.wrong;
  $("confusion").hidden = !part.counts;
  if (part.counts) drawConfusion(part.counts);
  const figures = [...(part.truth ?? [])].map((truth, i) => {
    const words = `${truth} → ${part.taken_for[i]}`;
    return imageFigure(part.images, i, words, `${truth}, predicted ${part.taken_for[i]}, ${Math.round(100 * part.sure[i])} % sure`);
  });
  $("mistakes").querySelector(".pictures").replaceChildren(...figures);
  $("mistakes-order").textContent = figures.length ? "Most confident mistakes first (true → predicted)." : "";
}

function drawConfusion(counts) {
  const [classes] = counts.shape, names = [...Array(classes).keys()].map(String);
  const totals = names.map((_, i) => counts.subarray(i * classes, (i + 1) * classes).reduce((a, b) => a + b, 0));
  const at = (i, j) => counts[i * classes + j];
  const accuracies = names.map((name, i) => [name, totals[i] ? at(i, i) / totals[i] : null]).filter(([, share]) => share !== null);
  const percent = (share) => `${(100 * share).toFixed(0)} %`;
  const worst = accuracies.sort((a, b) => a[1] - b[1]).filter(([, share]) => share < 1).slice(0, 3);
  const canvas = $("confusion").querySelector("canvas"), width = Math.min($("mistakes").clientWidth - 32, 24 + 40 * classes);
  drawMatrix(canvas, width, counts.shape, {
    share: (i, j) => (at(i, j) ? 0.2 + (0.75 * at(i, j)) / totals[i] : 0), isWrong: (i, j) => i !== j, text: (i, j) => (at(i, j) ? String(at(i, j)) : ""),
    rowNames: names, columnNames: names,
  });
  const words = worst.length ? ` Lowest accuracy: ${worst.map(([name, share]) => `class ${name} ${percent(share)}`).join(", ")}.` : "";
  $("confusion-text").textContent = `Rows are true classes, columns are predicted ones.${words}`;
  canvas.setAttribute("aria-label", `Confusion matrix. ${accuracies.map(([name, share]) => `class ${name}: ${percent(share)} right`).join(", ")}`);
  $("confusion").dataset.counts = JSON.stringify([...counts]);
}

export function drawFilters({ filters }) {
  const part = panel("filters", filters);
  if (!part) return;
  const figures = [...Array(part.filters.shape[0]).keys()].map((i) => filterFigure(part.filters, i));
  $("filters").querySelector(".pictures").replaceChildren(...figures);
  $("filters-text").textContent = `${part.of}. Each filter has a scale of its own.`;
}

export function drawText({ text: part }) {
  part = panel("text", part);
  if (!part) return;
  $("given").textContent = part.given;
  $("given").hidden = !part.given;
  $("written").replaceChildren(...part.texts.toReversed().map(({ written, first_step, last_step }) =>
    make("li", {}, make("span", { className: "steps" }, `step ${formatCount(first_step)} – ${formatCount(last_step)}`), make("p", { className: "mono" }, written))));
}

let shownHead = [0, 0]; // of the large map of attention: layer and head

export function drawAttention({ attention }) {
  const part = panel("attention", attention);
  if (!part) return;
  const [ground, blue] = ["--card", "--blue"].map((name) => rgb(colour(name))), heads = (i) => part.maps[i].shape[0];
  const mapAt = (i, head) => {
    const [, length, keys] = part.maps[i].shape;
    const values = part.maps[i].subarray(head * length * keys, (head + 1) * length * keys);
    return Object.assign(values, { shape: [length, keys] });
  };
  if (!part.maps[shownHead[0]] || shownHead[1] >= heads(shownHead[0])) shownHead = [0, 0];
  $("heads").replaceChildren(...part.maps.map((_, i) => make("div", { className: "heads" }, ...[...Array(heads(i)).keys()].map((head) => {
    const map = mapAt(i, head), [length, keys] = map.shape, canvas = make("canvas", { width: keys, height: length });
    drawPixels(canvas.getContext("2d"), (k) => asPixel(mix(ground, blue, map[k] / 255)), length, keys, false, 0, 0, keys, length);
    const isShown = i === shownHead[0] && head === shownHead[1];
    const button = make("button", { "aria-label": `layer ${i + 1}, head ${head + 1}`, "aria-pressed": String(isShown) }, canvas);
    button.onclick = () => {
      shownHead = [i, head];
      forgetDrawn("attention");
      drawAttention({ attention: part });
    };
    return button;
  }))));
  const map = mapAt(...shownHead), [length, keys] = map.shape;
  const names = part.tokens?.map((token) => (token === " " ? "␣" : token === "\n" ? "⏎" : token)) ?? [...Array(length).keys()].map(String);
  drawMatrix($("map"), Math.min($("attention").clientWidth - 32, 440), map.shape, {
    share: (i, j) => map[i * keys + j] / 255, rowNames: names, columnNames: names.slice(0, keys), mono: true,
  });
  const head = `layer ${shownHead[0] + 1}, head ${shownHead[1] + 1}`;
  $("attention-text").textContent = `Enlarged: ${head}. Each row is a position in the sequence. The darker a square, the more this position attends to the one of the column.`;
  $("map").setAttribute("aria-label", `attention of ${head}`);
  $("map").dataset.shown = head;
}

export function drawPictures({ pictures }) {
  const part = panel("pictures", pictures);
  if (!part) return;
  $("pictures").querySelector(".pictures").replaceChildren(...part.pictures.map(({ name, step, pixels }) => {
    const images = Object.assign(pixels.subarray(), { shape: [1, ...pixels.shape] });
    return imageFigure(images, 0, `${name}, step ${formatCount(step)}`, name);
  }));
}
