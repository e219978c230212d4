// The program that does the same with caffelite. See caffelite/web/playground/code.py.

import { FEATURE_CODE, SOURCES } from "./choices.js";

/** A number as Python writes it. */
function repr(value) {
  if (value !== 0 && (Math.abs(value) < 1e-4 || Math.abs(value) >= 1e16)) {
    return value.toExponential().replace(/e([+-])(\d)$/, "e$10$2");
  }
  return Number.isInteger(value) ? `${value}.0` : String(value);
}

function dataCode(setting) {
  const rng = `np.random.default_rng(${setting.seed})`, k = setting.heldRows;
  const made = `${setting.data}(${setting.points}, ${setting.isText ? "" : `${repr(setting.noise)}, `}${rng})`;
  const split = `held_out = x[:${k}], y[:${k}]\nx, y = x[${k}:], y[${k}:]`;
  const source = SOURCES[setting.data];
  if (!setting.isPlane || setting.features.join() === "x₁,x₂") return `${source}\n\n\nx, y = ${made}\n${split}`;
  const columns = setting.features.map((name) => FEATURE_CODE[name]).join(", ");
  return `${source}\n\n\npoints, y = ${made}\na, b = points.T\nx = np.stack([${columns}], axis=1)\n${split}`;
}

function modelCode(setting) {
  const lines = [`model = cl.Model(seed=${setting.seed})`];
  let size = setting.inputs;
  for (const [i, units] of setting.layers.entries()) {
    const kind = !setting.isText ? "Linear" : i > 0 ? "RNN" : "Embedding";
    lines.push(`model.add(cl.${kind}(${size}, ${units}${kind === "RNN" ? ", sequences=True" : ""}))`);
    if (setting.norm !== "none") lines.push(`model.add(cl.${setting.norm}(${units}))`);
    if (setting.activation !== "none" && !setting.isText) lines.push(`model.add(cl.${setting.activation}())`);
    if (setting.dropout > 0) lines.push(`model.add(cl.Dropout(${repr(setting.dropout)}))`);
    size = units;
  }
  const kind = setting.isText && setting.layers.length === 0 ? "Embedding" : "Linear";
  return [...lines, `model.add(cl.${kind}(${size}, ${setting.outputs}))`].join("\n");
}

function optimizerCode({ optimizer, rate, schedule, epochs, steps, decay }) {
  const options = [`lr=${schedule === "cosine" ? `cl.schedules.cosine(${repr(rate)}, ${epochs * steps})` : repr(rate)}`];
  if (optimizer === "momentum") options.push("momentum=0.9");
  if (decay > 0 || optimizer === "AdamW") options.push(`weight_decay=${repr(decay)}`);
  return `optimizer = cl.${optimizer === "momentum" ? "SGD" : optimizer}(model.parameters(), ${options.join(", ")})`;
}

/** The whole program, which trains for so many epochs. It says so if it leaves out edits of weights. */
export function programCode(setting, epochs, hasEdits) {
  const comment = hasEdits ? "# This program leaves out the weights that were set by hand.\n" : "";
  return `${comment}import numpy as np

import caffelite as cl


${dataCode(setting)}

${modelCode(setting)}
${optimizerCode(setting)}

history = model.fit(
    x,
    y,
    loss=cl.${setting.loss}(${setting.isText ? "ignore=-1" : ""}),
    optimizer=optimizer,
    epochs=${epochs},
    batch_size=${setting.batch_size},
    validation_data=held_out,
    metrics=["${setting.metric}"],
)
print(history["loss"][-1], history["val_loss"][-1])
${setting.isText ? `print(*write(model, np.random.default_rng(${setting.seed})))\n` : ""}`;
}
