// A training: it does what `Model.fit` does with the program that the page shows.

import { inputsOf, makeData } from "./data.js";
import { LOSSES, Network, addMetric, countLabels } from "./network.js";
import { RULES, STATES, rateOf } from "./optimizers.js";
import { Generator, Shuffle } from "./random.js";

const PART = 256; // rows that the net takes at a time, in use

export class Training {
  constructor(setting, digits) {
    const data = makeData(setting, digits), Labels = setting.classes ? Int32Array : Float32Array;
    Object.assign(this, { setting, data, x: inputsOf(setting, data.x), y: Labels.from(data.y), steps: 0, hasEdits: false, problem: null });
    Object.assign(this, { heldX: inputsOf(setting, data.heldX), heldY: Labels.from(data.heldY) });
    this.counts = [this.y, this.heldY].map((y) => (setting.classes ? countLabels(y, y.length) : y.length));
    const rng = new Generator(setting.seed), largest = setting.batch_size + 1;
    this.net = new Network(setting, Float32Array, Math.max(largest, PART));
    this.net.draw(rng);
    this.shuffle = new Shuffle(Array.from({ length: 4 }, () => rng.next64()));
    this.order = Int32Array.from({ length: data.y.length / setting.length }, (_, i) => i);
    this.state = Array.from({ length: STATES[setting.optimizer] }, () => new Float32Array(this.net.w.length));
    this.batchX = new Float32Array(largest * setting.columns);
    this.batchY = new Labels(largest * setting.length);
    this.ds = new Float32Array(largest * setting.length * setting.outputs);
    this.history = { loss: [], [setting.metric]: [], val_loss: [], [`val_${setting.metric}`]: [] };
    this.totals = [0, 0];
  }

  /** Take a step. If it cannot, `problem` says why, and nothing changes. */
  takeStep() {
    const { setting, net } = this, place = this.steps % setting.steps;
    if (setting.schedule !== "constant" && this.steps === setting.epochs * setting.steps) {
      this.problem = "The learning rate has fallen to 0, so the training has ended.";
      return;
    }
    if (place === 0) this.shuffle.shuffle(this.order);
    const first = place * setting.batch_size, isLast = place === setting.steps - 1;
    const n = isLast ? this.order.length - first : setting.batch_size;
    this.takeBatch(first, n);
    const scores = net.forward(this.batchX, n, true), labels = n * setting.length;
    const loss = LOSSES[setting.loss](scores, this.batchY, labels, setting.outputs, this.ds);
    const metric = addMetric(scores, this.batchY, labels, setting.outputs, setting.classes);
    net.backward(this.ds, n);
    let check = loss; // NaN if the loss or a gradient is not finite
    for (let i = 0; i < net.g.length; i++) check += net.g[i] * 0;
    if (!Number.isFinite(Math.fround(check))) {
      const epoch = this.history.loss.length + 1;
      this.problem = `The training has diverged: epoch ${epoch}, batch ${place + 1}: the loss or a gradient is not finite; try a smaller learning rate`;
      return;
    }
    RULES[setting.optimizer](net.w, net.g, this.state, rateOf(setting, this.steps), Math.fround(setting.decay), this.steps + 1);
    this.steps++;
    this.totals[0] += loss;
    this.totals[1] += metric;
    if (isLast) this.endEpoch();
  }

  takeBatch(first, n) {
    const { x, y, batchX, batchY, order } = this, { columns, length } = this.setting;
    for (let i = 0; i < n; i++) {
      const row = order[first + i];
      for (let k = 0; k < length; k++) batchY[i * length + k] = y[row * length + k];
      for (let k = 0; k < columns; k++) batchX[i * columns + k] = x[row * columns + k];
    }
  }

  endEpoch() {
    const { setting, history, totals, heldY, counts: [labels, heldLabels] } = this, { metric, outputs, classes, length } = setting;
    let loss = 0, held = 0;
    this.net.forEachPart(this.heldX, heldY.length / length, (scores, first, n) => {
      const part = heldY.subarray(first * length, (first + n) * length);
      loss += LOSSES[setting.loss](scores, part, n * length, outputs, null);
      held += addMetric(scores, part, n * length, outputs, classes);
    });
    history.loss.push(totals[0] / labels);
    history[metric].push(totals[1] / labels);
    history.val_loss.push(loss / heldLabels);
    history[`val_${metric}`].push(held / heldLabels);
    this.totals = [0, 0];
  }
}
