// The page of cl.live(): it draws what the training says, and sends what its buttons ask for.

import { addTools } from "./chart_tools.js";
import { LineChart, formatCount, formatNumber } from "./charts.js";
import { connect, themeButton } from "./connection.js";
import { decode, encode } from "./messages.js";
import { $, download, drawNextFrame, make } from "./page.js";
import { loadPageFile, readPageFile } from "./page_file.js";
import { drawAttention, drawFilters, drawMistakes, drawPictures, drawRegions, drawText, forgetDrawn, isNew, panel } from "./panels.js";
import { histogram } from "./pictures.js";

const ENDED = ["finished", "stopped", "failed"];
const MINOR_CURVES = ["learning rate", "steps per second"]; // curves that are not results: small, and below the others
const TIMING = "A copy of the model makes a few steps, and the training waits for them.";
const LIST_INTERVAL = 2000; // milliseconds after which the page of a folder asks for the list of runs again

// What the page knows: the run that trains now, those that were opened, and which of them it shows.
const liveRun = { name: null, parts: {} };
const loadedRuns = new Map(); // by name: runs from files or from the server
const runList = new Map(); // by name: what the list and the charts need of other runs
const comparedRuns = new Set(); // the names of runs that are drawn beside the one that is shown
let shownRun = liveRun, isConnected = false;
let isFolder = false; // whether the page is one of `caffelite live`: it shows the runs of a folder, and no training

// ---- messages ---------------------------------------------------------------------------------------------------------

const showMessage = (words, isBad = false) => {
  $("said").hidden = !words;
  $("said").textContent = words ?? "";
  $("said").classList.toggle("bad", isBad);
};

const fileContent = readPageFile(); // of a page that was saved as a file, which has no server
const makePageFile = fileContent ? null : loadPageFile();

const send = fileContent ? () => {} : connect(receive, (why) => {
  isConnected = why === null;
  const isOver = ENDED.includes(liveRun.parts.status?.state);
  if (isConnected) showMessage(null);
  else if (isFolder) showMessage("The program that serves these runs has ended. This page stays as it is.");
  else if (isOver) showMessage("The training has ended, and so has its server. This page stays as it is.");
  else showMessage(why, true);
  drawControls();
});

function receive(message) {
  const { kind } = message;
  if (kind === "saved") return download(message.name, new Blob([message.content]));
  if (kind === "refused") return showMessage(`Not done: ${message.why}.`, true);
  if (kind === "run") return openRun(message);
  if (kind === "ssh") {
    $("ssh").hidden = false;
    return $("ssh").replaceChildren("This page comes from another computer. To open it on yours, run ", make("code", {}, message.command));
  }
  if (kind === "runs") return updateList(message);
  if (message.run !== liveRun.name) {
    if (liveRun.name !== null && liveRun.parts.status) {
      runList.set(liveRun.name, summarize(liveRun));
      loadRun(liveRun);
    }
    Object.assign(liveRun, { name: message.run, parts: {} });
    comparedRuns.delete(liveRun.name);
    runList.delete(liveRun.name);
    shownRun = liveRun;
  }
  liveRun.parts[kind] = message;
  redraw();
}

/** Take over the runs of the list. Without a training, open the newest, and open a run again if it has gone on. */
function updateList(message) {
  const before = runList.get(shownRun.name);
  for (const run of message.runs) if (run.name !== message.now) runList.set(run.name, run);
  if (message.now === null && !isFolder) {
    isFolder = true;
    document.body.classList.add("of-folder");
    setInterval(() => send({ kind: "runs" }), LIST_INTERVAL);
    if (message.runs.length) send({ kind: "run", name: message.runs[0].name });
  } else if (shownRun !== liveRun && before?.state === "running" && message.runs.some(({ name, seconds }) => name === before.name && seconds !== before.seconds)) {
    send({ kind: "run", name: before.name });
  }
  redraw();
}

/** Draw all in the next frame. */
const redraw = drawNextFrame(() => {
  for (const draw of [drawStatus, drawCurves, drawRegions, drawMistakes, drawFilters, drawText, drawAttention, drawPictures, drawSizes, drawHistograms, drawUnits, drawKernels, drawRuns]) draw(shownRun.parts);
  drawControls();
  document.body.dataset.drawn = String(Number(document.body.dataset.drawn ?? 0) + 1);
});

