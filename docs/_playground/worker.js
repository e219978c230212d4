// The engine in a Worker: it trains, and answers the page as caffelite/web/playground/page.py does.

import { CHOICES, DATA, LIMITS } from "./choices.js";
import { programCode } from "./code.js";
import { makeThumbnails } from "./data.js";
import { encode } from "./messages.js";
import { makeSetting } from "./setting.js";
import { LETTERS, NamesView } from "./names.js";
import { explainWeight } from "./trace.js";
import { Training } from "./training.js";
import { REACH, View, curves } from "./view.js";

const FRAME = 25, SLICE = 8; // milliseconds between two frames, and of steps between two messages
const PATIENCE = 250; // milliseconds after which it waits for a page that has not drawn a frame
const MAX_VALUES = 1000; // of a weight that is followed
const MAX_HELD_OUT = 500; // points that are held out and not in the plane

let digits = null, awaited = null; // the images, and the message that waits for them
let training = null, view = null, by = null, values = [];
let read = ["maria", 0]; // the letters that frames show, and the draw of the names that a net writes
let isPlaying = false, stopAt = null, followed = null, speed = Infinity;
let isDrawn = true, lastFrame = 0, rate = 0, rateStart = [0, 0], paceStart = [0, 0], isScheduled = false;

const send = (kind, message) => {
  const bytes = encode({ kind, ...message });
  postMessage(bytes, [bytes]);
};

function begin(setting) {
  training = new Training(setting, digits);
  view = setting.isText ? new NamesView(training) : new View(training);
  if (setting.isText) view.read(...read);
  isPlaying &&= stopAt === null; // steps end with their net
  [stopAt, followed, values] = [null, null, []];
  send("setting", describe());
  restartClock();
  showFrame();
}

function describe() {
  const { setting, data, net } = training, { isPlane, isText, inputs, classes, losses, outputs, steps, features, rows } = setting;
  const none = new Float32Array(0), floats = (x) => Float32Array.from(x);
  return {
    setting: setting.message, by, speed: speed === Infinity ? null : speed, choices: { ...CHOICES, data: DATA, loss: losses, target: [] },
    limits: { layers: LIMITS.layers, units: LIMITS.units, points: rows, features: isPlane ? LIMITS.features : [] },
    table: null, inputs: isPlane ? features : isText ? LETTERS : inputs, picture: isPlane ? "plane" : isText ? "text" : "image", reach: REACH, classes: Boolean(classes),
    labels: isText ? LETTERS : null, outputs, steps, parameters: net.w.length,
    x: isPlane ? floats(data.x) : none, y: isPlane ? floats(data.y) : none,
    held_x: isText ? none : floats(isPlane ? data.heldX : data.heldX.subarray(0, MAX_HELD_OUT * inputs)),
    held_y: isText ? none : floats(isPlane ? data.heldY : data.heldY.slice(0, MAX_HELD_OUT)),
  };
}

function showFrame() {
  const { steps, setting, problem, history } = training;
  send("frame", {
    playing: isPlaying, step: steps, epoch: steps / setting.steps, rate: isPlaying ? rate : 0, problem,
    curves: curves(history), ...view.snapshot(), followed: explainFollowed(),
  });
  [isDrawn, lastFrame] = [false, performance.now()];
}

/** The weight that is followed, with its values at the last frames. */
function explainFollowed() {
  if (followed === null) return null;
  const explanation = explainWeight(training, followed);
  if (values.at(-1)?.[0] === training.steps) values.pop();
  values = [...values, [training.steps, explanation.value]].slice(-MAX_VALUES);
  return { ...explanation, steps: Int32Array.from(values, ([step]) => step), values: Float32Array.from(values, ([, value]) => value) };
}

function restartClock() {
  rateStart = paceStart = [performance.now(), training.steps];
}

function play(should, until = null) {
  [isPlaying, stopAt] = [should && training.problem === null, until];
  restartClock();
  schedule(0);
  if (!isPlaying) showFrame();
}

// Messages of the page come between two slices. A timer would wait for four milliseconds.
const channel = new MessageChannel();
channel.port1.onmessage = run;

