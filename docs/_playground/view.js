// What a frame shows: the outputs of a net and of its units, and the curves. See caffelite/web/playground/view.py.

import { inputsOf } from "./data.js";
import { softmax } from "./network.js";

const GRID = 64, SMALL = 24; // points along a side of the plane, for the output and for each unit
const MAX_POINTS = 1000; // of a curve
const MAX_HELD_OUT = 500; // points whose outputs are shown
export const REACH = 1.25; // how far the plane is shown, in each direction

export const shaped = (array, ...shape) => Object.assign(array, { shape });

/** Points of the plane, row by row from below. */
function grid(n) {
  const side = (i) => -REACH + (2 * REACH * i) / (n - 1);
  return Float64Array.from({ length: 2 * n * n }, (_, k) => side(k & 1 ? Math.floor(k / 2 / n) : (k >> 1) % n));
}

/** Values of units (rows, units) as bytes (units, rows); 128 is 0, and the largest of each unit is at an end. */
export function toBytes(values, units) {
  const rows = values.length / units, bytes = new Uint8Array(values.length);
  for (let j = 0; j < units; j++) {
    let largest = 0;
    for (let i = 0; i < rows; i++) largest = Math.max(largest, Math.abs(values[i * units + j]) || 0);
    const factor = largest > 0 && Number.isFinite(largest) ? 127 / largest : 0;
    for (let i = 0; i < rows; i++) bytes[j * rows + i] = Math.round(128 + (factor * values[i * units + j] || 0));
  }
  return bytes;
}

export class View {
  constructor(training) {
    const { setting } = training;
    this.training = training;
    this.rows = setting.isPlane ? inputsOf(setting, grid(SMALL)) : training.x;
    this.points = setting.isPlane ? inputsOf(setting, grid(GRID)) : training.heldX.subarray(0, MAX_HELD_OUT * setting.inputs);
  }

  /** The outputs, the pictures of the units, weights and biases. */
  snapshot() {
    const { net, setting } = this.training, { outputs, isPlane, inputs } = setting, count = this.points.length / inputs;
    const output = new Float32Array(count * outputs);
    net.forEachPart(this.points, count, (scores, first, n) => {
      const part = output.subarray(first * outputs, (first + n) * outputs);
      part.set(scores.subarray(0, n * outputs));
      if (setting.classes) softmax(part, n, outputs);
    });
    return {
      output: isPlane ? shaped(output, GRID, GRID, outputs) : shaped(output, count, outputs),
      units: this.drawUnits(),
      weights: net.linear.map(({ W, inputs: from, outputs: to }) => shaped(W.w.slice(), from, to)),
      biases: net.linear.map(({ b }) => shaped(b.w.slice(), b.w.length)),
    };
  }

  /** For each hidden layer the pictures of its units: in the plane their outputs, else their means for each class, or weights. */
  drawUnits() {
    const { net, setting, y } = this.training, { isPlane, inputs, layers, classes } = setting, rows = this.rows.length / inputs;
    if (layers.length === 0) return [];
    const values = layers.map((units) => new Float32Array((isPlane ? rows : classes) * units));
    const counts = isPlane ? null : new Array(classes).fill(0);
    if (!isPlane) for (const label of y) counts[label]++;
    net.forEachPart(this.rows, rows, () => {}, (block, h, first, n) => {
      const units = layers[block];
      if (isPlane) values[block].set(h.subarray(0, n * units), first * units);
      else {
        for (let i = 0; i < n; i++) {
          for (let j = 0; j < units; j++) values[block][y[first + i] * units + j] += h[i * units + j] / counts[y[first + i]];
        }
      }
    });
    return values.map((each, block) => {
      const units = layers[block];
      if (isPlane) return shaped(toBytes(each, units), units, SMALL, SMALL);
      if (block > 0) return shaped(toBytes(each, units), units, 1, classes);
      return shaped(toBytes(net.linear[0].W.w, units), units, 8, 8);
    });
  }
}

/** The curves of a history by name: epochs and values, at most MAX_POINTS, with the first and the last. */
export function curves(history) {
  const epochs = history.loss.length, count = Math.min(epochs, MAX_POINTS);
  const places = Array.from({ length: count }, (_, i) => (count > 1 ? Math.floor((i * (epochs - 1)) / (count - 1)) : 0));
  return Object.fromEntries(Object.entries(history).map(([name, values]) => [
    name, { epoch: Int32Array.from(places, (i) => i + 1), value: Float32Array.from(places, (i) => values[i]) },
  ]));
}
