// What a frame shows of a net that learns names. See caffelite/web/playground/names_view.py.

import { spell } from "./data.js";
import { softmax } from "./network.js";
import { Generator } from "./random.js";
import { shaped, toBytes } from "./view.js";

/** The letters by their numbers. The first one begins a name, and ends it. */
export const LETTERS = ["·", ..."abcdefghijklmnopqrstuvwxyz"];

const COUNT = 10, TEMPERATURE = 0.6; // names that the net writes, and how it draws their letters
const MAX_DRAWS = 1000;
const [NEW, TRAINING, TEST] = [0, 1, 2]; // what a name is that the net has written

export class NamesView {
  constructor(training) {
    const { data } = training, { length } = training.setting;
    Object.assign(this, { training, length, text: "maria", draw: 0, noise: null });
    this.kinds = new Map();
    for (const [kind, x] of [[TEST, data.heldX], [TRAINING, data.x]]) {
      for (let at = 0; at < x.length; at += length) this.kinds.set(unspell(x.subarray(at, at + length)), kind);
    }
  }

  /** Show the net after each of these letters, and the names of this draw. */
  read(text, draw) {
    if (!(typeof text === "string" && /^[a-z]*$/.test(text) && text.length < this.length)) {
      throw new Error(`expected at most ${this.length - 1} letters of a … z, got ${JSON.stringify(text)}`);
    }
    if (!(Number.isInteger(draw) && draw >= 0 && draw < MAX_DRAWS)) throw new Error(`expected a draw of 0 … ${MAX_DRAWS - 1}`);
    if (draw !== this.draw) this.noise = null;
    Object.assign(this, { text, draw });
  }

  /** Names, the probabilities of each next letter, the pictures of the units, and weights. */
  snapshot() {
    const { text, length } = this, { net, setting } = this.training, { layers, outputs } = setting, count = text.length + 1;
    const written = this.write(), x = new Float32Array(length), units = [];
    x.set(spell(text), 1);
    const scores = net.forward(x, 1, false, (block, h) => {
      units.push(shaped(toBytes(h.subarray(0, count * layers[block]), layers[block]), layers[block], 1, count));
    });
    const output = scores.slice(0, count * outputs);
    softmax(output, count, outputs);
    return {
      text, written, kinds: written.map((name) => this.kinds.get(name) ?? NEW), output: shaped(output, count, outputs), units,
      weights: net.linear.map(({ W, inputs: from, outputs: to }) => shaped(W.w.slice(), from, to)),
    };
  }

  /** Ten names, letter by letter. The random numbers stay the same: a name changes only if the net does. */
  write() {
    const { length, training } = this, { net, setting } = training, { outputs } = setting, x = new Float32Array(COUNT * length);
    const names = new Array(COUNT).fill("");
    this.noise ??= drawNoise(setting.seed + this.draw, COUNT * length * outputs);
    for (let t = 0; t < length; t++) {
      const scores = net.forward(x, COUNT);
      for (let i = 0; i < COUNT; i++) {
        const row = (i * length + t) * outputs, value = (c) => scores[row + c] / TEMPERATURE + this.noise[row + c];
        let best = 0;
        for (let c = 1; c < outputs; c++) if (value(c) > value(best)) best = c;
        names[i] += String.fromCharCode(96 + best);
        if (t + 1 < length) x[i * length + t + 1] = best;
      }
    }
    return names.map((name) => name.split("`")[0]);
  }
}

function drawNoise(seed, count) {
  const rng = new Generator(seed);
  return Float64Array.from({ length: count }, () => -Math.log(-Math.log(rng.random())));
}

/** The name of a row: its letters after the first, up to the next 0. */
function unspell(row) {
  return String.fromCharCode(...Array.from(row.subarray(1), (letter) => 96 + letter)).split("`")[0];
}
