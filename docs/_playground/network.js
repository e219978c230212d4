// A net: its layers in order, and the losses.

import { Activation, BatchNorm, Dropout, LayerNorm, Linear } from "./layers.js";
import { Embedding, RNN } from "./recurrent.js";

export class Network {
  /**
   * Make the net of a setting for at most `rows` rows at a time. `ArrayType` is Float32Array, or Float64Array for a
   * check. All parameters are in one array `w`, and their gradients in `g`, in caffelite's order.
   */
  constructor(setting, ArrayType, rows) {
    const parts = [], claim = (size) => parts[parts.push({ size }) - 1];
    const { isText, length } = setting, memory = { claim, array: (size) => new ArrayType(size), rows: rows * length };
    const norms = { BatchNorm, LayerNorm };
    this.layers = [];
    this.blocks = []; // for each hidden layer, the place of its last function
    let size = setting.inputs;
    for (const units of setting.layers) {
      const Kind = isText ? (this.layers.length > 0 ? RNN : Embedding) : Linear;
      this.layers.push(new Kind(size, units, memory, length));
      if (setting.norm !== "none") this.layers.push(new norms[setting.norm](units, memory));
      if (setting.activation !== "none" && !isText) this.layers.push(new Activation(setting.activation, units, memory));
      if (setting.dropout > 0) this.layers.push(new Dropout(setting.dropout, units, memory));
      this.blocks.push(this.layers.length - 1);
      size = units;
    }
    this.layers.push(new (isText && size === setting.inputs ? Embedding : Linear)(size, setting.outputs, memory));
    this.linear = this.layers.filter(({ W }) => W);
    const total = parts.reduce((sum, part) => sum + part.size, 0);
    Object.assign(this, { rows, length, columns: setting.columns, w: new ArrayType(total), g: new ArrayType(total) });
    let at = 0;
    for (const part of parts) {
      part.w = this.w.subarray(at, at + part.size);
      part.g = this.g.subarray(at, (at += part.size));
    }
  }

  /** Draw the parameters, as `cl.Model(seed=…)` and `add` do. */
  draw(rng) {
    for (const layer of this.layers) layer.draw?.(rng);
  }

  /** Take the parameters, and the moments of BatchNorms, of another net. */
  copyFrom(other) {
    this.w.set(other.w);
    this.layers.forEach((layer, i) => {
      layer.mean?.set(other.layers[i].mean);
      layer.variance?.set(other.layers[i].variance);
    });
  }

  /**
   * The outputs for n rows of x, with names `length` for each. They stay until the next call. `visit` gets each hidden
   * layer's number and outputs.
   */
  forward(x, n, isTraining = false, visit = null) {
    let h = x, block = 0;
    this.layers.forEach((layer, i) => {
      h = layer.forward(h, n * this.length, isTraining);
      if (i === this.blocks[block]) visit?.(block++, h);
    });
    return h;
  }

  /** Compute the gradients of all parameters, after `forward` for these n rows. Dropout takes part only in training. */
  backward(dy, n) {
    let d = dy;
    for (let i = this.layers.length - 1; i >= 0; i--) d = this.layers[i].backward(d, n * this.length, i === 0);
  }

  /** Call `use(outputs, first row, rows)` for parts of x, n rows, as the net is used. */
  forEachPart(x, n, use, visit = null) {
    for (let first = 0; first < n; first += this.rows) {
      const count = Math.min(this.rows, n - first), part = x.subarray(first * this.columns, (first + count) * this.columns);
      use(this.forward(part, count, false, visit && ((block, h) => visit(block, h, first, count))), first, count);
    }
  }
}

/** exp(s − the largest s) of a row of scores, into p. Return their sum and the largest score. */
function exponentials(scores, at, count, p) {
  let largest = -Infinity, sum = 0;
  for (let c = 0; c < count; c++) if (!(scores[at + c] <= largest)) largest = scores[at + c];
  for (let c = 0; c < count; c++) sum += p[c] = Math.exp(scores[at + c] - largest);
  return [sum, largest];
}

/** Probabilities of n rows of scores, in place. */
export function softmax(scores, n, count) {
  const p = new Float64Array(count);
  for (let i = 0; i < n; i++) {
    const [sum] = exponentials(scores, i * count, count, p);
    for (let c = 0; c < count; c++) scores[i * count + c] = p[c] / sum;
  }
}

/** The number of the first n labels that count: −1 does not. */
export function countLabels(y, n) {
  let count = 0;
  for (let i = 0; i < n; i++) if (!(y[i] < 0)) count++;
  return count;
}

// Each adds up the loss of n rows of scores, and writes the gradient of their mean into `ds`, if there is such.
export const LOSSES = {
  SoftmaxLoss(scores, y, n, count, ds) {
    const p = new Float64Array(count), labels = countLabels(y, n);
    let total = 0;
    for (let i = 0, at = 0; i < n; i++, at += count) {
      if (y[i] < 0) {
        ds?.fill(0, at, at + count);
        continue;
      }
      const [sum, largest] = exponentials(scores, at, count, p);
      total += Math.log(sum) + largest - scores[at + y[i]];
      if (ds) for (let c = 0; c < count; c++) ds[at + c] = (p[c] / sum - (c === y[i] ? 1 : 0)) / labels;
    }
    return total;
  },
  HingeLoss(scores, y, n, count, ds) {
    let total = 0;
    for (let i = 0, at = 0; i < n; i++, at += count) {
      let higher = 0;
      for (let c = 0; c < count; c++) {
        const over = scores[at + c] - scores[at + y[i]] + 1, counts = c !== y[i] && !(over <= 0);
        if (counts) total += over;
        if (counts) higher++;
        if (ds) ds[at + c] = counts ? 1 / n : 0;
      }
      if (ds) ds[at + y[i]] = -higher / n;
    }
    return total;
  },
  MSELoss(scores, y, n, count, ds) {
    let total = 0;
    for (let i = 0; i < n; i++) {
      const d = scores[i] - y[i];
      total += d * d;
      if (ds) ds[i] = (2 * d) / n;
    }
    return total;
  },
  MAELoss(scores, y, n, count, ds) {
    let total = 0;
    for (let i = 0; i < n; i++) {
      const d = scores[i] - y[i];
      total += Math.abs(d);
      if (ds) ds[i] = Math.sign(d) / n;
    }
    return total;
  },
  HuberLoss(scores, y, n, count, ds) {
    let total = 0;
    for (let i = 0; i < n; i++) {
      const d = scores[i] - y[i], size = Math.abs(d);
      total += size <= 1 ? (d * d) / 2 : size - 0.5;
      if (ds) ds[i] = Math.max(-1, Math.min(1, d)) / n;
    }
    return total;
  },
};

/** The number of rows that are right, or the sum of the absolute errors. */
export function addMetric(scores, y, n, count, isClasses) {
  let total = 0;
  for (let i = 0, at = 0; i < n; i++, at += count) {
    if (!isClasses) {
      total += Math.abs(scores[i] - y[i]);
      continue;
    }
    let best = 0;
    for (let c = 1; c < count; c++) if (scores[at + c] > scores[at + best]) best = c;
    if (best === y[i]) total++;
  }
  return total;
}
