// The playground's page: it draws frames, and sends what is chosen.

import { LineChart, colour, text } from "./charts.js";
import { connect, themeButton } from "./connection.js";
import { STEPS } from "./lesson.js";

const $ = (id) => document.getElementById(id);
const CLASSES = ["#0072B2", "#E69F00", "#009E73", "#CC79A7"];
const RATES = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10];
const DECAYS = [0, 0.0001, 0.001, 0.01, 0.1, 1];
const SPEEDS = [["1 step a second", 1], ["5", 5], ["30", 30], ["300", 300], ["as fast as it goes", null]];
const UNIT = 34, TALL = 44; // pixels of a unit, and of its place

let told = null, frame = null, layout = null, lesson = 0, wanted = null;

const OWN = Math.random().toString(36).slice(2); // the name of this page, among others that are open
let count = 0; // of the changes that it has asked for

const ask = connect(
  (message) => {
    if (message.kind === "setting") showSetting(message);
    else if (message.kind === "frame") { frame = message; requestDraw(); }
    else if (message.kind === "program") showProgram(message);
    else if (message.kind === "refused") say(`This is not possible: ${message.why}`);
  },
  (why) => say(why === null ? "" : why.replace("program that trains", "playground's program")),
);

function say(what) {
  $("gone").textContent = what;
  $("gone").classList.toggle("hidden", what === "");
}

// ---- choices ----

for (const [name, value] of SPEEDS) $("speed").add(new Option(name, value ?? ""));
$("speed").value = "";

function fill(select, values) {
  if (select.options.length === 0) for (const value of values) select.add(new Option(value, value));
}

function showSetting(message) {
  const [page, number] = message.by ?? [];
  if (page === OWN && number < count) return; // a newer change is under way
  told = message;
  const { setting, choices, limits } = told;
  for (const element of document.querySelectorAll("[data-set]")) {
    const name = element.dataset.set;
    if (element.tagName === "SELECT") {
      fill(element, choices[name] ?? (name === "rate" ? RATES : DECAYS));
      if (![...element.options].some((option) => option.value === String(setting[name]))) {
        element.add(new Option(setting[name], setting[name]));
      }
    }
    if (document.activeElement !== element || element.type !== "number") element.value = setting[name];
    const output = element.parentElement.querySelector("output");
    if (output) output.textContent = setting[name];
  }
  $("parameters").textContent = `· ${told.parameters.toLocaleString("en")} parameters`;
  $("fewer").disabled = setting.layers.length === 0;
  $("more").disabled = setting.layers.length === limits.layers;
  if (wanted === null) wanted = fromAddress(setting);
  columns();
  requestDraw();
  if (!$("code").classList.contains("hidden")) ask({ ask: "program" });
}

/** If the address has a setting, ask for it once. */
function fromAddress(setting) {
  if (location.hash.length < 2) return {};
  try {
    const given = JSON.parse(decodeURIComponent(location.hash.slice(1)));
    ask({ ask: "set", setting: { ...setting, ...given } });
    return given;
  } catch {
    say("The address has no setting that can be read.");
    return {};
  }
}

function change(changes) {
  const setting = { ...told.setting, ...changes };
  told.setting = setting; // the next change may come before the answer
  ask({ ask: "set", setting, by: [OWN, ++count] });
  history.replaceState(null, "", `${location.pathname}${location.search}#${encodeURIComponent(JSON.stringify(setting))}`);
}

for (const element of document.querySelectorAll("[data-set]")) {
  element.onchange = () => {
    const isNumber = element.type === "range" || element.type === "number" || ["rate", "decay"].includes(element.dataset.set);
    change({ [element.dataset.set]: isNumber ? Number(element.value) : element.value });
  };
  element.oninput = () => {
    const output = element.parentElement.querySelector("output");
    if (output) output.textContent = element.value;
  };
}

$("fewer").onclick = () => change({ layers: told.setting.layers.slice(0, -1) });
$("more").onclick = () => change({ layers: [...told.setting.layers, 4] });
$("play").onclick = () => ask({ ask: frame?.playing ? "pause" : "play" });
$("step").onclick = () => ask({ ask: "step" });
$("epoch").onclick = () => ask({ ask: "epoch" });
$("again").onclick = () => ask({ ask: "again" });
$("speed").onchange = () => ask({ ask: "speed", value: $("speed").value === "" ? null : Number($("speed").value) });
$("held").onchange = () => requestDraw();
$("share").onclick = async () => {
  const { origin, pathname } = location;
  const link = `${origin}${pathname}#${encodeURIComponent(JSON.stringify(told.setting))}`;
  history.replaceState(null, "", `${pathname}${location.search}#${encodeURIComponent(JSON.stringify(told.setting))}`);
  await navigator.clipboard?.writeText(link).catch(() => {});
  $("share").textContent = "In the address";
  setTimeout(() => { $("share").textContent = "Share"; }, 2000);
};

