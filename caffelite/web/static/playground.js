// The playground's page: it draws frames, and sends what is chosen.

import { LineChart, formatNumber } from "./charts.js";
import { connect, themeButton } from "./connection.js";
import { STEPS } from "./lesson.js";
import { Net, weightName } from "./net.js";
import { drawBars, forgetKernel, showKernel, showKernels, showLoop, showWeightKernels } from "./program.js";
import { drawPredictions } from "./predictions.js";
import { $, drawNextFrame, make } from "./page.js";

const RATES = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10];
const DECAYS = [0, 0.0001, 0.001, 0.01, 0.1, 1];
const SPEEDS = [["1 step a second", 1], ["5", 5], ["30", 30], ["300", 300], ["as fast as it goes", null]];
const LONGEST = 2 ** 20; // bytes of a message to the server
const TABS = ["program", "code"];
const MEANINGS = {
  plane: "Each unit shows its output over the plane: orange is above 0, blue below.",
  image: "The units of the first layer show their weights: orange is above 0, blue below. The others have a bar for each class: their mean output over the points of that class.",
  bars: "Each unit has a bar for each class: its mean output over the rows of that class. If y is a number, there is a bar for each eighth of the rows, ordered by y.",
};

let config = null, frame = null, lesson = null, linkedSetting = null;

const PAGE_NAME = Math.random().toString(36).slice(2); // the name of this page, among others that are open
let count = 0; // of the changes that it has asked for

const ask = connect(
  (message) => {
    if (message.kind === "setting") showSetting(message);
    else if (message.kind === "frame") { frame = message; requestDraw(); }
    else if (message.kind === "kernels") {
      showKernels(message, askLoop);
      showWeightKernels(message.touching, askLoop);
    } else if (message.kind === "kernel") {
      kernelStep = message.step;
      showKernel(message);
    } else if (message.kind === "loop") showLoop(message);
    else if (message.kind === "code") $("text").textContent = message.text;
    else if (message.kind === "refused") showMessage(`This is not possible: ${message.why}`);
  },
  (why) => showMessage(why === null ? "" : why.replace("program that trains", "playground's program")),
);

const askLoop = (kernel) => ask({ ask: "loop", kernel });
let kernelStep = null; // the number of steps that were done when a kernel ran

function showMessage(what) {
  $("gone").textContent = what;
  $("gone").classList.toggle("hidden", what === "");
}

// ---- choices ----

for (const [name, value] of SPEEDS) $("speed").add(new Option(name, value ?? ""));
$("speed").value = "";

function fill(select, values) {
  if ([...select.options].map(({ value }) => value).join() === values.join()) return;
  select.replaceChildren(...values.map((value) => new Option(value, value)));
}

function showSetting(message) {
  const [page, number] = message.by ?? [];
  if (page === PAGE_NAME && number < count) return; // a newer change is under way
  config = message;
  const { setting, choices, limits, table } = config;
  if (page !== PAGE_NAME) $("speed").value = config.speed ?? ""; // that another page may have chosen
  config.labels = config.labels ?? Array.from({ length: config.outputs }, (_, c) => String(c));
  for (const element of document.querySelectorAll("[data-set]")) {
    const name = element.dataset.set;
    if (element.tagName === "SELECT") {
      fill(element, choices[name] ?? (name === "rate" ? RATES : DECAYS));
      if (setting[name] !== null && ![...element.options].some((option) => option.value === String(setting[name]))) {
        element.add(new Option(setting[name], setting[name]));
      }
    }
    if (document.activeElement !== element || element.type !== "number") element.value = setting[name];
    const output = element.parentElement.querySelector("output");
    if (output) output.textContent = name === "points" ? limits.points : setting[name];
  }
  document.querySelector("[data-set=noise]").disabled = setting.data === "table";
  $("column").classList.toggle("hidden", setting.data !== "table");
  const leftOut = table?.left_out.length ? ` These columns are no numbers, and are left out: ${table.left_out.join(", ")}.` : "";
  $("table").textContent = setting.data === "table" ? `${table.name}: ${table.rows.toLocaleString("en")} rows.${leftOut}` : "";
  $("meaning").textContent = `${MEANINGS[config.picture]} Links have the colour of their weight, and its size. Drag a layer by its ⠿.`;
  $("heldlabel").classList.toggle("hidden", config.picture !== "plane");
  $("parameters").textContent = `· ${config.parameters.toLocaleString("en")} parameters`;
  $("fewer").disabled = setting.layers.length === 0;
  $("more").disabled = setting.layers.length === limits.layers;
  if (linkedSetting === null) linkedSetting = readAddress(setting);
  net.showLayers(config);
  requestDraw();
  requestTab();
}

