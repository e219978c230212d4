// Nets that learn in this page: clang made WebAssembly of C files that caffelite's `export_training` wrote.

/** Load a net, and return its functions without its `name` in C. `array` makes an array that they take. */
async function openNet(bytes, name) {
  const { memory, __heap_base: heap, ...functions } = (await WebAssembly.instantiate(bytes)).instance.exports;
  let end = heap.value;
  memory.grow(2); // 128 KiB for the arrays
  const net = {
    array(Type, length) {
      const made = new Type(memory.buffer, end, length);
      end += 8 * Math.ceil(made.byteLength / 8);
      return made;
    },
  };
  for (const f of ["init", "train", "predict", "learning_rate", "state"]) {
    net[f] = (...values) => functions[`${name}_${f}`](...values.map((v) => v.byteOffset ?? v));
  }
  return net;
}

/** Put a net with its `controls` and pictures in the place of what a reader without WebAssembly sees. */
async function showNet(name, controls, pictures) {
  const box = document.querySelector(`[data-net="${name}"]`);
  const file = new Blob([Uint8Array.from(atob(box.dataset.wasm), (c) => c.charCodeAt(0))]);
  const wasm = new Response(file.stream().pipeThrough(new DecompressionStream("deflate-raw")));
  const net = await openNet(await wasm.arrayBuffer(), name);
  box.innerHTML = `<p class="bar"><button></button> <button>Begin again</button> ${controls}<br><span></span></p>${pictures}`;
  return [net, box];
}

/** Call `step` before each frame, while `place` is in view, until it returns false; and `draw` if anything changed.
 * With a third button, which makes one step, a net that begins again waits for the reader. A net that has learned all
 * begins again after `pause` milliseconds, if there is a pause. */
function play(box, { begin, step, draw, place = box, pause = 0 }) {
  const [start, again, one] = box.querySelectorAll(".bar button");
  let runs = !matchMedia("(prefers-reduced-motion: reduce)").matches;
  let more = true, inView = false, waits = false, timer = null;
  const show = () => {
    draw();
    start.textContent = runs && more ? "Pause" : "Start";
    start.disabled = !more;
    if (one) one.disabled = !more;
    if (!more && pause && runs) timer ??= setTimeout(restart, pause);
    if (waits || !(runs && more && inView)) return;
    waits = requestAnimationFrame(() => {
      waits = false;
      if (runs) more = step();
      show();
    });
  };
  const restart = () => {
    clearTimeout(timer);
    timer = null;
    begin();
    more = true;
    show();
  };
  start.onclick = () => { runs = !runs; show(); };
  again.onclick = () => { runs = !one; restart(); };
  if (one) one.onclick = () => { runs = false; more = step(1); show(); };
  new IntersectionObserver(([entry]) => { inView = entry.isIntersecting; show(); }).observe(place);
  new MutationObserver(show).observe(document.body, { attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").onchange = show;
  addEventListener("resize", show);
  addEventListener("scroll", () => waits || show(), { passive: true });
  restart();
}

/** Return a function that measures `train`, and one for the text below the buttons. */
function makeStatus(box) {
  let time = 0, count = 0, last = performance.now(), speed = "";
  const timed = (train) => {
    const began = performance.now(), loss = train();
    time += performance.now() - began;
    count++;
    return loss;
  };
  const tell = (steps, text) => {
    const passed = performance.now() - last;
    if (passed > 500) {
      speed = count && ` · ${time < passed / 2 ? "slowed down to " : ""}${Math.round((1000 * count) / passed)} steps a second; one takes ${Math.round((1000 * time) / count)} µs`;
      [time, count, last] = [0, 0, last + passed];
    }
    box.querySelector(".bar span").textContent = `Step ${steps.toLocaleString("en")}${text}${speed || ""}`;
  };
  return [timed, tell];
}

const colour = (name) => getComputedStyle(document.body).getPropertyValue(`--color-${name}`);

/** Return whether an element is in the window. */
function isSeen(element) {
  const { top, bottom } = element.getBoundingClientRect();
  return top < innerHeight && bottom > 0;
}

/** Clear a canvas. Return its context, width and height, in pixels of the page. */
function clear(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas, c = canvas.getContext("2d");
  const size = [width, height].map((v) => Math.round(v * devicePixelRatio));
  if (canvas.width === size[0] && canvas.height === size[1]) c.reset(); // without a new layout of the page
  else [canvas.width, canvas.height] = size;
  c.scale(devicePixelRatio, devicePixelRatio);
  c.font = "12px sans-serif";
  c.fillStyle = colour("foreground-secondary");
  return [c, width, height];
}

/** Draw points [step, value] as a line, over lines at `marks`; the last of these names the axis. */
function drawCurve(canvas, points, { steps, low, high, marks, scale = (v) => v }) {
  const [c, width, height] = clear(canvas);
  const left = 8 + Math.max(...marks.map((m) => c.measureText(m).width));
  const x = (step) => left + ((width - left - 2) * step) / steps;
  const y = (v) => 6 + ((height - 26) * (scale(high) - scale(v))) / (scale(high) - scale(low) || 1);
  c.strokeStyle = colour("background-border");
  c.textAlign = "right";
  for (const mark of marks) {
    c.fillText(`${mark}`.replace("-", "−"), left - 6, y(mark) + 4);
    c.strokeRect(left, y(mark), width - left, 0);
  }
  c.fillText(`${steps.toLocaleString("en")} steps`, width, height - 2);
  c.beginPath();
  for (const [step, v] of points) c.lineTo(x(step), Math.min(height - 20, Math.max(2, y(v))));
  c.strokeStyle = colour("brand-primary");
  c.lineWidth = 1.5;
  c.stroke();
}