// ---- drawing ----

const curves = new LineChart($("curves"), { title: "loss", height: 170 });
const values = new LineChart($("values"), { title: "its values", unit: "step", height: 150 });

let isAsked = false;
function requestDraw() {
  if (isAsked) return;
  isAsked = true;
  requestAnimationFrame(() => {
    isAsked = false;
    draw();
  });
}

function draw() {
  if (told === null || frame === null || !fits()) return;
  $("play").textContent = frame.playing ? "Pause" : "Play";
  $("epochs").textContent = frame.epoch.toLocaleString("en", { maximumFractionDigits: frame.epoch < 100 ? 1 : 0 });
  $("steps").textContent = frame.step.toLocaleString("en");
  $("rate").textContent = frame.rate ? Math.round(frame.rate).toLocaleString("en") : "–";
  if (frame.problem) say(frame.problem);
  else if ($("gone").textContent.includes("diverged")) say("");
  drawRegions();
  drawNet();
  drawCurves();
  drawFollowed();
  document.body.dataset.frames = Number(document.body.dataset.frames ?? 0) + 1;
}

/** Whether the frame is of the net that is chosen: a frame of the one before may still come. */
function fits() {
  const sizes = [2, ...told.setting.layers, told.outputs], { weights } = frame;
  return weights.length === sizes.length - 1 && weights.every(({ shape }, i) => shape[0] === sizes[i] && shape[1] === sizes[i + 1]);
}

const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const mixed = (a, b, share) => a.map((value, i) => Math.round(value + share * (b[i] - value)));
const BLUE = rgb("#0072B2"), ORANGE = rgb("#E69F00");

/** The colour of a number of −1 … 1: blue, the page, orange. */
const signed = (value, page) => mixed(page, value < 0 ? BLUE : ORANGE, Math.min(1, Math.abs(value)));

function drawRegions() {
  const { output } = frame, [rows, wide, count] = output.shape, page = rgb(colour("--card"));
  const canvas = $("regions"), pen = canvas.getContext("2d"), range = told.limits.range;
  const small = new OffscreenCanvas(wide, rows), brush = small.getContext("2d"), image = brush.createImageData(wide, rows);
  for (let k = 0; k < rows * wide; k++) {
    let paint;
    if (told.classes) {
      let best = 0;
      for (let c = 1; c < count; c++) if (output[k * count + c] > output[k * count + best]) best = c;
      const sure = (output[k * count + best] - 1 / count) / (1 - 1 / count);
      paint = mixed(page, rgb(CLASSES[best]), 0.1 + 0.45 * (Number.isFinite(sure) ? sure : 0));
    } else paint = signed(0.8 * output[k], page);
    image.data.set([...paint, 255], 4 * ((rows - 1 - Math.floor(k / wide)) * wide + (k % wide)));
  }
  brush.putImageData(image, 0, 0);
  pen.drawImage(small, 0, 0, canvas.width, canvas.height);
  const points = (x, y, hollow) => {
    for (let i = 0; i < y.length; i++) {
      pen.beginPath();
      pen.arc(((x[2 * i] + range) / (2 * range)) * canvas.width, (1 - (x[2 * i + 1] + range) / (2 * range)) * canvas.height, 4.2, 0, 7);
      const paint = told.classes ? CLASSES[y[i]] : `rgb(${signed(y[i], page)})`;
      pen.fillStyle = hollow ? colour("--card") : paint;
      pen.fill();
      pen.lineWidth = hollow ? 2 : 1;
      pen.strokeStyle = hollow ? paint : colour("--card");
      pen.stroke();
    }
  };
  points(told.x, told.y, false);
  if ($("held").checked) points(told.held_x, told.held_y, true);
  const kind = told.classes ? "the classes" : "the numbers";
  canvas.setAttribute("aria-label", `${kind} over the plane, with ${told.y.length} points of the training and ${told.held_y.length} held out`);
}