/** If the address has a setting, ask for it once. */
function readAddress(setting) {
  if (location.hash.length < 2) return {};
  try {
    const linked = JSON.parse(decodeURIComponent(location.hash.slice(1)));
    ask({ ask: "set", setting: { ...setting, ...linked } });
    return linked;
  } catch {
    showMessage("The address has no setting that can be read.");
    return {};
  }
}

function change(changes) {
  const setting = { ...config.setting, ...changes };
  config.setting = setting; // the next change may come before the answer
  ask({ ask: "set", setting, by: [PAGE_NAME, ++count] });
  writeAddress();
}

/** Put the setting into the address. */
function writeAddress() {
  history.replaceState(null, "", `${location.pathname}${location.search}#${encodeURIComponent(JSON.stringify(config.setting))}`);
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

$("fewer").onclick = () => change({ layers: config.setting.layers.slice(0, -1) });
$("more").onclick = () => change({ layers: [...config.setting.layers, 4] });
$("play").onclick = () => ask({ ask: frame?.playing ? "pause" : "play" });
$("kernel").onclick = () => {
  openTab("program");
  ask({ ask: "kernel" });
};
$("measure").onclick = () => ask({ ask: "kernels" });
for (const name of ["step", "epoch", "again"]) $(name).onclick = () => ask({ ask: name });
$("speed").onchange = () => ask({ ask: "speed", value: $("speed").value === "" ? null : Number($("speed").value) });
$("file").onchange = async () => {
  const [file] = $("file").files;
  $("file").value = "";
  if (!file) return;
  const message = { ask: "table", name: file.name, text: file.size < LONGEST ? await file.text() : "" };
  if (file.size >= LONGEST || new TextEncoder().encode(JSON.stringify(message)).length >= LONGEST) {
    showMessage(`${file.name} is too large: the playground takes at most half a megabyte.`);
  } else {
    showMessage("");
    ask(message);
  }
};
$("log").onchange = () => curves.set({ log: $("log").checked });
$("held").onchange = () => requestDraw();
$("share").onclick = async () => {
  writeAddress();
  await copy(`${location.origin}${location.pathname}${location.hash}`, $("share"), "Share", "In the address");
};

/** Copy a text, if the browser lets us. The button has other words for two seconds. */
async function copy(text, button, words, wordsThen) {
  await navigator.clipboard?.writeText(text).catch(() => {});
  button.textContent = wordsThen;
  setTimeout(() => { button.textContent = words; }, 2000);
}

// ---- drawing ----

const net = new Net($("graph"), $("columns"), {
  change: (layers) => change({ layers }),
  follow,
  point: (words) => { $("pointed").textContent = words; },
});

const curves = new LineChart($("curves"), { title: "loss", height: 170 });
const values = new LineChart($("values"), { title: "its values", unit: "step", height: 150 });

const requestDraw = drawNextFrame(draw);

const NUMBERS_INTERVAL = 200; // milliseconds between two numbers or curves; faster, nobody reads them
let numbersDrawn = 0; // when they were shown last

function draw() {
  if (config === null || frame === null || !isCurrentFrame()) return;
  $("play").textContent = frame.playing ? "Pause" : "Play";
  const now = performance.now();
  if (!frame.playing || now - numbersDrawn >= NUMBERS_INTERVAL) {
    numbersDrawn = now;
    showNumbers();
  }
  if (kernelStep !== frame.step) forgetKernel();
  drawPredictions($("regions"), $("mistakes"), config, frame, $("held").checked);
  net.draw(config, frame);
  document.body.dataset.frames = Number(document.body.dataset.frames ?? 0) + 1;
}

function showNumbers() {
  $("epochs").textContent = frame.epoch.toLocaleString("en", { maximumFractionDigits: frame.epoch < 100 ? 1 : 0 });
  $("steps").textContent = frame.step.toLocaleString("en");
  $("rate").textContent = frame.rate ? Math.round(frame.rate).toLocaleString("en") : "–";
  if (frame.problem) showMessage(frame.problem);
  else if ($("gone").textContent.includes("diverged")) showMessage("");
  drawCurves();
  drawWeight();
}

/** Whether the frame is of the net that is chosen: a frame of the one before may still come. */
function isCurrentFrame() {
  const inputs = Array.isArray(config.inputs) ? config.inputs.length : config.inputs;
  const sizes = [inputs, ...config.setting.layers, config.outputs], { weights } = frame;
  return weights.length === sizes.length - 1 && weights.every(({ shape }, i) => shape[0] === sizes[i] && shape[1] === sizes[i + 1]);
}

function drawCurves() {
  const { loss: own, val_loss: held } = frame.curves;
  curves.show(!own ? [] : [
    { name: "training", x: own.epoch, y: own.value, key: "--blue" },
    { name: "held out", x: held.epoch, y: held.value, key: "--red", dashed: true },
  ]);
  const last = (name) => frame.curves[name]?.value.at(-1);
  const metric = config.classes ? "accuracy" : "mae";
  const words = config.classes ? "right" : "off by";
  const format = (x) => (x === undefined ? "–" : config.classes ? `${(100 * x).toFixed(1)} %` : formatNumber(x));
  $("losses").textContent =
    `Loss ${formatNumber(last("loss"))} (solid), held out ${formatNumber(last("val_loss"))} (dashed); ` +
    `${words} ${format(last(metric))}, held out ${format(last(`val_${metric}`))}.`;
  $("losses").dataset.loss = last("loss") ?? "";
  $("losses").dataset.held = last("val_loss") ?? "";
}

// ---- follow one number ----

function follow(place) {
  ask({ ask: "follow", place });
  if (place) ask({ ask: "kernels" });
}
$("choice").onsubmit = (event) => {
  event.preventDefault();
  follow(["followlayer", "followfrom", "followto"].map((id) => Number($(id).value) - 1));
};
$("leave").onclick = () => follow(null);

function drawWeight() {
  const weight = frame.followed;
  $("follow").classList.toggle("hidden", !weight);
  if (!weight) return;
  $("followtitle").textContent = weightName(config, ...weight.place);
  $("value").textContent = weight.value.toPrecision(6);
  $("gradient").textContent = formatNumber(weight.gradient);
  $("difference").textContent = formatNumber(weight.difference);
  $("epsilon").textContent = weight.epsilon;
  $("count").textContent = weight.points;
  const rows = weight.rows.map(({ x, h, delta, product }, i) => {
    const point = x ? `(${x.map((a) => a.toFixed(2)).join(", ")})` : i + 1;
    const numbers = [h, delta, product].map((value) => make("td", { className: "number" }, formatNumber(value)));
    return make("tr", {}, make("td", {}, point), ...numbers);
  });
  $("products").replaceChildren(...rows);
  values.show([{ name: "value", x: weight.steps, y: weight.values, key: "--strong" }]);
}

// ---- lesson and program ----

$("lessontitle").textContent = `Lesson: ${STEPS.length} steps, from one neuron to the spiral`;

/** Set up a step of the lesson, with its speed, and show its text. */
function takeStep(number) {
  const [title, words, setting, speed] = STEPS[number];
  lesson = number;
  $("lessontitle").textContent = `${number + 1} of ${STEPS.length}: ${title}`;
  $("lessontext").textContent = words;
  $("take").textContent = "Set up again";
  for (const id of ["before", "after", "lessontext"]) $(id).classList.remove("hidden");
  $("take").classList.remove("main");
  $("before").disabled = number === 0;
  $("after").disabled = number === STEPS.length - 1;
  ask({ ask: "pause" });
  $("speed").value = speed;
  $("speed").onchange();
  change(setting);
}
$("before").onclick = () => takeStep(lesson - 1);
$("after").onclick = () => takeStep(lesson + 1);
$("take").onclick = () => takeStep(lesson ?? 0);

/** Ask for what the open tab shows. */
function requestTab() {
  if (!$("code").classList.contains("hidden")) ask({ ask: "code" });
  if (!$("program").classList.contains("hidden") || frame?.followed) ask({ ask: "kernels" });
}

function openTab(name) {
  for (const other of TABS) {
    $(other).classList.toggle("hidden", other !== name);
    $(`tab-${other}`).setAttribute("aria-selected", other === name);
  }
}
for (const name of TABS) {
  $(`tab-${name}`).onclick = () => {
    openTab(name);
    requestTab();
  };
}
$("copy").onclick = () => copy($("text").textContent, $("copy"), "Copy", "Copied");

themeButton($("theme"), () => { requestDraw(); drawBars(); });
new ResizeObserver(() => { if (config) { net.showLayers(config); drawBars(); requestDraw(); } }).observe($("net"));