// ---- what runs --------------------------------------------------------------------------------------------------------

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.round(seconds), pad = (n) => String(n).padStart(2, "0");
  if (whole < 60) return `${seconds < 10 ? seconds.toFixed(1) : whole} s`;
  const minutes = Math.floor(whole / 60);
  return minutes < 60 ? `${minutes}:${pad(whole % 60)}` : `${Math.floor(minutes / 60)}:${pad(minutes % 60)}:${pad(whole % 60)}`;
}

const capitalize = (words) => words[0].toUpperCase() + words.slice(1);

function drawStatus({ status }) {
  if (!status) return;
  const { epoch, epochs, results } = status;
  const state = runState(shownRun);
  const numbers = {
    Epoch: formatCount(epoch),
    ...Object.fromEntries(Object.entries(results).map(([name, value]) => [name, formatNumber(value)])),
    "Learning rate": formatNumber(status.lr),
    "Steps/s": status.steps_per_second >= 10 ? formatCount(status.steps_per_second) : formatNumber(status.steps_per_second),
    "Time": duration(status.seconds),
    "Time left": ENDED.includes(state) || state === "interrupted" ? "–" : duration(status.left),
    Steps: formatCount(status.step),
    ...(status.memory ? { Memory: `${formatNumber(Number((status.memory / 2 ** 20).toPrecision(3)))} MiB`, Cores: formatNumber(status.cores && Number(status.cores.toPrecision(2))) } : {}),
  };
  const list = $("numbers");
  if (list.children.length !== Object.keys(numbers).length) list.replaceChildren();
  Object.entries(numbers).forEach(([name, value], i) => {
    if (!list.children[i]) list.append(make("div", {}, make("dt"), make("dd")));
    const item = list.children[i];
    item.firstChild.textContent = name.replace(/^val_/, "val ");
    item.lastChild.textContent = value;
    if (i === 0 && epochs) item.lastChild.append(make("small", {}, ` of ${formatCount(epochs)}`));
    item.dataset.number = name;
  });
  $("note").textContent = status.note ?? "";
  $("about").textContent = `${shownRun === liveRun && !status.title ? "" : `${runLabel(shownRun)} · `}${status.model} · ${status.loss} · ${status.optimizer}${status.scheduled ? " with a schedule" : ""} · ${formatCount(status.parameters)} parameters`;
  $("state").textContent = state;
  $("state").dataset.state = state;
  const share = epochs ? status.place / epochs : 0;
  $("share").style.width = `${100 * share}%`;
  $("share").parentElement.setAttribute("aria-valuenow", epoch);
  if (epochs) $("share").parentElement.setAttribute("aria-valuemax", epochs);
  document.title = `${state}: epoch ${formatCount(epoch)}, loss ${formatNumber(results.loss)}`;
  if (shownRun === liveRun && ENDED.includes(state) && isConnected) {
    showMessage(`The training has ${state === "finished" ? "ended" : state}${status.why ? `: ${status.why}` : ""}.`, state === "failed");
  }
}

/** The state of a run. Of a run that another program trains, only the list knows whether it was interrupted. */
const runState = (run) => (run === liveRun ? run.parts.status : (runList.get(run.name) ?? run.parts.status))?.state;

function drawControls() {
  const status = liveRun.parts.status;
  const runs = isConnected && shownRun === liveRun && status && !ENDED.includes(status.state);
  const isPaused = status?.state === "paused";
  const cannot = status?.cannot ?? {};
  for (const id of ["pause", "step", "epoch", "stop", "save"]) $(id).disabled = !runs;
  $("time").disabled = !runs || "kernels" in cannot;
  for (const item of $("rate").querySelectorAll("input, button")) item.disabled = !runs || "rate" in cannot;
  $("rate").title = cannot.rate ?? "";
  if (shownRun === liveRun && !liveRun.parts.kernels) $("kernels-text").textContent = cannot.kernels ? `${capitalize(cannot.kernels)}.` : TIMING;
  $("pause").textContent = isPaused ? "Go on" : "Pause";
  $("keep").disabled = $("keep-page").disabled = !shownRun.parts.status;
  if (status && !$("new-rate").matches(":focus")) $("new-rate").value = String(Number((status.lr ?? 0).toPrecision(4)));
}

// ---- curves -----------------------------------------------------------------------------------------------------------

const charts = new Map(); // by their places: the id of the parent, and the name
let zoom = null; // the range of steps that all charts show, null for all steps

