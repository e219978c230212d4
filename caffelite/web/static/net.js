// The drawing of the net: units with their pictures, links with their weights. Layers can be dragged, links clicked.

import { colour } from "./charts.js";
import { clearCanvas, make } from "./page.js";
import { classColour, rgb, signedColour } from "./pictures.js";
import { drawUnitPicture, unitPicture } from "./predictions.js";
import { drawCells } from "./writing.js";

const UNIT = 34, TALL = 44; // pixels of a unit, and of its place, if there are few
const GAP = TALL - UNIT, MIN_UNIT = 14, MAX_HEIGHT = 540; // pixels between two units, of the smallest unit, and of a net of many units
const MAX_INPUTS = 16; // that are drawn one by one
const MIN_GAP = 66; // pixels between two layers
const WIDE = matchMedia("(pointer: coarse)").matches ? 240 : 112; // pixels of a layer, for its buttons to be side by side
const MAX_DISTANCE = 9; // pixels between the pointer and a link

/** Where units are, for a drawing of this width. Many inputs are one box. */
function computeLayout(config, width) {
  const count = Array.isArray(config.inputs) ? config.inputs.length : config.inputs;
  const isText = config.picture === "text", sizes = [count > MAX_INPUTS && !isText ? 1 : count, ...config.setting.layers, config.outputs];
  const tallest = Math.max(...sizes), tall = (i) => Math.min(TALL, MAX_HEIGHT / (isText ? sizes[i] : tallest));
  const height = Math.max(180, ...sizes.map((n, i) => n * tall(i) + 10));
  const across = (i) => 44 + (i * (width - 88)) / (sizes.length - 1);
  const side = (i) => Math.max(MIN_UNIT, tall(i) - GAP), up = (i, j) => height / 2 + (j - (sizes[i] - 1) / 2) * tall(i);
  return { sizes, count, height, width, across, side, up };
}

/** The name of input i, at most as long as a box. */
export function inputName(config, i) {
  if (Array.isArray(config.inputs)) return config.inputs[i];
  return config.picture === "image" ? `pixel ${i + 1}` : ["x₁", "x₂"][i];
}

/** The name of a weight. */
export function weightName(config, layer, i, j) {
  const from = layer === 0 ? inputName(config, i) : `unit ${i + 1} of layer ${layer}`;
  const last = layer === config.setting.layers.length;
  const to = last ? `output ${config.classes ? config.labels[j] : "y"}` : `unit ${j + 1} of layer ${layer + 1}`;
  return `The weight from ${from} to ${to}`;
}

const isDead = (frame, place) => unitPicture(frame, place).bytes.every((byte) => byte === 128);

/** A unit in words. */
export function unitWords(config, frame, layer, j) {
  if (config.picture === "text") return `Unit ${j + 1} of layer ${layer + 1}, after each letter`;
  const bias = frame.biases[layer][j].toFixed(3).replace("-", "−");
  return `Unit ${j + 1} of layer ${layer + 1}, bias ${bias}${isDead(frame, [layer, j]) ? ": dead, its output is 0 everywhere" : ""}`;
}

export class Net {
  /**
   * `change(layers)` is called with other layers, `follow(place)` with a weight, `point(words)` with what is pointed at,
   * and `show(place)` with the hidden unit that is pointed at or tapped, or null.
   */
  constructor(canvas, columns, { change, follow, point, show }) {
    Object.assign(this, { canvas, host: columns, change, follow, point, show, links: [], config: null, layout: null, unit: null });
    canvas.onpointermove = (event) => {
      const place = this.weightAt(event);
      canvas.style.cursor = place ? "pointer" : "";
      const words = this.config.picture === "text" ? "" : " Click or tap to follow it.";
      if (place) point(`${weightName(this.config, ...place)} is ${this.value(place).toFixed(4)}.${words}`);
      if (event.pointerType !== "touch") this.showUnit(this.unitAt(event));
    };
    canvas.onpointerleave = canvas.onblur = ({ pointerType }) => {
      if (pointerType !== "touch") this.showUnit(null);
    };
    let isTouch = false; // a tap on a unit shows it until the next tap
    canvas.onpointerdown = ({ pointerType }) => { isTouch = pointerType === "touch"; };
    canvas.onclick = (event) => {
      const place = this.weightAt(event), unit = isTouch && this.unitAt(event);
      if (isTouch) this.showUnit(unit && String(unit) !== String(this.unit) ? unit : null);
      if (!unit && place && this.config.picture !== "text") follow(place);
    };
    canvas.onkeydown = (event) => this.moveUnit(event);
  }

