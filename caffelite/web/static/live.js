// The page of cl.live(): it draws what the training says, and sends what its buttons ask for.

import { chart, colour, text } from "./charts.js";
import { connect, themeButton } from "./connection.js";

const $ = (id) => document.getElementById(id);
const CLASSES = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#000000"];
const OTHERS = ["--orange", "--green", "--red"];

let run = null, progress = null, plane = null;
const opened = []; // curves from files

const ask = connect(
  (message) => {
    ({ run: begin, progress: show, layers, plane: keepPlane, images, model: download, refused }[message.kind] ?? (() => {}))(message);
  },
  (why) => {
    $("gone").textContent = why ?? "";
    $("gone").classList.toggle("hidden", why === null);
    for (const button of $("controls").querySelectorAll("button")) button.disabled = why !== null && button.id !== "keep";
  },
);

// ---- what the training says ----

function begin(message) {
  run = message;
  plane = null;
  $("name").textContent = run.name;
  $("model").textContent = run.model;
  $("facts").textContent = `${run.parameters.toLocaleString("en")} parameters, ${run.loss}, ${run.optimizer ?? "no optimizer"}`;
  $("charts").replaceChildren();
  $("view").classList.toggle("hidden", run.view === null);
  $("plane").classList.toggle("hidden", run.view !== "plane");
}

function show(message) {
  progress = message;
  const { curves, epoch, epochs, state } = progress;
  $("state").textContent = state;
  $("state").dataset.state = state;
  $("epoch").textContent = epochs ? `${epoch.toLocaleString("en")} / ${epochs.toLocaleString("en")}` : epoch.toLocaleString("en");
  const loss = curves.loss?.value;
  $("loss").textContent = text(loss?.[loss.length - 1]);
  $("lr").textContent = text(progress.lr);
  $("rate").textContent = progress.rate >= 10 ? Math.round(progress.rate).toLocaleString("en") : text(progress.rate);
  $("seconds").textContent = duration(progress.seconds);
  $("left").textContent = duration(progress.left);
  $("share").style.width = epochs ? `${(100 * epoch) / epochs}%` : "0";
  $("share").parentElement.setAttribute("aria-valuenow", epoch);
  $("share").parentElement.setAttribute("aria-valuemax", epochs ?? epoch);
  const isOver = state === "ended" || state === "stopped";
  $("pause").textContent = state === "paused" ? "Go on" : "Pause";
  for (const id of ["pause", "step", "stop", "setrate"]) $(id).disabled = isOver;
  document.title = `${state}: epoch ${epoch}, loss ${$("loss").textContent}`;
  drawCurves();
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.round(seconds), pad = (n) => String(n).padStart(2, "0");
  if (whole < 60) return `${seconds < 10 ? seconds.toFixed(1) : whole} s`;
  const minutes = Math.floor(whole / 60);
  return minutes < 60 ? `${minutes}:${pad(whole % 60)}` : `${Math.floor(minutes / 60)}:${pad(minutes % 60)}:${pad(whole % 60)}`;
}

function drawCurves() {
  if (progress === null) return;
  const others = [...(run?.earlier ?? []), ...opened].slice(-3);
  const names = [...new Set(Object.keys(progress.curves).map((name) => name.replace(/^val_/, "")))];
  for (const name of names) {
    let element = $("charts").querySelector(`[data-name="${CSS.escape(name)}"]`);
    if (element === null) {
      element = document.createElement("div");
      element.dataset.name = name;
      const title = document.createElement("h2");
      title.textContent = name;
      element.append(title);
      $("charts").append(element);
    }
    const lines = [];
    for (const [prefix, dash, paint, said] of [["", 0, "--blue", "training"], ["val_", 1, "--red", "validation"]]) {
      const own = progress.curves[prefix + name];
      if (own) lines.push({ name: said, x: own.epoch, y: own.value, colour: paint, dash });
      others.forEach((other, i) => {
        const values = other.history[prefix + name];
        if (!values) return;
        const y = values.map((value) => value ?? NaN), x = other.epochs ?? values.map((_, k) => k + 1);
        lines.push({ name: `${other.name}${prefix ? ", validation" : ""}`, x, y, colour: OTHERS[i], dash: dash + 2, faint: true });
      });
    }
    for (const line of lines) if (!line.faint) element.dataset[line.name] = line.y.length ? line.y[line.y.length - 1] : "";
    chart(element, lines, { log: $("log").checked, smooth: Number($("smooth").value), label: name });
  }
  const compared = others.map((other) => other.name).join(", ");
  $("legend").textContent = `Solid: training. Dashed: validation.${compared ? ` Faint: ${compared}.` : ""}`;
}

function layers(message) {
  const rows = message.layers.map((layer) => {
    const row = document.createElement("tr");
    const share = (x) => (x === null ? "" : `${Math.round(100 * x)} %`);
    const cells = [layer.name, layer.size.toLocaleString("en"), text(layer.weights), text(layer.gradients)];
    for (const [i, cell] of [...cells, share(layer.dead), share(layer.saturated)].entries()) {
      const part = document.createElement("td");
      part.textContent = layer.size === 0 && i > 0 && i < 4 ? "" : cell;
      if (i) part.className = "number";
      row.append(part);
    }
    return row;
  });
  $("rows").replaceChildren(...rows);
}

function keepPlane(message) {
  plane = message;
  drawPlane();
}

