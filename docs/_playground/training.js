// A training: it does what `Model.fit` does with the program that the page shows.

import { inputsOf, makeData } from "./data.js";
import { LOSSES, Network, addMetric } from "./network.js";
import { RULES, STATES, rateOf } from "./optimizers.js";
import { Generator, Shuffle } from "./random.js";

const PART = 256; // rows that the net takes at a time, in use

export class Training {
  constructor(setting, digits) {
    const data = makeData(setting, digits), Labels = setting.classes ? Int32Array : Float32Array;
    Object.assign(this, { setting, data, x: inputsOf(setting, data.x), y: Labels.from(data.y), steps: 0, problem: null });
    Object.assign(this, { heldX: inputsOf(setting, data.heldX), heldY: Labels.from(data.heldY) });
    const rng = new Generator(setting.seed), largest = setting.batch_size + 1;
    this.net = new Network(setting, Float32Array, Math.max(largest, PART));
    this.net.draw(rng);
    this.shuffle = new Shuffle(Array.from({ length: 4 }, () => rng.next64()));
    this.order = Int32Array.from(data.y.keys());
    this.state = Array.from({ length: STATES[setting.optimizer] }, () => new Float32Array(this.net.w.length));
    this.batchX = new Float32Array(largest * setting.inputs);
    this.batchY = new Labels(largest);
    this.ds = new Float32Array(largest * setting.outputs);
    this.history = { loss: [], [setting.metric]: [], val_loss: [], [`val_${setting.metric}`]: [] };
    this.totals = [0, 0];
  }

  /** Take a step. If it cannot, `problem` says why, and nothing changes. */
  takeStep() {
    const { setting, net } = this, place = this.steps % setting.steps;
    if (setting.schedule !== "constant" && this.steps === setting.epochs * setting.steps) {
      this.problem = "The rate has fallen to 0: the training has ended.";
      return;
    }
    if (place === 0) this.shuffle.shuffle(this.order);
    const first = place * setting.batch_size, isLast = place === setting.steps - 1;
    const n = isLast ? this.order.length - first : setting.batch_size;
    this.takeBatch(first, n);
    const scores = net.forward(this.batchX, n, true);
    const loss = LOSSES[setting.loss](scores, this.batchY, n, setting.outputs, this.ds);
    const metric = addMetric(scores, this.batchY, n, setting.outputs, setting.classes);
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
    const { x, y, batchX, batchY, order } = this, { inputs } = this.setting;
    for (let i = 0; i < n; i++) {
      const row = order[first + i];
      batchY[i] = y[row];
      for (let k = 0; k < inputs; k++) batchX[i * inputs + k] = x[row * inputs + k];
    }
  }

  endEpoch() {
    const { setting, history, totals, order, heldY } = this, { metric, outputs, classes } = setting;
    let loss = 0, held = 0;
    this.net.forEachPart(this.heldX, heldY.length, (scores, first, n) => {
      const y = heldY.subarray(first, first + n);
      loss += LOSSES[setting.loss](scores, y, n, outputs, null);
      held += addMetric(scores, y, n, outputs, classes);
    });
    history.loss.push(totals[0] / order.length);
    history[metric].push(totals[1] / order.length);
    history.val_loss.push(loss / heldY.length);
    history[`val_${metric}`].push(held / heldY.length);
    this.totals = [0, 0];
  }
}
