// The data to learn, as caffelite/web/playground/data.py makes them: points (n, 2), or digits (n, 64), and what they are.

import { CLASSES, DIGIT, LIMITS, SOURCES } from "./choices.js";
import { Generator } from "./random.js";

const columns = (n, draw) => Float64Array.from({ length: n }, draw);
const points = (n, at) => Float64Array.from({ length: 2 * n }, (_, i) => at(i >> 1, i & 1));

const MAKERS = {
  spiral(n, noise, rng) {
    const r = columns(n, () => rng.uniform(0.1, 1)), y = Array.from({ length: n }, (_, i) => i % 3);
    const angle = r.map((value, i) => 4 * value + ((2 * Math.PI) / 3) * y[i] + noise * rng.normal());
    return { x: points(n, (i, axis) => r[i] * (axis ? Math.sin(angle[i]) : Math.cos(angle[i]))), y };
  },
  moons(n, noise, rng) {
    const angle = columns(n, () => Math.PI * rng.random()), y = Array.from({ length: n }, (_, i) => i % 2);
    const at = (i, axis) => (axis ? Math.sin(angle[i]) * (1 - 2 * y[i]) + 0.5 * y[i] - 0.25 : Math.cos(angle[i]) * (1 - 2 * y[i]) + y[i] - 0.5);
    return { x: points(n, (i, axis) => 0.6 * at(i, axis) + 0.4 * noise * rng.normal()), y };
  },
  circles(n, noise, rng) {
    const angle = columns(n, () => 2 * Math.PI * rng.random()), y = Array.from({ length: n }, (_, i) => i % 2);
    const at = (i, axis) => (y[i] === 0 ? 0.9 : 0.4) * (axis ? Math.sin(angle[i]) : Math.cos(angle[i]));
    return { x: points(n, (i, axis) => at(i, axis) + 0.4 * noise * rng.normal()), y };
  },
  xor(n, noise, rng) {
    const x = points(n, () => rng.uniform(-1, 1)), y = Array.from({ length: n }, (_, i) => (x[2 * i] * x[2 * i + 1] > 0 ? 1 : 0));
    return { x: x.map((value) => value + 0.4 * noise * rng.normal()), y };
  },
  blobs(n, noise, rng) {
    const y = Array.from({ length: n }, (_, i) => i % 3), angle = (i) => ((2 * Math.PI) / 3) * y[i] + 0.5;
    return { x: points(n, (i, axis) => 0.55 * (axis ? Math.sin(angle(i)) : Math.cos(angle(i))) + (0.12 + 0.4 * noise) * rng.normal()), y };
  },
  plane: numbers((a, b) => 0.6 * a - 0.4 * b),
  waves: numbers((a, b) => Math.sin(3 * a) * Math.cos(3 * b)),
  hill: numbers((a, b) => 2 * Math.exp(-4 * (a ** 2 + b ** 2)) - 1),
  digits(n, noise, rng, { images, labels }) {
    const rows = rng.permutation(labels.length).subarray(0, n);
    const x = Float64Array.from({ length: 64 * rows.length }, (_, i) => images[64 * rows[i >> 6] + (i & 63)] + noise * rng.normal());
    return { x, y: Array.from(rows, (row) => labels[row]) };
  },
  names(n, noise, rng) {
    const words = SOURCES.names.match(/"""([^]*?)"""/)[1].trim().split(/\s+/), { length } = LIMITS;
    const chosen = Array.from(rng.permutation(words.length).subarray(0, n), (i) => words[i]);
    const x = new Float64Array(length * chosen.length), y = new Array(x.length).fill(-1); // labels of −1 don't count
    chosen.forEach((word, i) => {
      x.set(spell(word), length * i + 1);
      [...spell(word), 0].forEach((letter, t) => { y[length * i + t] = letter; });
    });
    return { x, y };
  },
};

/** The numbers of the letters of a word, from 1 on. 0 begins and ends a name. */
export const spell = (word) => Array.from(word, (letter) => letter.charCodeAt(0) - 96);

function numbers(f) {
  return (n, noise, rng) => {
    const x = points(n, () => rng.uniform(-1, 1));
    return { x, y: Array.from({ length: n }, (_, i) => f(x[2 * i], x[2 * i + 1]) + noise * rng.normal()) };
  };
}

/** What a net may get of a point, by name. */
const FEATURES = {
  "x₁": (a) => a,
  "x₂": (_, b) => b,
  "x₁²": (a) => a ** 2,
  "x₂²": (_, b) => b ** 2,
  "x₁x₂": (a, b) => a * b,
  "sin πx₁": (a) => Math.sin(Math.PI * a),
  "sin πx₂": (_, b) => Math.sin(Math.PI * b),
};

/** The inputs of the net for points: (n, features) of float32. */
export function inputsOf(setting, x) {
  if (!setting.isPlane) return Float32Array.from(x);
  const functions = setting.features.map((name) => FEATURES[name]), count = functions.length;
  return Float32Array.from({ length: (x.length / 2) * count }, (_, k) => {
    const i = 2 * Math.floor(k / count);
    return functions[k % count](x[i], x[i + 1]);
  });
}

/** A few points of each data set, or an image, by name. */
export function makeThumbnails() {
  const entries = Object.entries(MAKERS).map(([name, make]) => {
    if (name === "names") return [name, { word: "mia" }];
    if (name === "digits") return [name, { image: Float32Array.from(DIGIT) }];
    const { x, y } = make(90, 0.05, new Generator(0));
    return [name, { x: Float32Array.from(x), y: Float32Array.from(y), classes: name in CLASSES }];
  });
  return Object.fromEntries(entries);
}

/** The points of a setting, x and y, in two parts: for the training, and held out. */
export function makeData(setting, digits) {
  const { x, y } = MAKERS[setting.data](setting.points, setting.noise, new Generator(setting.seed), digits);
  const k = setting.heldRows, labels = k * setting.length, width = setting.isPlane ? 2 : setting.columns;
  return { x: x.subarray(k * width), y: y.slice(labels), heldX: x.subarray(0, k * width), heldY: y.slice(0, labels) };
}
