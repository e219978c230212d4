// microgpt learns names: its loss, names that it writes, what it does with one name, and one number of it.

(async () => {
  const STEPS = 1000, END = 26, BLOCK = 16, RATE = 0.01, NUMBERS = 4192, SHOWN = [0, 20, 50, 200, STEPS];
  const letters = [..."abcdefghijklmnopqrstuvwxyz·"];
  const options = (texts) => texts.map((text, i) => `<option value="${i}">${text}</option>`).join("");
  const [net, box] = await showNet("microgpt", `<button>One step</button> <select aria-label="speed">
    <option value="1">1 step a frame</option><option value="5">5 steps a frame</option>
    <option value="25">25 steps a frame</option></select>`, `
    <div class="pair"><figure><figcaption>Loss</figcaption><canvas role="img"></canvas>
    </figure><figure><figcaption>Names that it writes</figcaption><label>temperature <input type="range" min="0.1" max="2"
    step="0.1" value="0.5"> <output>0.5</output></label><table><tbody></tbody></table></figure></div>`);
  const lesson = box.parentElement;
  const fill = (name, pictures) => {
    const view = lesson.querySelector(`.${name}`);
    view.innerHTML = pictures;
    return view;
  };
  const one = fill("one-name", `<p class="bar"><label>Name <input value="marina" maxlength="15" size="15"
    autocomplete="off" spellcheck="false"></label></p><div class="pair"><figure><figcaption>Loss of each letter</figcaption>
    <table><thead><tr><th>after</th><th>comes</th><th>p</th><th>−ln p</th></tr></thead><tbody></tbody></table></figure>
    <figure><figcaption>Prediction after <b></b></figcaption><canvas role="img"></canvas></figure></div>
    <figure><figcaption>Attention</figcaption><div class="heads">${[1, 2, 3, 4].map((head) =>
      `<div>head ${head}<canvas class="square" role="img"></canvas></div>`).join("")}</div></figure>`);
  const number = fill("one-number", `<figure><figcaption>Number <select aria-label="number">${
    options([...letters.keys()].slice(1, 17))}</select> of the letter <select aria-label="letter">${options(letters)}</select>
    </figcaption><div class="pair"><pre></pre><canvas role="img" aria-label="The value of the number over the steps"></canvas>
    </div></figure>`);
  const speed = box.querySelector("select"), curve = box.querySelector("canvas"), rows = box.querySelector("tbody");
  const heat = box.querySelector("input"), field = one.querySelector("input"), cells = one.querySelector("tbody");
  const [bars, ...heads] = one.querySelectorAll("canvas"), place = one.querySelector("b");
  const [column, letter] = number.querySelectorAll("select");
  const sums = number.querySelector("pre"), line = number.querySelector("canvas");

  const x = net.array(Int32Array, BLOCK), y = net.array(Int32Array, BLOCK);
  const before = net.array(Float32Array, 3.2 * NUMBERS), after = net.array(Float32Array, 3.2 * NUMBERS); // states
  const scores = net.array(Float32Array, BLOCK * 27), attention = net.array(Float32Array, 4 * BLOCK * BLOCK);
  const length = net.state(after, 1), rate = (step) => RATE * (1 - step / STEPS);
  const [timed, tell] = makeStatus(box);
  let losses, mean, written, frames = 0, values, name, chosen = 0;

  const pick = (texts) => texts[Math.floor(texts.length * Math.random())];
  const makeName = (i = Math.floor(12 * Math.random())) =>
    Array.from({ length: 2 + (i % 2) }, () => pick("bdfgklmnrst") + pick("aeiou")).join("") + (i % 3 ? "lnrs"[i % 4] : "");

  /** Put a name into x, and what follows each letter into y; −1 does not count. */
  function encode(name) {
    const all = [END, ...[...name].map((c) => letters.indexOf(c)), END].slice(0, BLOCK + 1);
    x.fill(END).set(all.slice(0, -1));
    y.fill(-1).set(all.slice(1));
  }

  /** The probabilities of what follows the letter at place t of the last prediction. */
  function softmax(t, temperature = 1) {
    const row = scores.subarray(27 * t, 27 * t + 27), high = Math.max(...row);
    const parts = Array.from(row, (score) => Math.exp((score - high) / temperature));
    const sum = parts.reduce((a, b) => a + b);
    return parts.map((part) => part / sum);
  }

  function writeName() {
    x.fill(END);
    let name = "";
    for (let t = 0; t < BLOCK; t++) {
      net.predict(x, scores, attention);
      let left = Math.random();
      const next = softmax(t, +heat.value).findIndex((p) => (left -= p) < 0);
      if (next === END || next < 0) break;
      name += letters[next];
      if (t + 1 < BLOCK) x[t + 1] = next;
    }
    return name || "·";
  }

  /** The chosen number in a state, and the means of its gradient and of the gradient's square. */
  function look(state) {
    const i = 16 * letter.value + +column.value;
    return [state[i], state[length - 2 * NUMBERS + i], state[length - NUMBERS + i]];
  }

  function train() {
    encode(makeName());
    net.learning_rate(rate(losses.length));
    const loss = timed(() => net.train(x, y));
    mean = losses.length ? 0.98 * mean + 0.02 * loss : loss;
    losses.push([losses.length, mean]);
  }

  function step(count = speed.value) {
    for (let k = Math.min(count, STEPS - losses.length); k > 1; k--) train();
    net.state(before, 1);
    train();
    net.state(after, 1);
    values.push([losses.length, look(after)[0]]);
    return losses.length < STEPS;
  }

  /** Three times a second, write other names. The rows of the steps that are to be shown stay. */
  function drawNames() {
    const steps = losses.length, last = written.at(-1);
    const stays = SHOWN.some((step) => step <= steps && !(last?.steps >= step));
    if (!stays && ++frames % 20) return;
    if (last && !last.stays) written.pop();
    if (stays || !last?.stays || last.steps < steps) written.push({ steps, stays, names: writeNames() });
    showNames();
  }

  const writeNames = () => Array.from({ length: 6 }, writeName).join(", ");
  const showNames = () => {
    rows.innerHTML = written.map((row) =>
      `<tr><th>${row.steps.toLocaleString("en")}</th><td>${row.names}</td></tr>`).join("");
  };

  /** A row for each letter of another name, and one for their mean. */
  function chooseName() {
    name = field.value.toLowerCase().replace(/[^a-z]/g, "");
    chosen = Math.min(chosen, name.length);
    const comes = [...name, "·"];
    cells.innerHTML = ["·", ...name].map((after, t) => `<tr><th><label><input type="radio" name="place" value="${t}" ${
      t === chosen ? "checked" : ""}> ${after}</label></th><td>${comes[t]}</td><td></td><td></td></tr>`).join("") +
      "<tr><th>mean</th><td></td><td></td><td></td></tr>";
  }

  function drawName() {
    encode(name);
    net.predict(x, scores, attention);
    const shown = ["·", ...name], p = shown.map((_, t) => softmax(t));
    drawPrediction(p[chosen], y[chosen]);
    heads.forEach((canvas, head) => drawAttention(canvas, shown, (i, j) => attention[(head * BLOCK + i) * BLOCK + j], head));
    const right = p.map((row, t) => row[y[t]]), all = right.map((v) => -Math.log(v));
    all.push(all.reduce((a, b) => a + b) / all.length);
    [...cells.children].forEach((row, t) => {
      row.cells[2].textContent = t < right.length ? `${(100 * right[t]).toFixed(1)} %` : "";
      row.cells[3].textContent = all[t].toFixed(2);
    });
    place.textContent = `“${shown.slice(0, chosen + 1).join("")}”`;
  }

  /** The `count` largest values, in words for a reader who does not see the picture. */
  const say = (texts, values, count) => [...values.keys()].sort((a, b) => values[b] - values[a]).slice(0, count)
    .map((i) => `${texts[i].replace("·", "·, the end,")} ${Math.round(100 * values[i])} %`).join(", ");

  function drawPrediction(p, right) {
    const [c, width, height] = clear(bars), left = 36, size = (width - left) / 27;
    const top = [0.25, 0.5, 1].find((v) => v >= Math.max(...p)), high = (v) => 8 + (height - 28) * (1 - v / top);
    c.strokeStyle = colour("background-border");
    c.textAlign = "right";
    for (const [v, text] of [[top, top], [top / 2, top / 2], [1 / 27, "1/27"]]) {
      c.fillText(text, left - 4, high(v) + (v < 0.1 ? 0 : 4));
      c.strokeRect(left, high(v), width - left, 0);
    }
    c.textAlign = "center";
    p.forEach((v, i) => {
      c.fillStyle = colour(i === right ? "brand-primary" : "foreground-muted");
      c.fillRect(left + i * size + 1, high(v), size - 2, high(0) - high(v));
      c.font = `${i === right ? "bold " : ""}${Math.min(12, 1.4 * size)}px sans-serif`;
      c.fillText(letters[i], left + (i + 0.5) * size, height - 6);
    });
    bars.ariaLabel = `What comes next: ${say(letters, p, 3)}`;
  }

  function drawAttention(canvas, shown, weight, head) {
    const [c, width] = clear(canvas), size = (width - 16) / shown.length;
    c.textAlign = "center";
    shown.forEach((text, i) => {
      c.fillText(text, 16 + (i + 0.5) * size, 11);
      c.fillText(text, 6, 20 + (i + 0.5) * size);
    });
    c.fillStyle = colour("brand-primary");
    shown.forEach((_, i) => shown.slice(0, i + 1).forEach((_, j) => {
      c.globalAlpha = 0.04 + 0.96 * weight(i, j);
      c.fillRect(16 + j * size, 16 + i * size, size - 1, size - 1);
    }));
    c.globalAlpha = 1;
    c.strokeStyle = colour("foreground-primary");
    c.strokeRect(16, 16 + chosen * size, (chosen + 1) * size - 1, size - 1);
    const weights = shown.slice(0, chosen + 1).map((_, j) => weight(chosen, j));
    canvas.ariaLabel = `Attention of head ${head + 1}: ${shown[chosen]} looks at ${say(shown, weights, 3).replaceAll(", the end,", "")}`;
  }

  function drawNumber() {
    const t = losses.length, f = (v) =>
      (v === 0 ? "0" : Math.abs(v) < 1e-3 ? v.toExponential(3) : v.toPrecision(4)).replaceAll("-", "−");
    const [w0, m0, v0] = look(before), [w, m, v] = look(after), difference = m - 0.85 * m0;
    const g = Math.abs(difference) < 1e-6 * Math.abs(m) ? 0 : difference / 0.15; // without the error of the last digit
    sums.textContent = t === 0 ? `w = ${f(w)}` : `gradient  g = ${f(g)}
m = 0.85 · ${f(m0)} + 0.15 g = ${f(m)}
v = 0.99 · ${f(v0)} + 0.01 g² = ${f(v)}
m̂ = m / (1 − 0.85^${t}) = ${f(m / (1 - 0.85 ** t))}
v̂ = v / (1 − 0.99^${t}) = ${f(v / (1 - 0.99 ** t))}
w = ${f(w0)} − ${f(rate(t - 1))} m̂ / √v̂ = ${f(w)}`;
    const all = values.map((value) => value[1]), low = Math.min(...all), high = Math.max(...all);
    drawCurve(line, values, { steps: STEPS, low, high, marks: [low, high].map((v) => +v.toFixed(3)) });
  }

  /** Draw what is in the window. First the pictures, because they read sizes, and then the texts, which change them. */
  function draw() {
    const [first, second, third] = [box.querySelector(".pair"), one, number].map(isSeen);
    if (first) drawCurve(curve, losses, { steps: STEPS, low: 1.4, high: 3.4, marks: [3.3, 2.5, 1.78] });
    if (third) drawNumber();
    if (second) drawName();
    drawNames();
    curve.ariaLabel = losses.length ? `The loss: ${losses[0][1].toFixed(2)} at first, ${mean.toFixed(2)} now` : "The loss";
    tell(losses.length, losses.length ? ` · loss ${mean.toFixed(2)}` : "");
  }

  function follow() {
    values = [[losses.length, look(after)[0]]];
  }

  function begin() {
    net.init();
    net.state(after, 1);
    [losses, written] = [[], []];
    follow();
  }
  heat.oninput = () => {
    box.querySelector("output").textContent = (+heat.value).toFixed(1);
    written.at(-1).names = writeNames();
    showNames();
  };
  field.oninput = () => { chooseName(); drawName(); };
  cells.onclick = ({ target }) => {
    if (!target.closest("label")) target.closest("tr").querySelector("input")?.click();
  };
  cells.onchange = (event) => { chosen = +event.target.value; drawName(); };
  letter.onchange = column.onchange = () => { follow(); drawNumber(); };
  chooseName();
  play(box, { begin, step, draw, place: lesson });
})();
