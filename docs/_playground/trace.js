// Follow one weight: its gradient by the chain rule, and by a difference, in float64. See playground/weight_trace.py.

import { LOSSES, Network } from "./network.js";

const EPSILON = 1e-4; // by which the weight is moved, up and down
const ROWS = 3; // with their numbers on the page

/** Explain the weight at [layer, from, to] by all points of the training. */
export function explainWeight({ setting, net, x, y }, place) {
  const [layer, source, target] = place, n = y.length;
  const exact = new Network({ ...setting, dropout: 0 }, Float64Array, n), { loss, outputs } = setting;
  exact.copyFrom({ w: net.w, layers: net.layers.filter(({ p }) => p === undefined) });
  const linear = exact.linear[layer], at = source * linear.outputs + target, ds = new Float64Array(n * outputs);
  const rowsX = Float64Array.from(x), measure = (into) => LOSSES[loss](exact.forward(rowsX, n), y, n, outputs, into) / n;
  const mean = measure(ds);
  exact.backward(ds, n);
  const h = (i) => linear.x[i * linear.inputs + source], delta = (i) => linear.dy[i * linear.outputs + target] * n;
  const rows = Array.from({ length: Math.min(ROWS, n) }, (_, i) => ({
    x: setting.isPlane ? Array.from(x.subarray(i * setting.inputs, (i + 1) * setting.inputs)) : null, h: h(i), delta: delta(i), product: h(i) * delta(i),
  }));
  const gradient = linear.W.g[at], value = linear.W.w[at];
  const [above, below] = [1, -1].map((sign) => {
    linear.W.w[at] = value + sign * EPSILON;
    return measure(null);
  });
  const difference = (above - below) / (2 * EPSILON);
  return { place, value, loss: mean, gradient, difference, epsilon: EPSILON, rows, points: n };
}