function schedule(milliseconds) {
  if (isScheduled || !isPlaying) return;
  isScheduled = true;
  milliseconds > 0 ? setTimeout(run, milliseconds) : channel.port2.postMessage(null);
}

function run() {
  isScheduled = false;
  if (!isPlaying) return;
  const begun = performance.now();
  if (!isDrawn && begun - lastFrame > PATIENCE) return; // until the page has drawn the last frame
  const due = Math.floor(((begun - paceStart[0]) * speed) / 1000) + paceStart[1] - training.steps;
  for (let done = 0; done < due && training.steps !== stopAt && training.problem === null; done++) {
    training.takeStep();
    if (performance.now() - begun > SLICE) break;
  }
  const now = performance.now();
  if (due > 0 && speed < Infinity && now - begun > SLICE) paceStart = [now, training.steps]; // it cannot be that fast
  if (now - rateStart[0] > 250) [rate, rateStart] = [(1000 * (training.steps - rateStart[1])) / (now - rateStart[0]), [now, training.steps]];
  if (training.problem !== null || training.steps === stopAt) {
    [isPlaying, stopAt] = [false, null];
    showFrame();
  } else if (isDrawn && now - lastFrame >= FRAME) showFrame();
  schedule(speed < Infinity ? Math.min(FRAME, 1000 / speed) : 0);
}

const HANDLERS = {
  set(message) {
    const setting = makeSetting(message.setting ?? {});
    if (setting.data === "digits" && digits === null) {
      awaited = message;
      postMessage({ needs: "digits" });
      return;
    }
    by = message.by ?? null;
    begin(setting);
    schedule(0);
  },
  digits({ text }) {
    const labels = text.length / 65;
    digits = {
      images: Float32Array.from({ length: 64 * labels }, (_, i) => (text.charCodeAt(i) - 97) / 16),
      labels: Array.from({ length: labels }, (_, i) => text.charCodeAt(64 * labels + i) - 97),
    };
    if (awaited) HANDLERS.set(awaited);
  },
  again() {
    begin(training.setting);
    schedule(0);
  },
  play: () => play(true),
  pause: () => play(false),
  step: () => play(true, training.steps + 1),
  epoch() {
    const { steps } = training.setting;
    play(true, training.steps + steps - (training.steps % steps));
  },
  speed({ value }) {
    speed = value ?? Infinity;
    restartClock();
    schedule(0);
  },
  follow({ place }) {
    if (training.setting.isText && place) throw new Error("the weights of a recurrent net cannot be followed");
    const { setting } = training, sizes = [setting.inputs, ...setting.layers, setting.outputs];
    const isThere = place === null || (place[0] in training.net.linear && place[1] in range(sizes[place[0]]) && place[2] in range(sizes[place[0] + 1]));
    if (!isThere) throw new Error(`there is no weight ${place}`);
    [followed, values] = [place, []];
    showFrame();
  },
  weight({ value }) {
    if (training.problem !== null) throw new Error("the training has ended, so no weight can be set");
    if (followed === null) return;
    if (!(Math.abs(value) <= LIMITS.weight)) throw new Error(`expected a weight from -${LIMITS.weight} to ${LIMITS.weight}, got ${value}`);
    const { W, outputs } = training.net.linear[followed[0]];
    W.w[followed[1] * outputs + followed[2]] = value;
    training.hasEdits = true;
    showFrame();
  },
  read({ text, draw }) {
    if (!training.setting.isText) return; // the page has chosen other data since
    view.read(text, draw);
    read = [text, draw];
    showFrame();
  },
  code() {
    const { steps, setting, hasEdits } = training, epochs = Math.max(1, Math.ceil(steps / setting.steps));
    send("code", { text: programCode(setting, epochs, hasEdits), epochs });
  },
  drawn() {
    isDrawn = true;
    schedule(0);
  },
};

const range = (n) => Array.from({ length: n });

self.onmessage = ({ data }) => {
  try {
    if (!(data.ask in HANDLERS)) throw new Error(`there is nothing called ${data.ask}`);
    HANDLERS[data.ask](data);
  } catch ({ message }) {
    send("refused", { why: message });
  }
};

begin(makeSetting({}));
send("thumbnails", { data: makeThumbnails() });