  /** Have a unit shown large, or none. */
  showUnit(place) {
    if (String(place) === String(this.unit)) return;
    this.unit = place;
    this.show(place);
  }

  /** The arrow keys go from unit to unit, and Escape leaves them. */
  moveUnit(event) {
    const { layers } = this.config.setting, [across, down] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ?? [0, 0];
    if (event.key === "Escape") this.showUnit(null);
    if ((across === 0 && down === 0) || layers.length === 0) return;
    event.preventDefault();
    const [layer, j] = this.unit ?? [0, 0], inside = (i, n) => Math.max(0, Math.min(n - 1, i));
    const next = this.unit ? inside(layer + across, layers.length) : 0;
    this.showUnit([next, inside(this.unit ? j + down : 0, layers[next])]);
  }

  /** The hidden unit under the pointer, or null. */
  unitAt({ offsetX, offsetY }) {
    if (!this.layout) return null;
    const { sizes, across, up, side } = this.layout;
    for (let layer = 1; layer < sizes.length - 1; layer++) for (let j = 0; j < sizes[layer]; j++) {
      if (Math.abs(offsetX - across(layer)) <= side(layer) / 2 && Math.abs(offsetY - up(layer, j)) <= side(layer) / 2) return [layer - 1, j];
    }
    return null;
  }

  /** In pixels: that of the place that there is, or more, and then it scrolls. */
  get width() {
    return Math.max(this.canvas.parentElement.clientWidth, MIN_GAP * (this.config.setting.layers.length + 1) + 88);
  }

  // ---- layers ----

  /** Put buttons above each hidden layer. */
  showLayers(config) {
    this.config = config;
    this.host.style.width = `${this.width}px`;
    const { across, sizes, count } = computeLayout(config, this.width), { layers } = config.setting;
    const isWide = (this.width - 88) / (sizes.length - 1) >= WIDE;
    const parts = layers.map((units, i) => {
      const part = make("div");
      part.style.left = `${across(i + 1)}px`;
      const button = (sign, words, to, isPossible = true) =>
        make("button", { disabled: !isPossible, "aria-label": `${words} layer ${i + 1}`, onclick: () => this.change(to) }, sign);
      part.append(
        this.makeHandle(part, i),
        button("−", "a unit less in", layers.with(i, units - 1), units > 1),
        make("span", {}, units),
        button("+", "a unit more in", layers.with(i, units + 1), units < config.limits.units),
        button("×", "remove", layers.filter((_, k) => k !== i)),
      );
      return part;
    });
    this.host.replaceChildren(...parts);
    this.host.classList.toggle("narrow", !isWide);
    this.host.dataset.sizes = [count, ...sizes.slice(1)].join(" ");
  }

