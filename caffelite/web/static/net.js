// The drawing of the net: units with their pictures, links with their weights. Layers can be dragged, links clicked.

import { colour } from "./charts.js";
import { clearCanvas, make } from "./page.js";
import { classColour, drawPixels, rgb, signedColour } from "./pictures.js";
import { pixels } from "./predictions.js";

const UNIT = 34, TALL = 44; // pixels of a unit, and of its place
const MAX_INPUTS = 16; // that are drawn one by one
const MIN_GAP = 66; // pixels between two layers
const WIDE = 112; // pixels of a layer, for its buttons to be side by side
const MAX_DISTANCE = 9; // pixels between the pointer and a link

/** Where units are, for a drawing of this width. Many inputs are one box. */
function computeLayout(config, width) {
  const count = Array.isArray(config.inputs) ? config.inputs.length : config.inputs;
  const sizes = [count > MAX_INPUTS ? 1 : count, ...config.setting.layers, config.outputs];
  const tallest = Math.max(...sizes), height = Math.max(180, tallest * TALL + 10);
  const across = (i) => 44 + (i * (width - 88)) / (sizes.length - 1);
  return { sizes, count, height, width, across, up: (i, j) => height / 2 + (j - (sizes[i] - 1) / 2) * TALL };
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

export class Net {
  /** `change(layers)` is called with other layers, `follow(place)` with a weight, `point(words)` with what is pointed at. */
  constructor(canvas, columns, { change, follow, point }) {
    Object.assign(this, { canvas, host: columns, change, follow, point, links: [], config: null, layout: null });
    canvas.onpointermove = (event) => {
      const place = this.weightAt(event);
      canvas.style.cursor = place ? "pointer" : "";
      if (place) point(`${weightName(this.config, ...place)} is ${this.value(place).toFixed(4)}. Click to follow it.`);
    };
    canvas.onclick = (event) => {
      const place = this.weightAt(event);
      if (place) follow(place);
    };
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
    const { sizes, count, height, width, across, up } = (this.layout = computeLayout(config, this.width));
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    const pen = clearCanvas(canvas, width, height), page = rgb(colour("--card"));
    this.links = [];
    frame.weights.forEach((weights, layer) => {
      const isSummary = layer === 0 && sizes[0] !== count, [from, to] = isSummary ? [1, weights.shape[1]] : weights.shape;
      const largest = Math.max(1e-9, ...weights.map(Math.abs));
      for (let i = 0; i < from; i++) for (let j = 0; j < to; j++) {
        const value = isSummary ? 0 : weights[i * to + j], share = Math.abs(value) / largest;
        const [x, y, xx, yy] = [across(layer) + UNIT / 2, up(layer, i), across(layer + 1) - UNIT / 2, up(layer + 1, j)];
        pen.strokeStyle = isSummary ? colour("--line") : `rgb(${signedColour(Math.sign(value) * (0.15 + 0.85 * share), page)})`;
        pen.lineWidth = isSummary ? 1.5 : 0.4 + 3.6 * share;
        pen.beginPath();
        pen.moveTo(x, y);
        pen.bezierCurveTo((x + xx) / 2, y, (x + xx) / 2, yy, xx, yy);
        pen.stroke();
        if (!isSummary) this.links.push({ place: [layer, i, j], x, y, xx, yy });
      }
    });
    sizes.forEach((n, layer) => {
      for (let j = 0; j < n; j++) this.drawUnit(pen, layer, j, across(layer), up(layer, j));
    });
    canvas.setAttribute("aria-label", `a net of ${[count, ...sizes.slice(1)].join(", ")} units`);
  }

  drawUnit(pen, layer, j, x, y) {
    const { config, frame } = this, last = this.layout.sizes.length - 1, [left, top] = [x - UNIT / 2, y - UNIT / 2];
    pen.fillStyle = colour("--track");
    pen.fillRect(left, top, UNIT, UNIT);
    if (layer > 0 && layer < last) {
      const pictures = frame.units[layer - 1], [, rows, wide] = pictures.shape;
      const own = pictures.subarray(j * rows * wide, (j + 1) * rows * wide);
      if (rows === 1) drawBars(pen, own, left, top, config);
      else { // bytes, 128 is 0; the rows of the plane begin below, those of an image above
        const { byteColours } = pixels(), isFromBelow = config.picture === "plane";
        pen.imageSmoothingEnabled = isFromBelow;
        drawPixels(pen, (k) => byteColours[own[k]], rows, wide, isFromBelow, left, top, UNIT, UNIT);
      }
    } else {
      const isClass = layer === last && config.classes;
      if (isClass) {
        pen.fillStyle = classColour(j);
        pen.fillRect(left, top, UNIT, UNIT);
      }
      pen.fillStyle = isClass ? "#fff" : colour("--ink");
      pen.font = "600 13px system-ui, sans-serif";
      pen.textAlign = "center";
      pen.textBaseline = "middle";
      const isSummary = layer === 0 && this.layout.sizes[0] !== this.layout.count;
      pen.fillText(isSummary ? this.layout.count : layer === 0 ? inputName(config, j) : config.classes ? config.labels[j] : "y", x, y, UNIT - 2);
    }
    pen.strokeStyle = colour("--line");
    pen.lineWidth = 1;
    pen.strokeRect(left, top, UNIT, UNIT);
  }

  /** The place of the weight under the pointer, or null: a link, or a pixel of a unit that shows its weights. */
  weightAt({ offsetX, offsetY }) {
    if (!this.layout) return null;
    const { config, layout } = this;
    if (config.picture === "image" && layout.sizes.length > 2) {
      const side = Math.sqrt(layout.count), x = (offsetX - layout.across(1) + UNIT / 2) / UNIT;
      for (let j = 0; j < layout.sizes[1]; j++) {
        const y = (offsetY - layout.up(1, j) + UNIT / 2) / UNIT;
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

/** A bar for each class, or part of the points: up from the middle above 0, down below. */
function drawBars(pen, values, left, top, config) {
  const wide = UNIT / values.length;
  values.forEach((byte, k) => {
    const value = (byte - 128) / 127;
    pen.fillStyle = config.classes ? classColour(k) : colour("--strong");
    pen.fillRect(left + k * wide + 0.5, top + UNIT / 2 - Math.max(0, value) * (UNIT / 2), wide - 1, (Math.abs(value) * UNIT) / 2);
  });
}