function getChart(host, name, options = {}) {
  const place = host.id + name;
  if (!charts.has(place)) {
    const chart = new LineChart(host, { title: name, unit: "step", ...options });
    charts.set(place, chart);
    chart.zoom = zoom;
    addTools(chart, (range) => {
      zoom = range;
      for (const each of charts.values()) each.set({ zoom });
    });
  }
  return charts.get(place);
}

/** Mark the epoch with the lowest loss, on held-out rows if there are any, unless it is the newest. */
function bestMark({ val_loss, loss }) {
  const { x, y, low = y } = val_loss ?? loss ?? { x: [], y: [] };
  const at = low.reduce((best, value, i) => (value < low[best] ? i : best), 0);
  return at < x.length - 1 ? [{ x: x[at], name: "lowest loss", key: "--soft" }] : [];
}

function drawCurves({ curves: part }) {
  if (!part) return;
  const curves = part.curves, best = bestMark(curves);
  const changes = (part.rate_changes ?? []).map((x) => ({ x, name: "new rate", key: "--orange" }));
  const hidden = new Set(["loss of the last steps"]);
  const isAlone = !comparedRuns.size, shownLabel = runLabel(shownRun);
  const names = [...new Set(Object.keys(curves).filter((name) => !hidden.has(name)).map((name) => name.replace(/^val_/, "")))];
  if (!names.includes("loss")) names.unshift("loss");
  for (const name of names) {
    const lines = [], lastSteps = curves["loss of the last steps"];
    const isOther = MINOR_CURVES.includes(name), isOwn = part.logged?.includes(name);
    if (curves[name]) lines.push({ name: !isAlone ? shownLabel : isOther || isOwn ? "" : "training", key: "--blue", ...curves[name] });
    if (name === "loss" && lastSteps && (curves.loss?.y.length ?? 0) < 100) {
      lines.push({ name: "last steps", key: "--grey", ...lastSteps, faint: Boolean(curves.loss) });
    }
    if (curves[`val_${name}`]) lines.push({ name: isAlone ? "held out" : `${shownLabel}, held out`, key: isAlone ? "--red" : "--blue", dashed: true, ...curves[`val_${name}`] });
    [...comparedRuns].forEach((other, i) => {
      const own = (runList.get(other) ?? loadedRuns.get(other))?.curves ?? {};
      const key = ["--orange", "--green", "--violet", "--red", "--grey"][i % 5];
      const label = runLabel(runList.get(other) ?? loadedRuns.get(other));
      if (own[name]) lines.push({ name: label, key, ...own[name] });
      if (own[`val_${name}`]) lines.push({ name: `${label}, held out`, key, dashed: true, ...own[`val_${name}`] });
    });
    const chart = getChart($("charts"), name, { height: isOther ? 120 : 200 });
    if (!isOther) Object.assign(chart, { log: $("log").checked, smoothing: Number($("smoothing").value) });
    chart.show(lines, isOther ? changes : [...changes, ...best]);
  }
  const order = [...names.filter((name) => !MINOR_CURVES.includes(name)), ...MINOR_CURVES];
  for (const chart of charts.values()) {
    if (chart.figure.parentElement !== $("charts")) continue;
    chart.figure.style.order = order.indexOf(chart.title);
    if (!names.includes(chart.title)) chart.show([]);
  }
}

// ---- layers -----------------------------------------------------------------------------------------------------------

/** Make a row of a table; its first two cells begin at the left. */
const row = (cells) => make("tr", {}, ...cells.map((cell, i) => make("td", { className: i < 2 ? "left" : "" }, cell ?? "")));

function drawSizes({ layers, curves }) {
  const sizes = curves?.sizes ?? {};
  for (const [what, title] of [["weight", "weights"], ["gradient", "gradients"]]) {
    const lines = Object.entries(sizes).map(([name, both], i) => ({ name, key: i, ...both[what] }));
    getChart($("size-charts"), title, { log: true, height: 170 }).show(lines);
  }
  const part = panel("sizes", layers);
  if (!part) return;
  $("parameters").replaceChildren(...part.rows.map((p) =>
    row([p.name, p.shape.join(" × ") || "1", formatNumber(p.size), p.frozen ? "frozen" : formatNumber(p.gradient), p.frozen ? "" : formatNumber(p.ratio)]),
  ), ...(part.left_out ? [row([`and ${part.left_out} more`, "", "", "", ""])] : []));
}