  /** What a layer is moved by: dragged, or with the arrow keys. */
  makeHandle(part, i) {
    const words = `move layer ${i + 1}: drag it, or press the left or right arrow`;
    const handle = make("button", { className: "handle", "aria-label": words }, "⠿");
    const moveLayer = (to) => {
      const layers = [...this.config.setting.layers], [size] = layers.splice(i, 1);
      layers.splice(to, 0, size);
      return layers;
    };
    const lastIndex = () => this.config.setting.layers.length - 1;
    handle.onkeydown = (event) => {
      const to = i + ({ ArrowLeft: -1, ArrowRight: 1 }[event.key] ?? 0);
      if (to === i || to < 0 || to > lastIndex()) return;
      event.preventDefault();
      this.change(moveLayer(to));
      this.host.children[to]?.querySelector(".handle").focus();
    };
    handle.onpointerdown = (event) => {
      handle.setPointerCapture(event.pointerId);
      const start = event.clientX, { across } = computeLayout(this.config, this.width);
      let to = i;
      handle.onpointermove = ({ clientX }) => {
        part.style.transform = `translateX(calc(-50% + ${clientX - start}px))`;
        const at = across(i + 1) + clientX - start;
        to = Array.from({ length: lastIndex() + 1 }, (_, k) => k).reduce((a, b) => (Math.abs(across(b + 1) - at) < Math.abs(across(a + 1) - at) ? b : a));
      };
      handle.onpointerup = () => {
        handle.onpointermove = handle.onpointerup = null;
        part.style.transform = "";
        if (to !== i) this.change(moveLayer(to));
      };
    };
    return handle;
  }

  // ---- the drawing ----

  draw(config, frame) {
    Object.assign(this, { config, frame });
    const { canvas } = this;
    const { sizes, count, height, width, across, up, side } = (this.layout = computeLayout(config, this.width));
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    const pen = clearCanvas(canvas, width, height), page = rgb(colour("--card"));
    this.links = [];
    frame.weights.forEach((weights, layer) => {
      const isSummary = layer === 0 && sizes[0] !== count, [from, to] = isSummary ? [1, weights.shape[1]] : weights.shape;
      const largest = Math.max(1e-9, ...weights.map(Math.abs));
      for (let i = 0; i < from; i++) for (let j = 0; j < to; j++) {
        const value = isSummary ? 0 : weights[i * to + j], share = Math.abs(value) / largest;
        const [x, y, xx, yy] = [across(layer) + side(layer) / 2, up(layer, i), across(layer + 1) - side(layer + 1) / 2, up(layer + 1, j)];
        pen.strokeStyle = isSummary ? colour("--line") : `rgb(${signedColour(Math.sign(value) * (0.15 + 0.85 * share), page)})`;
        pen.lineWidth = isSummary ? 1.5 : 0.4 + 3.6 * share;
        drawLink(pen, x, y, xx, yy);
        if (!isSummary) this.links.push({ place: [layer, i, j], x, y, xx, yy });
      }
    });
    const followed = this.links.find(({ place }) => String(place) === String(frame.followed?.place));
    if (followed) {
      Object.assign(pen, { strokeStyle: colour("--ink"), lineWidth: 2 });
      pen.setLineDash([6, 4]);
      drawLink(pen, followed.x, followed.y, followed.xx, followed.yy);
      pen.setLineDash([]);
    }
    sizes.forEach((n, layer) => {
      for (let j = 0; j < n; j++) this.drawUnit(pen, layer, j, across(layer), up(layer, j));
    });
    canvas.setAttribute("aria-label", `a net of ${[count, ...sizes.slice(1)].join(", ")} units`);
  }