function drawPlane() {
  if (plane === null) return;
  const { scores, low, high, x, y, classes } = plane;
  const [rows, columns, count] = scores.shape;
  const canvas = $("plane"), pen = canvas.getContext("2d"), page = rgb(colour("--card"));
  const small = new OffscreenCanvas(columns, rows), brush = small.getContext("2d");
  const image = brush.createImageData(columns, rows);
  const [least, most] = [Math.min(...y), Math.max(...y)];
  for (let k = 0; k < rows * columns; k++) {
    const place = 4 * ((rows - 1 - Math.floor(k / columns)) * columns + (k % columns));
    const mixed = classes ? ofClasses(scores, k, count, page) : ofNumber(scores[k * count], least, most, page);
    image.data.set([...mixed, 255], place);
  }
  brush.putImageData(image, 0, 0);
  pen.imageSmoothingEnabled = true;
  pen.drawImage(small, 0, 0, canvas.width, canvas.height);
  for (let i = 0; i < y.length; i++) {
    const left = ((x[2 * i] - low[0]) / (high[0] - low[0])) * canvas.width;
    const top = (1 - (x[2 * i + 1] - low[1]) / (high[1] - low[1])) * canvas.height;
    pen.beginPath();
    pen.arc(left, top, 5, 0, 2 * Math.PI);
    pen.fillStyle = classes ? CLASSES[y[i] % 8] : `rgb(${ofNumber(y[i], least, most, page)})`;
    pen.fill();
    pen.lineWidth = 1.2;
    pen.strokeStyle = colour("--card");
    pen.stroke();
  }
  $("viewtitle").textContent = classes ? "Decision regions" : "Predictions over the plane";
  $("viewtext").textContent = `${y.length} rows of the training, and what the model makes of the plane.`;
  canvas.setAttribute("aria-label", `${$("viewtitle").textContent}, ${y.length} points`);
  canvas.dataset.drawn = Number(canvas.dataset.drawn ?? 0) + 1;
}

const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const mixed = (a, b, share) => a.map((value, i) => Math.round(value + share * (b[i] - value)));

function ofClasses(scores, k, count, page) {
  if (count === 1) return mixed(page, rgb(CLASSES[scores[k] > 0.5 ? 1 : 0]), 0.9 * Math.abs(scores[k] - 0.5));
  let best = 0;
  for (let c = 1; c < count; c++) if (scores[k * count + c] > scores[k * count + best]) best = c;
  const sure = (scores[k * count + best] - 1 / count) / (1 - 1 / count);
  return mixed(page, rgb(CLASSES[best % 8]), 0.08 + 0.42 * sure);
}

function ofNumber(value, least, most, page) {
  const share = Math.max(-1, Math.min(1, (2 * (value - least)) / (most - least || 1) - 1));
  return mixed(page, rgb(CLASSES[share < 0 ? 0 : 1]), 0.85 * Math.abs(share));
}

function images(message) {
  const picture = (all, i, words) => {
    const [, height, width, channels] = all.shape, size = height * width;
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [width, height];
    const pen = canvas.getContext("2d"), image = pen.createImageData(width, height);
    for (let p = 0; p < size; p++) {
      for (let c = 0; c < 3; c++) image.data[4 * p + c] = all[(i * size + p) * channels + Math.min(c, channels - 1)];
      image.data[4 * p + 3] = 255;
    }
    pen.putImageData(image, 0, 0);
    const figure = document.createElement("figure");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", words || `filter ${i + 1}`);
    figure.append(canvas, Object.assign(document.createElement("figcaption"), { textContent: words }));
    return figure;
  };
  const wrong = message.truth.length;
  const found = [...Array(wrong).keys()].map((i) => picture(message.images, i, `${message.truth[i]} → ${message.guesses[i]}`));
  $("images").replaceChildren(...found);
  $("viewtitle").textContent = "Mistakes: the class, and what it was taken for";
  $("viewtext").textContent = `${message.wrong} of ${message.of} rows of the training are taken for another class.`;
  $("filterstitle").classList.toggle("hidden", !message.filters);
  const count = message.filters?.shape[0] ?? 0;
  $("filters").replaceChildren(...[...Array(count).keys()].map((i) => picture(message.filters, i, "")));
}

function refused(message) {
  $("gone").textContent = `The training refuses: ${message.why}`;
  $("gone").classList.remove("hidden");
}

// ---- files ----

function download(message) {
  save(message.name, new Blob([message.bytes], { type: "application/octet-stream" }));
}

function save(name, blob) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

$("keep").onclick = () => {
  if (progress === null) return;
  const history = Object.fromEntries(
    Object.entries(progress.curves).map(([name, curve]) => [name, Array.from(curve.value, (x) => (Number.isFinite(x) ? x : null))]),
  );
  const epochs = Array.from(progress.curves.loss.epoch);
  const content = JSON.stringify({ caffelite: "run", name: progress.name, model: run.model, epochs, history });
  save(`${progress.name}.json`, new Blob([content], { type: "application/json" }));
};

$("open").onchange = async (event) => {
  for (const file of event.target.files) {
    try {
      const content = JSON.parse(await file.text());
      if (content.caffelite !== "run" || typeof content.history?.loss !== "object") throw new Error("it has no curves");
      opened.push({ name: String(content.name), epochs: content.epochs, history: content.history });
    } catch (error) {
      refused({ why: `${file.name} is no file of curves: ${error.message}` });
    }
  }
  drawCurves();
};

// ---- what the buttons ask for ----

$("pause").onclick = () => ask({ ask: progress?.state === "paused" ? "go" : "pause" });
$("step").onclick = () => ask({ ask: "step" });
$("stop").onclick = () => ask({ ask: "stop" });
$("save").onclick = () => ask({ ask: "save" });
$("setrate").onclick = () => ask({ ask: "rate", value: Number($("newrate").value) });
$("newrate").onkeydown = (event) => { if (event.key === "Enter") $("setrate").click(); };
$("log").onchange = $("smooth").onchange = drawCurves;
themeButton($("theme"), () => { drawCurves(); drawPlane(); });
