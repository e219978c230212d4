// All that is chosen, checked as caffelite/web/playground/config.py does it.

import { CHOICES, CLASSES, DATA, FIRST, LIMITS, NUMBERS } from "./choices.js";

/** Make a setting from a page's message. Throw an Error that names an impossible choice. Missing names have their first value. */
export function makeSetting(message) {
  const unknown = Object.keys(message).filter((name) => !(name in FIRST));
  if (unknown.length) throw new Error(`a setting has no '${unknown[0]}'`);
  const setting = { ...FIRST, ...message };
  const fail = (name, expected) => {
    throw new Error(`${name}: expected ${expected}, got ${JSON.stringify(setting[name])}`);
  };
  for (const [name, known] of Object.entries({ ...CHOICES, data: DATA })) {
    if (!known.includes(setting[name])) fail(name, `one of ${known.join(", ")}`);
  }
  for (const [name, [low, high, isWhole]] of Object.entries(NUMBERS)) {
    const value = setting[name];
    if (!Number.isFinite(value) || value < low || value > high || (isWhole && value % 1 !== 0)) {
      fail(name, `${isWhole ? "an integer" : "a number"} of ${low} … ${high}`);
    }
  }
  const { layers, features } = setting;
  if (!Array.isArray(layers) || layers.length > LIMITS.layers) fail("layers", `at most ${LIMITS.layers} sizes`);
  if (layers.some((n) => !Number.isInteger(n) || n < 1 || n > LIMITS.units)) fail("layers", `sizes of 1 … ${LIMITS.units}`);
  const isInOrder = Array.isArray(features) && LIMITS.features.filter((name) => features.includes(name)).join() === features.join();
  if (!isInOrder || features.length === 0) fail("features", `some of ${LIMITS.features.join(", ")}, in this order`);
  const classes = CLASSES[setting.data] ?? null, isText = setting.data === "names";
  const losses = classes ? LIMITS.classLosses.slice(0, isText ? 1 : 2) : LIMITS.numberLosses;
  if (![...LIMITS.classLosses, ...LIMITS.numberLosses].includes(setting.loss)) fail("loss", `one of ${losses.join(", ")}`);
  if (!losses.includes(setting.loss)) setting.loss = losses[0];
  if (isText) setting.norm = "none";
  return addFacts(setting, classes, losses, isText);
}

/** Add what follows from the choices. It is not among the choices that a page gets. */
function addFacts(setting, classes, losses, isText) {
  const { data, points } = setting, isPlane = data !== "digits" && !isText, length = isText ? LIMITS.length : 1;
  const rows = isPlane ? points : Math.min(points, LIMITS[data]), inputs = isPlane ? setting.features.length : isText ? classes : 64;
  const half = Math.floor(setting.split * rows), rest = setting.split * rows - half; // Python rounds a half to the even number
  const rounded = rest > 0.5 || (rest === 0.5 && half % 2 === 1) ? half + 1 : half;
  const heldRows = Math.min(Math.max(1, rounded), rows - 1);
  const full = Math.floor((rows - heldRows) / setting.batch_size), last = (rows - heldRows) % setting.batch_size;
  const joins = setting.norm === "BatchNorm" && last === 1 && full > 0; // the last row to the batch before
  const facts = {
    isPlane, isText, rows, heldRows, classes, losses, joins, outputs: classes ?? 1, inputs, length, columns: isText ? length : inputs,
    steps: full + (last > 0 && !joins ? 1 : 0),
    metric: classes ? "accuracy" : "mae",
    message: Object.fromEntries(Object.keys(FIRST).map((name) => [name, setting[name]])),
  };
  return Object.freeze({ ...setting, ...facts });
}
