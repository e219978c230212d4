// Layers: forward beside backward, for n rows. Sums are float64, and what is kept is float32, or float64 for a check.

import { Mask } from "./random.js";

/**
 * y = a b + bias, all row by row: a (rows, depth), b (depth, columns). Element (i, k) of a is at i · rowStep + k · step:
 * so a may be transposed. Four columns at a time, because each then needs fewer loads and jumps.
 */
export function product(y, a, rowStep, step, b, bias, rows, depth, columns) {
  const full = columns & ~3;
  for (let i = 0, out = 0; i < rows; i++, out += columns) {
    const first = i * rowStep;
    let j = 0;
    for (; j < full; j += 4) {
      let s0 = 0, s1 = 0, s2 = 0, s3 = 0;
      if (bias !== null) [s0, s1, s2, s3] = [bias[j], bias[j + 1], bias[j + 2], bias[j + 3]];
      for (let k = 0, at = first, w = j; k < depth; k++, at += step, w += columns) {
        const value = a[at];
        s0 += value * b[w];
        s1 += value * b[w + 1];
        s2 += value * b[w + 2];
        s3 += value * b[w + 3];
      }
      y[out + j] = s0;
      y[out + j + 1] = s1;
      y[out + j + 2] = s2;
      y[out + j + 3] = s3;
    }
    for (; j < columns; j++) {
      let sum = bias === null ? 0 : bias[j];
      for (let k = 0, at = first, w = j; k < depth; k++, at += step, w += columns) sum += a[at] * b[w];
      y[out + j] = sum;
    }
  }
}

/** y = x W + b:  dW = xᵀ dy,  db = Σ dy over the rows,  dx = dy Wᵀ. W is (inputs, outputs). */
export class Linear {
  constructor(inputs, outputs, { claim, array, rows }) {
    Object.assign(this, { inputs, outputs, W: claim(inputs * outputs), b: claim(outputs), transposed: array(inputs * outputs) });
    Object.assign(this, { y: array(rows * outputs), dx: array(rows * inputs) });
  }

  /** Draw W and b from U(−1/√inputs, 1/√inputs). */
  draw(rng) {
    const limit = 1 / Math.sqrt(this.inputs);
    for (const { w } of [this.W, this.b]) for (let i = 0; i < w.length; i++) w[i] = rng.uniform(-limit, limit);
  }

  forward(x, n) {
    const { inputs, outputs, y } = this;
    this.x = x;
    product(y, x, inputs, 1, this.W.w, this.b.w, n, inputs, outputs);
    return y;
  }

  backward(dy, n, isFirst) {
    const { inputs, outputs, dx, transposed } = this, W = this.W.w, db = this.b.g;
    this.dy = dy;
    product(this.W.g, this.x, 1, inputs, dy, null, inputs, n, outputs);
    for (let j = 0; j < outputs; j++) {
      let sum = 0;
      for (let i = 0, at = j; i < n; i++, at += outputs) sum += dy[at];
      db[j] = sum;
    }
    if (isFirst) return null;
    for (let k = 0; k < inputs; k++) for (let j = 0; j < outputs; j++) transposed[j * inputs + k] = W[k * outputs + j];
    product(dx, dy, outputs, 1, transposed, null, n, outputs, inputs);
    return dx;
  }
}

const sigmoid = (x) => 1 / (1 + Math.exp(-x));

/** The error function: (2 / √π) e^(−x²) Σ 2ᵏ x^(2k+1) / (1 · 3 · … · (2k + 1)). */
function erf(x) {
  if (Math.abs(x) > 6) return Math.sign(x);
  let term = x, sum = x;
  for (let k = 1; Math.abs(term) > 1e-17 * Math.abs(sum); k++) sum += term *= (2 * x * x) / (2 * k + 1);
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
}