  drawUnit(pen, layer, j, x, y) {
    const { config, frame } = this, { sizes } = this.layout, side = this.layout.side(layer), last = sizes.length - 1, [left, top] = [x - side / 2, y - side / 2];
    pen.fillStyle = colour("--track");
    pen.fillRect(left, top, side, side);
    if (config.picture === "text") {
      this.drawLetter(pen, layer, j, left, top, side);
    } else if (layer > 0 && layer < last) {
      drawUnitPicture(pen, config, unitPicture(frame, [layer - 1, j]), left, top, side);
    } else {
      const isClass = layer === last && config.classes;
      if (isClass) {
        pen.fillStyle = classColour(j);
        pen.fillRect(left, top, side, side);
      }
      pen.fillStyle = isClass ? "#fff" : colour("--ink");
      pen.font = "600 13px system-ui, sans-serif";
      pen.textAlign = "center";
      pen.textBaseline = "middle";
      const isSummary = layer === 0 && sizes[0] !== this.layout.count;
      pen.fillText(isSummary ? this.layout.count : layer === 0 ? inputName(config, j) : config.classes ? config.labels[j] : "y", x, y, side - 2);
    }
    const isHidden = layer > 0 && layer < last, isShown = isHidden && String(this.unit) === String([layer - 1, j]);
    pen.strokeStyle = colour(isShown ? "--focus" : "--line");
    pen.lineWidth = isShown ? 3 : 1;
    pen.strokeRect(left, top, side, side);
    if (!isHidden || !isDead(frame, [layer - 1, j])) return;
    pen.strokeStyle = colour("--soft");
    pen.beginPath();
    pen.moveTo(left, top);
    pen.lineTo(left + side, top + side);
    pen.moveTo(left + side, top);
    pen.lineTo(left, top + side);
    pen.stroke();
  }

  /** A unit of a net that reads names: a letter of its input, its outputs after each letter, or a letter and its probability. */
  drawLetter(pen, layer, j, left, top, side) {
    const { config, frame } = this, { labels, outputs } = config, last = this.layout.sizes.length - 1;
    if (layer > 0 && layer < last) {
      drawCells(pen, config, frame, [layer - 1, j], left, top, side, side);
      if (layer > 1 && j === 0) drawText(pen, "↻", left + side + 9, top + 7, "--soft", 15);
      return;
    }
    const isRead = layer === 0 && j === labels.indexOf(frame.text.at(-1) ?? labels[0]);
    const share = layer === last ? frame.output[frame.output.length - outputs + j] : Number(isRead);
    pen.fillStyle = colour("--blue");
    pen.globalAlpha = 0.55;
    pen.fillRect(left, top + side * (1 - share), side, side * share);
    pen.globalAlpha = 1;
    drawText(pen, labels[j], left + side / 2, top + side / 2, "--ink", 12);
  }

  /** The place of the weight under the pointer, or null: a link, or a pixel of a unit that shows its weights. */
  weightAt({ offsetX, offsetY }) {
    if (!this.layout) return null;
    const { config, layout } = this;
    if (config.picture === "image" && layout.sizes.length > 2) {
      const size = layout.side(1), side = Math.sqrt(layout.count), x = (offsetX - layout.across(1) + size / 2) / size;
      for (let j = 0; j < layout.sizes[1]; j++) {
        const y = (offsetY - layout.up(1, j) + size / 2) / size;
        if (x >= 0 && x < 1 && y >= 0 && y < 1) return [0, Math.floor(y * side) * side + Math.floor(x * side), j];
      }
    }
    let nearest = null, distance = MAX_DISTANCE;
    for (const link of this.links) {
      const t = (offsetX - link.x) / (link.xx - link.x);
      if (t < 0 || t > 1) continue;
      const u = 1 - t, away = Math.abs(u ** 3 * link.y + 3 * u * u * t * link.y + 3 * u * t * t * link.yy + t ** 3 * link.yy - offsetY);
      if (away < distance) [nearest, distance] = [link.place, away];
    }
    return nearest;
  }

  value([layer, i, j]) {
    const weights = this.frame.weights[layer];
    return weights[i * weights.shape[1] + j];
  }
}

function drawText(pen, text, x, y, ink, size) {
  Object.assign(pen, { fillStyle: colour(ink), font: `600 ${size}px system-ui, sans-serif`, textAlign: "center", textBaseline: "middle" });
  pen.fillText(text, x, y);
}

function drawLink(pen, x, y, xx, yy) {
  pen.beginPath();
  pen.moveTo(x, y);
  pen.bezierCurveTo((x + xx) / 2, y, (x + xx) / 2, yy, xx, yy);
  pen.stroke();
}
