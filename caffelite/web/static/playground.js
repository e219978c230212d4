// The playground's page: it draws frames, and sends what is chosen.

import { LineChart, formatNumber } from "./charts.js";
import { connect, themeButton } from "./connection.js";
import { STEPS, pulse } from "./lesson.js";
import { Net, unitWords, weightName } from "./net.js";
import { drawBars, forgetKernel, showKernel, showKernels, showLoop, showWeight, showWeightKernels } from "./program.js";
import { drawDataset, drawPredictions, drawUnit } from "./predictions.js";
import { $, drawNextFrame, make } from "./page.js";
import { drawLetters, drawNext, readLetters, showWritten } from "./writing.js";

const RATES = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10];
const DECAYS = [0, 0.0001, 0.001, 0.01, 0.1, 1];
const SPEEDS = [["1 step a second", 1], ["5", 5], ["30", 30], ["300", 300], ["as fast as it goes", null]];
const LONGEST = 2 ** 20; // bytes of a message to the server
const TABS = ["program", "code"];
const MEANINGS = {
  plane: "Each unit shows its output over the plane: orange is above 0, blue below. Point at one, or tap it, to see it large. A unit that is crossed out is dead: its output is 0 everywhere.",
  image: "The units of the first layer show their weights: orange is above 0, blue below. The others have a bar for each class: their mean output over the images of that class.",
  text: "The first layer is an embedding: it turns each letter into a few numbers. Layers with ↻ are recurrent: their units also hear what the whole layer said one letter earlier. Each unit shows its output after every letter that you typed: orange is above 0, blue below. On the right, the more a letter is filled, the more likely it comes next.",
  bars: "Each unit has a bar for each class: its mean output over the rows of that class. If the target is a number, the rows are sorted by it and cut into eight parts, with a bar for each.",
};

const START_SPEED = 300; // steps a second of a page that begins by itself
const IS_SITE = document.body.classList.contains("site"); // its engine is in the page, and not in a program on this machine

let config = null, frame = null, lesson = null, isLinked = false, unit = null, thumbnails = {};

const PAGE_NAME = Math.random().toString(36).slice(2); // the name of this page, among others that are open
let count = 0; // of the changes that it has asked for

const HANDLERS = { // of messages, by their kinds
  setting: showSetting,
  frame: (message) => { frame = message; requestDraw(); },
  kernels: (message) => { showKernels(message, askLoop); showWeightKernels(message.touching, askLoop); },
  kernel: (message) => { kernelStep = message.step; showKernel(message); },
  loop: showLoop,
  code: showCode,
  thumbnails: ({ data }) => { thumbnails = data; drawThumbnails(); },
  refused: ({ why }) => showMessage(`This is not possible: ${why}`),
};

const ask = connect(
  (message) => HANDLERS[message.kind]?.(message),
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
    showValue(element, name === "points" ? limits.points : setting[name]);
  }
  showDatasets();
  showFeatures();
  const isText = config.picture === "text", unused = isText ? ["noise", "activation", "norm", "loss"] : setting.data === "table" ? ["noise"] : [];
  for (const name of ["noise", "activation", "norm", "loss"]) {
    document.querySelector(`[data-set=${name}]`).closest("label").classList.toggle("hidden", unused.includes(name));
  }
  $("rows").textContent = isText ? "names" : "points";
  $("names").classList.toggle("hidden", !isText);
  $("choice").classList.toggle("hidden", isText);
  $("column").classList.toggle("hidden", setting.data !== "table");
  const leftOut = table?.left_out.length ? ` Skipped because they aren't numeric: ${table.left_out.join(", ")}.` : "";
  $("table").textContent = setting.data === "table" ? `${table.name}: ${table.rows.toLocaleString("en")} rows.${leftOut}` : "";
  const units = setting.layers.length ? `${MEANINGS[config.picture]} Drag a layer by its ⠿. ` : ""; // of hidden layers
  $("meaning").textContent = `${units}A link's colour is the sign of its weight, its width the size.`;
  $("mistakes").hidden = config.picture !== "image";
  $("heldlabel").classList.toggle("hidden", config.picture !== "plane");
  $("parameters").textContent = `· ${config.parameters.toLocaleString("en")} parameters`;
  $("fewer").disabled = setting.layers.length === 0;
  $("more").disabled = setting.layers.length === limits.layers;
  if (lesson !== null && setting.data !== STEPS[lesson][2].data) leaveLesson();
  net.showLayers(config);
  requestDraw();
  requestTab();
  if (!isLinked) {
    isLinked = true;
    readAddress();
  }
}

