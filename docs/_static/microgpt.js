// microgpt learns names: its loss, names that it writes, the attention of each head, and one number of it.

(async () => {
  const STEPS = 1000, END = 26, BLOCK = 16, RATE = 0.01, NUMBERS = 4192, SHOWN = [0, 20, 50, 200, STEPS];
  const letters = [..."abcdefghijklmnopqrstuvwxyz·"];
  const options = (texts) => texts.map((text, i) => `<option value="${i}">${text}</option>`).join("");
  const [net, box] = await showNet("microgpt", `<select aria-label="speed"><option value="1">1 step a
    frame</option><option value="5">5 steps a frame</option><option value="25">25 steps a frame</option></select>`, `
    <div class="pair"><figure><figcaption>Loss</figcaption><canvas role="img" aria-label="The loss over the steps"></canvas>
    </figure><figure><figcaption>Names that it writes</figcaption><table><tbody></tbody></table></figure></div>
    <figure><figcaption>Attention for the name <input aria-label="name" value="marina" maxlength="15" size="15"
    autocomplete="off" spellcheck="false"></figcaption><div class="heads">${[1, 2, 3, 4].map((head) =>
      `<div>head ${head}<canvas class="square" role="img" aria-label="The attention of head ${head}: a row for each letter,
      a column for each letter that it looks at"></canvas></div>`).join("")}</div></figure>
    <figure><figcaption>One number: number <select aria-label="number">${options([...letters.keys()].slice(1, 17))}
    </select> of the letter <select aria-label="letter">${options(letters)}</select></figcaption>
    <div class="pair"><pre></pre><canvas role="img" aria-label="The value of the number over the steps"></canvas></div></figure>`);
  const [speed, column, letter] = box.querySelectorAll("select");
  const [curve, ...heads] = box.querySelectorAll("canvas"), line = heads.pop();
  const field = box.querySelector("input"), sums = box.querySelector("pre"), rows = box.querySelector("tbody");
  const x = net.array(Int32Array, BLOCK), y = net.array(Int32Array, BLOCK);
  const before = net.array(Float32Array, 3.2 * NUMBERS), after = net.array(Float32Array, 3.2 * NUMBERS); // states
  const scores = net.array(Float32Array, BLOCK * 27), attention = net.array(Float32Array, 4 * BLOCK * BLOCK);
  const length = net.state(after, 1), rate = (step) => RATE * (1 - step / STEPS);
  const [timed, tell] = makeStatus(box);
  let losses, mean, written, frames = 0, values;

  const pick = (texts) => texts[Math.floor(texts.length * Math.random())];
  const makeName = (i = Math.floor(12 * Math.random())) =>
    Array.from({ length: 2 + (i % 2) }, () => pick("bdfgklmnrst") + pick("aeiou")).join("") + (i % 3 ? "lnrs"[i % 4] : "");

  /** Put a name into x, and what follows each letter into y; −1 does not count. */
  function encode(name) {
    const all = [END, ...[...name].map((c) => letters.indexOf(c)), END].slice(0, BLOCK + 1);
    x.fill(END).set(all.slice(0, -1));
    y.fill(-1).set(all.slice(1));
  }

  function writeName() {
    x.fill(END);
    let name = "";
    for (let t = 0; t < BLOCK; t++) {
      net.predict(x, scores, attention);
      const p = [...scores.subarray(27 * t, 27 * t + 27)].map((s) => Math.exp(s / 0.5)); // at temperature 0.5
      let left = Math.random() * p.reduce((a, b) => a + b);
      const next = p.findIndex((v) => (left -= v) < 0);
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

  function step() {
    for (let k = Math.min(speed.value, STEPS - losses.length); k > 1; k--) train();
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
    if (stays || !last?.stays || last.steps < steps)
      written.push({ steps, stays, names: Array.from({ length: 6 }, writeName).join(", ") });
    rows.innerHTML = written.map((row) =>
      `<tr><th>${row.steps.toLocaleString("en")}</th><td>${row.names}</td></tr>`).join("");
  }

  function drawAttention() {
    const name = field.value.toLowerCase().replace(/[^a-z]/g, "");
    encode(name);
    net.predict(x, scores, attention);
    const shown = ["·", ...name];
    heads.forEach((canvas, head) => {
      const [c, width] = clear(canvas), size = (width - 16) / shown.length;
      c.textAlign = "center";
      shown.forEach((text, i) => {
        c.fillText(text, 16 + (i + 0.5) * size, 11);
        c.fillText(text, 6, 20 + (i + 0.5) * size);
      });
      c.fillStyle = colour("brand-primary");
      shown.forEach((_, i) => shown.slice(0, i + 1).forEach((_, j) => {
        c.globalAlpha = 0.04 + 0.96 * attention[(head * BLOCK + i) * BLOCK + j];
        c.fillRect(16 + j * size, 16 + i * size, size - 1, size - 1);
      }));
    });
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

  function draw() {
    drawCurve(curve, losses, { steps: STEPS, low: 1.4, high: 3.4, marks: [3, 2.5, 2, 1.5] });
    drawNames();
    drawAttention();
    drawNumber();
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
  field.oninput = drawAttention;
  letter.onchange = column.onchange = () => { follow(); drawNumber(); };
  play(box, { begin, step, draw });
})();
