// The layers of a net that reads names: a vector for each letter, and a state that changes with every letter.

import { Linear, product } from "./layers.js";

/** y = W[x]:  dW[x] += dy. W is (count, outputs). */
export class Embedding {
  constructor(count, outputs, { claim, array, rows }) {
    Object.assign(this, { inputs: count, outputs, W: claim(count * outputs), y: array(rows * outputs) });
  }

  /** Draw W from N(0, 1). */
  draw(rng) {
    const { w } = this.W;
    for (let i = 0; i < w.length; i++) w[i] = rng.normal();
  }

  forward(x, n) {
    const { outputs, y } = this, { w } = this.W;
    this.x = x;
    for (let i = 0, at = 0; i < n; i++) for (let j = 0, from = x[i] * outputs; j < outputs; j++) y[at++] = w[from++];
    return y;
  }

  backward(dy, n) {
    const { outputs, x } = this, dW = this.W.g.fill(0);
    for (let i = 0, at = 0; i < n; i++) for (let j = 0, to = x[i] * outputs; j < outputs; j++) dW[to++] += dy[at++];
    return null;
  }
}

/**
 * h[t] = tanh(W x[t] + b + U h[t − 1] + c), with h[−1] = 0:  da[t] = (dy[t] + U da[t + 1]) (1 − h[t]²). The rows of x are
 * those of one name after those of another, `length` each. W and U are (inputs, outputs).
 */
export class RNN {
  constructor(inputs, outputs, memory, length) {
    const { claim, array, rows } = memory, input = new Linear(inputs, outputs, memory);
    Object.assign(this, { inputs, outputs, length, input, W: input.W, U: claim(outputs * outputs), c: claim(outputs) });
    Object.assign(this, { previous: array(rows * outputs), da: array(rows * outputs), carry: new Float64Array(outputs) });
  }

  /** Draw all from U(−1/√outputs, 1/√outputs), matrices by their columns. */
  draw(rng) {
    const { outputs, W, U, c, input } = this, limit = 1 / Math.sqrt(outputs);
    for (const { w } of [W, U, input.b, c]) {
      const step = w.length > outputs ? outputs : 1, down = w.length / step;
      for (let j = 0; j < step; j++) for (let k = 0; k < down; k++) w[k * step + j] = rng.uniform(-limit, limit);
    }
  }

  forward(x, n) {
    const { outputs, length, previous } = this, h = this.input.forward(x, n), U = this.U.w, c = this.c.w;
    for (let i = 0; i < n; i++) {
      const at = i * outputs, before = at - outputs, isFirst = i % length === 0;
      for (let k = 0; k < outputs; k++) previous[at + k] = isFirst ? 0 : h[before + k];
      for (let j = 0; j < outputs; j++) {
        let sum = h[at + j] + c[j];
        if (!isFirst) for (let k = 0, u = j; k < outputs; k++, u += outputs) sum += h[before + k] * U[u];
        h[at + j] = Math.tanh(sum);
      }
    }
    return (this.h = h);
  }

  backward(dy, n) {
    const { outputs, length, h, previous, da, carry, input } = this, U = this.U.w;
    for (let i = n - 1; i >= 0; i--) {
      const at = i * outputs;
      if ((i + 1) % length === 0) carry.fill(0);
      for (let j = 0; j < outputs; j++) da[at + j] = (dy[at + j] + carry[j]) * (1 - h[at + j] ** 2);
      for (let k = 0, u = 0; k < outputs; k++) {
        let sum = 0;
        for (let j = 0; j < outputs; j++) sum += da[at + j] * U[u++];
        carry[k] = sum;
      }
    }
    product(this.U.g, previous, 1, outputs, da, null, outputs, n, outputs);
    const dx = input.backward(da, n, false);
    this.c.g.set(input.b.g);
    return dx;
  }
}