function drawCurves() {
  const { loss: own, val_loss: held } = frame.curves;
  curves.show(!own ? [] : [
    { name: "training", x: own.epoch, y: own.value, key: "--blue" },
    { name: "held out", x: held.epoch, y: held.value, key: "--red", dashed: true },
  ]);
  const last = (name) => frame.curves[name]?.value.at(-1);
  const metric = told.classes ? "accuracy" : "mae";
  const words = told.classes ? "right" : "off by";
  const shown = (x) => (x === undefined ? "–" : told.classes ? `${(100 * x).toFixed(1)} %` : text(x));
  $("losses").textContent =
    `Loss ${text(last("loss"))} (solid), held out ${text(last("val_loss"))} (dashed); ` +
    `${words} ${shown(last(metric))}, held out ${shown(last(`val_${metric}`))}.`;
  $("losses").dataset.loss = last("loss") ?? "";
  $("losses").dataset.held = last("val_loss") ?? "";
}

// ---- the net ----

function places(width) {
  const sizes = [2, ...told.setting.layers, told.outputs];
  const tallest = Math.max(...sizes), height = Math.max(180, tallest * TALL + 10);
  const across = (i) => 44 + (i * (width - 88)) / (sizes.length - 1);
  return { sizes, height, across, up: (i, j) => height / 2 + (j - (sizes[i] - 1) / 2) * TALL };
}

function columns() {
  const { across, sizes } = places($("graph").parentElement.clientWidth - 34);
  const parts = told.setting.layers.map((units, i) => {
    const part = document.createElement("div");
    part.style.left = `${across(i + 1)}px`;
    const button = (sign, said, to) => {
      const found = Object.assign(document.createElement("button"), { textContent: sign });
      found.setAttribute("aria-label", `${said} layer ${i + 1}`);
      found.disabled = to < 1 || to > told.limits.units;
      found.onclick = () => change({ layers: told.setting.layers.map((n, k) => (k === i ? to : n)) });
      return found;
    };
    const count = Object.assign(document.createElement("span"), { textContent: units });
    part.append(button("−", "a unit less in", units - 1), count, button("+", "a unit more in", units + 1));
    return part;
  });
  $("columns").replaceChildren(...parts);
  $("columns").dataset.sizes = sizes.join(" ");
}

function drawNet() {
  const canvas = $("graph"), ratio = devicePixelRatio || 1, width = canvas.parentElement.clientWidth - 34;
  layout = { ...places(width), width, links: [] };
  const { sizes, height, across, up } = layout;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d"), page = rgb(colour("--card"));
  pen.scale(ratio, ratio);
  frame.weights.forEach((weights, layer) => {
    const [from, to] = weights.shape, largest = Math.max(1e-9, ...weights.map(Math.abs));
    for (let i = 0; i < from; i++) for (let j = 0; j < to; j++) {
      const value = weights[i * to + j], share = Math.abs(value) / largest;
      const [x, y, xx, yy] = [across(layer) + UNIT / 2, up(layer, i), across(layer + 1) - UNIT / 2, up(layer + 1, j)];
      pen.strokeStyle = `rgb(${signed(Math.sign(value) * (0.15 + 0.85 * share), page)})`;
      pen.lineWidth = 0.4 + 3.6 * share;
      pen.beginPath();
      pen.moveTo(x, y);
      pen.bezierCurveTo((x + xx) / 2, y, (x + xx) / 2, yy, xx, yy);
      pen.stroke();
      layout.links.push({ layer, i, j, value, x, y, xx, yy });
    }
  });
  sizes.forEach((count, layer) => {
    for (let j = 0; j < count; j++) drawUnit(pen, layer, j, across(layer), up(layer, j), page);
  });
  canvas.setAttribute("aria-label", `a net of ${sizes.join(", ")} units`);
}