// y of x, and dx of dy, elementwise. Each has loops of its own, because calls of different functions in one loop are slow.
const ACTIVATIONS = {
  ReLU: {
    forward(x, y, n) { for (let i = 0; i < n; i++) y[i] = x[i] < 0 ? 0 : x[i]; },
    backward(dy, x, y, dx, n) { for (let i = 0; i < n; i++) dx[i] = x[i] > 0 ? dy[i] : 0; },
  },
  LeakyReLU: {
    forward(x, y, n) { for (let i = 0; i < n; i++) y[i] = x[i] > 0 ? x[i] : 0.01 * x[i]; },
    backward(dy, x, y, dx, n) { for (let i = 0; i < n; i++) dx[i] = x[i] > 0 ? dy[i] : 0.01 * dy[i]; },
  },
  Tanh: {
    forward(x, y, n) { for (let i = 0; i < n; i++) y[i] = Math.tanh(x[i]); },
    backward(dy, x, y, dx, n) { for (let i = 0; i < n; i++) dx[i] = dy[i] * (1 - y[i] * y[i]); },
  },
  Sigmoid: {
    forward(x, y, n) { for (let i = 0; i < n; i++) y[i] = sigmoid(x[i]); },
    backward(dy, x, y, dx, n) { for (let i = 0; i < n; i++) dx[i] = dy[i] * y[i] * (1 - y[i]); },
  },
  SiLU: {
    forward(x, y, n) { for (let i = 0; i < n; i++) y[i] = x[i] * sigmoid(x[i]); },
    backward(dy, x, y, dx, n) {
      for (let i = 0; i < n; i++) {
        const s = sigmoid(x[i]);
        dx[i] = dy[i] * s * (1 + x[i] * (1 - s));
      }
    },
  },
  GELU: {
    forward(x, y, n) { for (let i = 0; i < n; i++) y[i] = (x[i] / 2) * (1 + erf(x[i] * Math.SQRT1_2)); },
    backward(dy, x, y, dx, n) {
      const density = (z) => Math.exp((-z * z) / 2) / Math.sqrt(2 * Math.PI);
      for (let i = 0; i < n; i++) dx[i] = dy[i] * ((1 + erf(x[i] * Math.SQRT1_2)) / 2 + x[i] * density(x[i]));
    },
  },
};

/** An activation, by its name. */
export class Activation {
  constructor(name, units, { array, rows }) {
    Object.assign(this, { units, rule: ACTIVATIONS[name], y: array(rows * units), dx: array(rows * units) });
  }

  forward(x, n) {
    this.x = x;
    this.rule.forward(x, this.y, n * this.units);
    return this.y;
  }

  backward(dy, n) {
    this.rule.backward(dy, this.x, this.y, this.dx, n * this.units);
    return this.dx;
  }
}

/** What both norms share: y = x̂ scale + shift,  dscale = Σ dy x̂,  dshift = Σ dy. */
class Norm {
  constructor(units, { claim, array, rows }) {
    Object.assign(this, { units, scale: claim(units), shift: claim(units), y: array(rows * units), dx: array(rows * units) });
    Object.assign(this, { normal: new Float64Array(rows * units), mean: new Float64Array(units), variance: new Float64Array(units).fill(1) });
  }

  draw() {
    this.scale.w.fill(1);
  }

  finish(n) {
    const { units, normal, y } = this, scale = this.scale.w, shift = this.shift.w;
    for (let i = 0; i < n; i++) for (let j = 0; j < units; j++) y[i * units + j] = normal[i * units + j] * scale[j] + shift[j];
    return y;
  }

  addUp(dy, n) {
    const { units, normal } = this;
    for (let j = 0; j < units; j++) {
      let product = 0, sum = 0;
      for (let i = 0, at = j; i < n; i++, at += units) {
        product += dy[at] * normal[at];
        sum += dy[at];
      }
      this.scale.g[j] = product;
      this.shift.g[j] = sum;
    }
  }
}

const EPS = 1e-5, MOMENTUM = 0.1;