function drawHistograms({ histograms }) {
  const part = panel("histograms", histograms), drawn = new Set();
  if (!part) return;
  const count = part.steps.length, levels = part.levels.map((level) => `${100 * level} %`), middle = (levels.length - 1) / 2;
  for (const { name, ...kinds } of part.rows) {
    for (const [kind, log, key] of [["weights", false, "--blue"], ["gradients", true, "--violet"]]) {
      const quantiles = levels.map((_, i) => kinds[kind].subarray(i * count, (i + 1) * count));
      const chart = getChart($("histogram-charts"), `${name}, ${kind}`, { log, height: 110 });
      chart.show([{ name: "median", x: part.steps, y: quantiles[middle], quantiles, levels, key }]);
      drawn.add(chart);
    }
  }
  for (const chart of charts.values()) { // of another run
    if (chart.figure.parentElement === $("histogram-charts") && !drawn.has(chart)) chart.show([]);
  }
}

function drawUnits({ units }) {
  const part = panel("units", units);
  if (!part) return;
  $("findings").replaceChildren(...part.findings.map((words) =>
    make("li", { className: words === "Nothing stands out." ? "" : "bad" }, words),
  ));
  const share = (x) => (x === null ? "" : `${Math.round(100 * x)} %`);
  $("layers").replaceChildren(...part.rows.map((layer) => {
    const name = `${layer.name} ${layer.function}`.trim();
    const outputs = histogram(layer.counts, `outputs of ${name} from ${formatNumber(layer.least)} to ${formatNumber(layer.most)}`);
    const element = row([name, outputs, formatNumber(layer.mean), formatNumber(layer.std), share(layer.zeros),
      layer.dead ? `${layer.dead} of ${layer.units}` : "", share(layer.saturated), formatNumber(layer.gradient)]);
    element.children[1].className = "bars";
    element.dataset.dead = layer.dead;
    return element;
  }));
  $("units-text").textContent = `Measured with a copy of the model on ${part.of} training examples. A unit is dead if it is 0 for all of them.`;
}

function drawKernels({ kernels }) {
  $("kernels").hidden = isFolder && !kernels;
  if (!kernels || !isNew("kernels", kernels)) return;
  const largest = kernels.times[0] || 1, calls = kernels.calls.reduce((a, b) => a + b, 0);
  $("times").replaceChildren(...kernels.names.map((name, i) => {
    const bar = make("div", { className: "bar-of" });
    bar.style.width = `${(100 * kernels.times[i]) / largest}%`;
    const times = kernels.calls[i] > 1 ? ` × ${kernels.calls[i]}` : "";
    const label = make("span", { className: "name mono", title: name }, `${name}${times}`);
    return make("div", { className: "kernel" }, label, bar, make("span", { className: "time" }, `${formatNumber(kernels.times[i])} µs`));
  }));
  $("kernels-text").textContent = `A step on ${kernels.of} rows takes ${formatNumber(kernels.total)} µs in ${calls} kernels.`;
}

// ---- runs -------------------------------------------------------------------------------------------------------------

const summarize = ({ name, parts: { status, curves } }) => ({ ...status, name, curves: curves?.curves ?? {} });

/** Return what a run is called on the page: its title, with its time if another run has the same. */
function runLabel({ name, title, parts }) {
  title ??= parts?.status?.title;
  if (!title) return name;
  const isShared = [...runList.values(), liveRun.parts.status].some((run) => run && run.name !== name && run.title === title);
  return isShared ? `${title} (${name})` : title;
}

/** Keep a run that was trained or opened. */
function loadRun({ name, parts }) {
  loadedRuns.set(name, { name, parts, curves: parts.curves?.curves ?? {} });
}

/** Return the names of the settings in which the runs differ. */
function differences(runs) {
  const names = new Set(runs.flatMap(({ settings }) => Object.keys(settings ?? {})));
  return [...names].filter((name) => new Set(runs.map(({ settings }) => settings?.[name])).size > 1);
}

function formatSetting(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") return formatNumber(value);
  return value.length > 24 ? make("span", { title: value }, `${value.slice(0, 23)}…`) : value;
}