function drawUnit(pen, layer, j, x, y, page) {
  const last = layout.sizes.length - 1, [left, top] = [x - UNIT / 2, y - UNIT / 2];
  if (layer > 0 && layer < last) {
    const maps = frame.units[layer - 1], [, rows, wide] = maps.shape;
    const small = new OffscreenCanvas(wide, rows), brush = small.getContext("2d"), image = brush.createImageData(wide, rows);
    for (let k = 0; k < rows * wide; k++) {
      const value = (maps[j * rows * wide + k] - 128) / 127;
      image.data.set([...signed(value, page), 255], 4 * ((rows - 1 - Math.floor(k / wide)) * wide + (k % wide)));
    }
    brush.putImageData(image, 0, 0);
    pen.drawImage(small, left, top, UNIT, UNIT);
  } else {
    pen.fillStyle = layer === last && told.classes ? CLASSES[j] : colour("--track");
    pen.fillRect(left, top, UNIT, UNIT);
    pen.fillStyle = layer === last && told.classes ? "#fff" : colour("--ink");
    pen.font = "600 13px system-ui, sans-serif";
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText(layer === 0 ? ["x₁", "x₂"][j] : told.classes ? String(j) : "y", x, y);
  }
  pen.strokeStyle = colour("--line");
  pen.lineWidth = 1;
  pen.strokeRect(left, top, UNIT, UNIT);
}

function nearestLink(event) {
  if (layout === null) return null;
  let nearest = null, least = 9;
  for (const link of layout.links) {
    const t = (event.offsetX - link.x) / (link.xx - link.x);
    if (t < 0 || t > 1) continue;
    const u = 1 - t, away = Math.abs(u ** 3 * link.y + 3 * u * u * t * link.y + 3 * u * t * t * link.yy + t ** 3 * link.yy - event.offsetY);
    if (away < least) [nearest, least] = [link, away];
  }
  return nearest;
}

function named(layer, i, j) {
  const from = layer === 0 ? ["x₁", "x₂"][i] : `unit ${i + 1} of layer ${layer}`;
  const to = layer === layout.sizes.length - 2 ? `output ${told.classes ? j : "y"}` : `unit ${j + 1} of layer ${layer + 1}`;
  return `The weight from ${from} to ${to}`;
}

$("graph").onpointermove = (event) => {
  const link = nearestLink(event);
  if (link) $("pointed").textContent = `${named(link.layer, link.i, link.j)} is ${link.value.toFixed(4)}. Click to follow it.`;
};
$("graph").onclick = (event) => {
  const link = nearestLink(event);
  if (link) ask({ ask: "follow", place: [link.layer, link.i, link.j] });
};
$("leave").onclick = () => ask({ ask: "follow", place: null });

function drawFollowed() {
  const found = frame.followed;
  $("follow").classList.toggle("hidden", !found);
  if (!found) return;
  $("followtitle").textContent = named(...found.place);
  $("value").textContent = found.value.toPrecision(6);
  $("gradient").textContent = text(found.gradient);
  $("difference").textContent = text(found.difference);
  $("epsilon").textContent = found.epsilon;
  $("count").textContent = found.points;
  const rows = found.rows.map(({ x, h, delta, product }) => {
    const row = document.createElement("tr");
    const cells = [`(${x.map((a) => a.toFixed(2)).join(", ")})`, text(h), text(delta), text(product)];
    row.append(...cells.map((cell, i) => Object.assign(document.createElement("td"), { textContent: cell, className: i ? "number" : "" })));
    return row;
  });
  $("products").replaceChildren(...rows);
  values.show([{ name: "value", x: found.steps, y: found.values, key: "--strong" }]);
}

// ---- lesson and program ----

function showLesson() {
  const [title, words] = STEPS[lesson];
  $("lessontitle").textContent = `${lesson + 1} of ${STEPS.length}: ${title}`;
  $("lessontext").textContent = words;
  $("before").disabled = lesson === 0;
  $("after").disabled = lesson === STEPS.length - 1;
}
$("before").onclick = () => { lesson--; showLesson(); };
$("after").onclick = () => { lesson++; showLesson(); };
$("take").onclick = () => { ask({ ask: "pause" }); change(STEPS[lesson][2]); };
showLesson();

for (const name of ["lesson", "code"]) {
  $(`tab-${name}`).onclick = () => {
    for (const other of ["lesson", "code"]) {
      $(other).classList.toggle("hidden", other !== name);
      $(`tab-${other}`).setAttribute("aria-selected", other === name);
    }
    if (name === "code") ask({ ask: "program" });
  };
}
function showProgram(message) {
  $("text").textContent = message.text;
}
$("copy").onclick = async () => {
  await navigator.clipboard?.writeText($("text").textContent).catch(() => {});
  $("copy").textContent = "Copied";
  setTimeout(() => { $("copy").textContent = "Copy"; }, 2000);
};

themeButton($("theme"), requestDraw);
new ResizeObserver(() => { if (told) { columns(); requestDraw(); } }).observe($("net"));