/** Gives each feature mean 0 and variance 1 over the rows of a batch; in use, with moments that follow those of batches. */
export class BatchNorm extends Norm {
  forward(x, n, isTraining) {
    const { units, normal, mean, variance } = this;
    this.isTraining = isTraining;
    this.inverse ??= new Float64Array(units);
    for (let j = 0; j < units; j++) {
      let m = mean[j], v = variance[j];
      if (isTraining) {
        m = v = 0;
        for (let i = 0, at = j; i < n; i++, at += units) m += x[at];
        m /= n;
        for (let i = 0, at = j; i < n; i++, at += units) v += (x[at] - m) ** 2;
        mean[j] = Math.fround(mean[j] + MOMENTUM * (m - mean[j]));
        variance[j] = Math.fround(variance[j] + MOMENTUM * (v / (n - 1) - variance[j]));
        v /= n;
      }
      const inverse = (this.inverse[j] = 1 / Math.sqrt(v + EPS));
      for (let i = 0, at = j; i < n; i++, at += units) normal[at] = (x[at] - m) * inverse;
    }
    return this.finish(n);
  }

  backward(dy, n) {
    this.addUp(dy, n);
    const { units, normal, dx, isTraining } = this;
    for (let j = 0; j < units; j++) {
      const factor = this.scale.w[j] * this.inverse[j];
      const sum = isTraining ? this.shift.g[j] / n : 0, product = isTraining ? this.scale.g[j] / n : 0;
      for (let i = 0, at = j; i < n; i++, at += units) dx[at] = (dy[at] - sum - normal[at] * product) * factor;
    }
    return dx;
  }
}

/** Gives each row mean 0 and variance 1. */
export class LayerNorm extends Norm {
  forward(x, n) {
    const { units, normal } = this;
    this.inverse ??= new Float64Array(this.y.length / units);
    for (let i = 0; i < n; i++) {
      let m = 0, v = 0;
      for (let j = 0, at = i * units; j < units; j++) m += x[at + j];
      m /= units;
      for (let j = 0, at = i * units; j < units; j++) v += (x[at + j] - m) ** 2;
      const inverse = (this.inverse[i] = 1 / Math.sqrt(v / units + EPS));
      for (let j = 0, at = i * units; j < units; j++) normal[at + j] = (x[at + j] - m) * inverse;
    }
    return this.finish(n);
  }

  backward(dy, n) {
    this.addUp(dy, n);
    const { units, normal, dx } = this, scale = this.scale.w;
    for (let i = 0; i < n; i++) {
      let sum = 0, product = 0;
      for (let j = 0, at = i * units; j < units; j++) {
        sum += dy[at + j] * scale[j];
        product += dy[at + j] * scale[j] * normal[at + j];
      }
      for (let j = 0, at = i * units; j < units; j++) {
        dx[at + j] = (dy[at + j] * scale[j] - sum / units - (normal[at + j] * product) / units) * this.inverse[i];
      }
    }
    return dx;
  }
}

/** In training y = m ∘ x and dx = m ∘ dy, with m = 0 with probability p, else 1 / (1 − p). In use y = x. */
export class Dropout {
  constructor(p, units, { array, rows }) {
    Object.assign(this, { p, units, mask: array(rows * units), y: array(rows * units), dx: array(rows * units) });
  }

  draw(rng) {
    this.random = new Mask(rng.spawn().next64() >> 1n);
  }

  forward(x, n, isTraining) {
    if (!isTraining) return x;
    this.random.fill(this.mask, n * this.units, Math.round(65536 * this.p), 1 / (1 - this.p));
    return multiply(this.y, x, this.mask, n * this.units);
  }

  backward(dy, n) {
    return multiply(this.dx, dy, this.mask, n * this.units);
  }
}

function multiply(y, a, b, n) {
  for (let i = 0; i < n; i++) y[i] = a[i] * b[i];
  return y;
}