function drawRuns({ file }) {
  $("kept").textContent = !file ? "" : file.error ? `This run isn't saved: ${file.error}.` : `This run is saved in ${file.path}.`;
  const runs = [...runList.values()].sort((a, b) => (a.name < b.name ? 1 : -1));
  if (liveRun.parts.status) runs.unshift(summarize(liveRun));
  const key = JSON.stringify([runs.map((run) => [run.name, run.state, run.epoch]), [...comparedRuns], shownRun.name]);
  if ($("list").dataset.key === key) return;
  $("list").dataset.key = key;
  const settings = differences(runs);
  $("settings-head").replaceChildren(...["run", "state", "epochs", "loss", "compare", "", ...settings].map((name, i) =>
    make("th", { className: i < 2 ? "left" : "" }, name || make("span", { className: "only-read" }, "show"))));
  $("list").replaceChildren(...runs.map((run) => {
    const last = (curve) => formatNumber(curve?.y[curve.y.length - 1]);
    const { name } = run, label = runLabel(run);
    const disabled = name === shownRun.name;
    const box = make("input", { type: "checkbox", checked: comparedRuns.has(name), disabled, "aria-label": `compare ${label}` });
    box.onchange = () => {
      box.checked ? comparedRuns.add(name) : comparedRuns.delete(name);
      redraw();
    };
    const button = make("button", { disabled: disabled || Boolean(fileContent && !loadedRuns.has(name)), "aria-label": `show ${label}`, onclick: () => selectRun(name) }, "Show");
    const values = settings.map((setting) => formatSetting(run.settings?.[setting]));
    const element = row([label, run.state, formatCount(run.epoch), last(run.curves.val_loss ?? run.curves.loss), box, button, ...values]);
    element.firstChild.title = name;
    if (run.note) element.firstChild.append(make("div", { className: "soft" }, run.note));
    element.dataset.run = name;
    element.setAttribute("aria-current", String(name === shownRun.name));
    return element;
  }));
}

function selectRun(name) {
  if (name === liveRun.name) showRun(liveRun);
  else if (loadedRuns.has(name)) showRun(loadedRuns.get(name));
  else send({ kind: "run", name });
}

function openRun(run) {
  const { name } = run;
  loadRun(run);
  if (name !== liveRun.name && !runList.has(name)) runList.set(name, summarize(run));
  showRun(loadedRuns.get(name));
}

function showRun(run) {
  shownRun = run;
  comparedRuns.delete(run.name);
  if (run === liveRun || isFolder) showMessage(null);
  else showMessage(`You are looking at the run ${runLabel(run)}, which is ${runState(run)}.`);
  if (!run.parts.kernels) {
    $("times").replaceChildren();
    $("kernels-text").textContent = TIMING;
    forgetDrawn("kernels");
  }
  redraw();
}

// ---- what the buttons do ----------------------------------------------------------------------------------------------

$("pause").onclick = () => send({ kind: liveRun.parts.status?.state === "paused" ? "go" : "pause" });
for (const kind of ["step", "epoch", "stop", "save"]) $(kind).onclick = () => send({ kind });
$("time").onclick = () => send({ kind: "kernels" });
$("rate").onsubmit = (event) => {
  event.preventDefault();
  const value = Number($("new-rate").value.replace(",", "."));
  if (Number.isFinite(value) && value >= 0) send({ kind: "rate", value });
  else showMessage("A learning rate is a number, 0 or more.", true);
};
$("keep").onclick = () => download(`${shownRun.name}.run`, new Blob([encode({ kind: "run", name: shownRun.name, parts: shownRun.parts })]));
$("keep-page").onclick = async () => {
  const { name, parts } = shownRun, compared = [...comparedRuns].map((other) => runList.get(other) ?? summarize(loadedRuns.get(other)));
  try {
    download(`${name}.html`, new Blob([await makePageFile({ kind: "page", run: { name, parts }, compared })], { type: "text/html" }));
  } catch (error) {
    showMessage(`The file cannot be made: ${error.message}.`, true);
  }
};
$("open").onchange = async ({ target }) => {
  for (const file of target.files) {
    try {
      const message = decode(await file.arrayBuffer());
      if (message.kind !== "run" || !message.parts?.status) throw new Error("it has no run");
      openRun(message);
    } catch (error) {
      showMessage(`${file.name} cannot be opened: ${error.message}.`, true);
    }
  }
  target.value = "";
};
$("kernels-text").textContent = TIMING;
$("log").onchange = redraw;
$("smoothing").oninput = redraw;
themeButton($("theme"), () => {
  forgetDrawn();
  for (const chart of charts.values()) chart.redraw();
  redraw();
});

if (fileContent) {
  isFolder = true;
  document.body.classList.add("of-folder", "of-file");
  for (const run of fileContent.compared) {
    runList.set(run.name, run);
    comparedRuns.add(run.name);
  }
  openRun(fileContent.run);
}