/** Ask for what the address has: a setting, or a step of the lesson. Without it, the page of a site begins by itself. */
function readAddress() {
  const number = Number(location.hash.match(/^#lesson=(\d+)$/)?.[1]);
  if (number >= 1 && number <= STEPS.length) {
    takeStep(number - 1);
    return;
  }
  if (location.hash.length > 1) {
    try {
      const setting = { ...config.setting, ...JSON.parse(decodeURIComponent(location.hash.slice(1))) };
      ask({ ask: "set", setting, by: [PAGE_NAME, ++count] });
    } catch {
      showMessage("The address has no setting that can be read.");
    }
  }
  if (IS_SITE) begin(START_SPEED);
}
window.onhashchange = readAddress;

let isPlaying = false; // not for a step or an epoch only

/** Play at this speed. Nothing moves by itself for people who want less motion. */
function begin(speed) {
  $("speed").value = speed;
  $("speed").onchange();
  play(!matchMedia("(prefers-reduced-motion: reduce)").matches);
}

function play(should) {
  isPlaying = should;
  ask({ ask: should ? "play" : "pause" });
}

function showValue(element, value) {
  const output = element.parentElement.querySelector("output");
  if (output) output.textContent = element.dataset.set === "split" ? `${Math.round(100 * value)} %` : value;
}

// ---- the data and their features ----

function showDatasets() {
  const names = config.choices.data, { data } = config.setting;
  if ($("data").dataset.names !== names.join()) {
    $("data").dataset.names = names.join();
    $("data").replaceChildren(...names.map((name) => {
      const canvas = make("canvas", { width: 80, height: 80 });
      const button = make("button", { role: "radio", onclick: () => chooseData(name), onkeydown: moveChoice }, canvas, name);
      button.dataset.name = name;
      return button;
    }));
    drawThumbnails();
  }
  for (const button of $("data").children) {
    const isChosen = button.dataset.name === data;
    button.setAttribute("aria-checked", isChosen);
    button.tabIndex = isChosen ? 0 : -1;
  }
}

const WHOLE = { table: null, names: 600 }; // the number of points of data that are taken whole; a table has as many as it has
let pointsBefore = 300; // the number of points before such data

function chooseData(data) {
  const { points, data: before } = config.setting;
  if (!(before in WHOLE)) pointsBefore = points;
  change({ data, points: WHOLE[data] ?? (data === "table" ? points : pointsBefore) });
}

/** The arrow keys choose the neighbour, as in any group of radio buttons. */
function moveChoice(event) {
  const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key], buttons = [...$("data").children];
  if (!step) return;
  event.preventDefault();
  const next = buttons.at((buttons.indexOf(event.currentTarget) + step) % buttons.length);
  next.focus();
  next.click();
}

function drawThumbnails() {
  for (const button of $("data").children) drawDataset(button.firstChild, thumbnails[button.dataset.name]);
}

function showFeatures() {
  const { features } = config.limits, chosen = config.setting.features;
  $("features").classList.toggle("hidden", features.length === 0);
  $("featurelist").replaceChildren(...features.map((name) => {
    const isChosen = chosen.includes(name);
    const toggle = () => change({ features: features.filter((other) => (other === name) !== chosen.includes(other)) });
    return make("button", { "aria-pressed": isChosen, disabled: isChosen && chosen.length === 1, onclick: () => {
      toggle();
      $("featurelist").children[features.indexOf(name)].focus();
    } }, name);
  }));
}

function change(changes) {
  const setting = { ...config.setting, ...changes };
  config.setting = setting; // the next change may come before the answer
  for (const name of Object.keys(changes)) document.querySelector(`[data-set=${name}]`)?.classList.remove("pulse");
  ask({ ask: "set", setting, by: [PAGE_NAME, ++count] });
  if (isPlaying && frame?.problem) play(true); // it has diverged, or its learning rate has fallen to 0
  if (lesson === null) writeAddress();
}

/** Put the setting into the address, or a step of the lesson, to which people come back. */
function writeAddress(words = encodeURIComponent(JSON.stringify(config.setting))) {
  history.replaceState(null, "", `${location.href.replace(/#.*/, "")}#${words}`);
}

for (const element of document.querySelectorAll("[data-set]")) {
  element.onchange = () => {
    const isNumber = element.type === "range" || element.type === "number" || ["rate", "decay"].includes(element.dataset.set);
    change({ [element.dataset.set]: isNumber ? Number(element.value) : element.value });
  };
  element.oninput = () => showValue(element, element.value);
}

readLetters(ask);
$("fewer").onclick = () => change({ layers: config.setting.layers.slice(0, -1) });
$("more").onclick = () => change({ layers: [...config.setting.layers, 4] });
$("play").onclick = () => play(!frame?.playing);
$("kernel").onclick = () => {
  openTab("program");
  ask({ ask: "kernel" });
};
$("measure").onclick = () => ask({ ask: "kernels" });
for (const name of ["step", "epoch", "again"]) $(name).onclick = () => {
  isPlaying &&= name === "again";
  ask({ ask: name });
};
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
    if (!(config.setting.data in WHOLE)) pointsBefore = config.setting.points;
    ask(message);
  }
};
$("log").onchange = () => curves.set({ log: $("log").checked });
$("held").onchange = () => requestDraw();
$("share").onclick = async () => {
  writeAddress();
  if (config.setting.data === "table") {
    showMessage("Your table stays on this machine, so its net can't be shared.");
  } else if (IS_SITE || config.site) {
    const page = IS_SITE ? location.href.replace(/#.*/, "") : `${config.site}_static/playground/index.html`;
    await copy(`${page}${location.hash}`, $("share"), "Share", "Copied");
  } else if (window.frameElement?.connect) showMessage("In a notebook, a net has no address: copy its program below.");
  else await copy(location.href, $("share"), "Share", "Copied, for this machine");
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
  show: (place) => {
    unit = place;
    $("output").style.minHeight = place && `${$("output").offsetHeight}px`; // the picture may leave it, on a phone
    document.body.classList.toggle("large", place !== null);
    requestDraw();
  },
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
  if (unit && !(unit[1] < frame.units[unit[0]]?.shape[0])) net.showUnit(null); // the net has become smaller
  const isText = config.picture === "text", words = isText ? "What the net writes" : "What the net predicts";
  const title = unit ? unitWords(config, frame, ...unit) : words;
  if ($("outputtitle").textContent !== title) $("outputtitle").textContent = title; // each change is read aloud
  if (!isText && $("regions").height !== $("regions").width) $("regions").height = $("regions").width;
  if (unit) (isText ? drawLetters : drawUnit)($("regions"), config, frame, unit);
  else if (isText) drawNext($("regions"), config, frame);
  else drawPredictions($("regions"), $("mistakes"), config, frame, $("held").checked);
  net.draw(config, frame);
  document.body.dataset.frames = Number(document.body.dataset.frames ?? 0) + 1;
}

function showNumbers() {
  $("epochs").textContent = frame.epoch.toLocaleString("en", { maximumFractionDigits: frame.epoch < 100 ? 1 : 0 });
  $("steps").textContent = frame.step.toLocaleString("en");
  $("rate").textContent = frame.rate ? Math.round(frame.rate).toLocaleString("en") : "–";
  if (frame.problem) showMessage(frame.problem);
  else if ($("gone").textContent.includes("diverged")) showMessage("");
  if (config.picture === "text") showWritten(frame);
  drawCurves();
  drawWeight();
  refreshCode();
}

const CODE_INTERVAL = 1000; // milliseconds between two programs while it plays
let codeAsked = 0; // when the last one was asked for

/** Ask for the program again if it has other epochs than the page. */
function refreshCode() {
  const now = performance.now();
  if (!isOpen("code") || Math.max(1, Math.ceil(frame.epoch)) === codeEpochs) return;
  if (frame.playing && now - codeAsked < CODE_INTERVAL) return;
  codeAsked = now;
  ask({ ask: "code" });
}

/** Whether the frame is of the net that is chosen: a frame of the one before may still come. */
function isCurrentFrame() {
  const inputs = Array.isArray(config.inputs) ? config.inputs.length : config.inputs;
  const sizes = [inputs, ...config.setting.layers, config.outputs], { weights } = frame;
  return weights.length === sizes.length - 1 && weights.every(({ shape }, i) => shape[0] === sizes[i] && shape[1] === sizes[i + 1]);
}

function drawCurves() {
  const { loss: own, val_loss: held } = frame.curves;
  const isText = config.picture === "text", ignorance = Math.log(config.outputs);
  curves.show(!own ? [] : [
    { name: "training", x: own.epoch, y: own.value, key: "--blue" },
    { name: "test", x: held.epoch, y: held.value, key: "--red", dashed: true },
    ...(isText ? [{ name: "guessing", x: own.epoch, y: own.value.map(() => ignorance), key: "--soft", dashed: true }] : []),
  ]);
  const last = (name) => frame.curves[name]?.value.at(-1);
  const metric = config.classes ? "accuracy" : "mae";
  const hasDiverged = frame.problem?.includes("diverged");
  const format = (x) => (config.classes ? `${(100 * x).toFixed(1)} % right` : `on average ${formatNumber(Number(x.toPrecision(2)))} off`);
  $("losses").textContent = hasDiverged ? "The loss has exploded." : last(metric) === undefined ? "The curves begin after the first epoch." :
    `Training: ${format(last(metric))}. Test: ${format(last(`val_${metric}`))}.` +
    (isText ? ` Guessing among ${config.outputs} letters costs −ln 1/${config.outputs} = ${ignorance.toFixed(2)}.` : "");
  $("losses").dataset.loss = last("loss") ?? "";
  $("losses").dataset.held = last("val_loss") ?? "";
}

// ---- follow one number ----

let asked = null; // the place of a weight that is not shown yet

function follow(place) {
  asked = String(place);
  ask({ ask: "follow", place });
  if (!place) return;
  ["followlayer", "followfrom", "followto"].forEach((id, i) => { $(id).value = place[i] + 1; });
  ask({ ask: "kernels" });
}
$("choice").onsubmit = (event) => {
  event.preventDefault();
  follow(["followlayer", "followfrom", "followto"].map((id) => Number($(id).value) - 1));
};
$("leave").onclick = () => follow(null);
$("edit").onsubmit = (event) => {
  event.preventDefault();
  ask({ ask: "weight", value: $("newvalue").valueAsNumber });
  if (isOpen("code")) ask({ ask: "code" });
};

function drawWeight() {
  const weight = frame.followed;
  $("follow").classList.toggle("hidden", !weight);
  if (!weight) return;
  $("followtitle").textContent = weightName(config, ...weight.place);
  showWeight(weight);
  if (String(weight.place) === asked) {
    asked = null;
    $("newvalue").value = Number(weight.value.toPrecision(4));
    $("edit").scrollIntoView({ block: "nearest" });
  }
  values.show([{ name: "value", x: weight.steps, y: weight.values, key: "--strong" }]);
}

// ---- lesson and program ----

const LESSON = `Lesson: ${STEPS.length} steps, from one neuron to names`;
$("lessontitle").textContent = LESSON;

/** Set up a step of the lesson, show its text, and play it at its speed. */
function takeStep(number) {
  const [title, words, setting, speed, controls, [page, linkWords]] = STEPS[number], pages = IS_SITE ? "../../" : config.site;
  lesson = number;
  $("lessontitle").textContent = `${number + 1} of ${STEPS.length}: ${title}`;
  $("lessontext").textContent = words;
  $("take").textContent = "Start again";
  for (const id of ["before", "after", "lessontext", "lessonplaces"]) $(id).classList.remove("hidden");
  $("lessonlink").classList.toggle("hidden", !pages);
  $("lessonlink").replaceChildren("Read on: ", make("a", { href: `${pages}${page}` }, linkWords));
  $("take").className = "link small";
  $("before").disabled = number === 0;
  $("after").disabled = number === STEPS.length - 1;
  play(false);
  change({ ...setting, features: ["x₁", "x₂"] });
  writeAddress(`lesson=${number + 1}`);
  pulse(controls);
  begin(speed);
}

/** Other data are no longer those of the lesson. */
function leaveLesson() {
  lesson = null;
  writeAddress();
  pulse([]);
  $("lessontitle").textContent = LESSON;
  $("take").textContent = "Begin";
  $("take").className = "main";
  for (const id of ["before", "after", "lessontext", "lessonplaces", "lessonlink"]) $(id).classList.add("hidden");
}
$("before").onclick = () => takeStep(lesson - 1);
$("after").onclick = () => takeStep(lesson + 1);
$("take").onclick = () => takeStep(lesson ?? 0);

const isOpen = (tab) => !$(tab).classList.contains("hidden");

/** Ask for what the open tab shows. */
function requestTab() {
  if (isOpen("code")) ask({ ask: "code" });
  if (isOpen("program") || frame?.followed) ask({ ask: "kernels" });
}

let codeEpochs = null, isCopying = false; // the epochs of the program, and whether the next one is to be copied

function showCode({ text, epochs }) {
  codeEpochs = epochs;
  $("text").textContent = text;
  if (isCopying) copy(text, $("copy"), "Copy", "Copied");
  isCopying = false;
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
$("copy").onclick = () => {
  isCopying = true;
  ask({ ask: "code" });
};

$("rest").open = innerWidth > 760;
themeButton($("theme"), () => { requestDraw(); drawBars(); drawThumbnails(); });
new ResizeObserver(() => { if (config) { net.showLayers(config); drawBars(); requestDraw(); } }).observe($("net"));
