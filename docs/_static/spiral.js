// The first page's net: it learns three spirals, as examples/spiral.py does, and its regions are drawn meanwhile. Every
// fifth point is held out: the net does not learn from it, and is judged by it.

(async () => {
  const COLOURS = [[0, 114, 178], [230, 159, 0], [0, 158, 115]];
  const STEPS = 4000, BATCH = 32, SIDE = 80, EDGE = 1.3;
  const [net, box] = await showNet("spiral", "", `<div class="pair">
    <canvas class="square" role="img" aria-label="Points of three spirals, over the regions that the net has learned">
    </canvas><figure><figcaption>Loss</figcaption><canvas role="img" aria-label="The loss over the steps"></canvas>
    </figure></div>`);
  const [plane, curve] = box.querySelectorAll("canvas");
  const x = net.array(Float32Array, 2 * BATCH), y = net.array(Int32Array, BATCH);
  const scores = net.array(Float32Array, 3 * BATCH);
  const picture = new ImageData(SIDE, SIDE), small = new OffscreenCanvas(SIDE, SIDE);

  const normal = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
  const points = Array.from({ length: 300 }, (_, i) => {
    const label = Math.floor(i / 100), r = (i % 100) / 99, angle = 4 * (label + r) + 0.2 * normal();
    return { at: [r * Math.sin(angle), r * Math.cos(angle)], label, isHeldOut: i % 5 === 2 };
  });
  const seen = points.filter((point) => !point.isHeldOut);

  /** Call `use(i, class, probability of this class)` for each of these places, x beside y. */
  function predict(places, use) {
    for (let i = 0; 2 * i < places.length; i += BATCH) {
      x.set(places.subarray(2 * i, 2 * (i + BATCH)));
      net.predict(x, scores);
      for (let k = 0; k < BATCH && 2 * (i + k) < places.length; k++) {
        const row = scores.subarray(3 * k, 3 * k + 3), best = row.indexOf(Math.max(...row));
        use(i + k, best, 1 / row.reduce((sum, score) => sum + Math.exp(score - row[best]), 0));
      }
    }
  }

  const spots = new Float32Array(points.flatMap((point) => point.at));
  const grid = Float32Array.from({ length: 2 * SIDE * SIDE }, (_, i) => {
    const pixel = Math.floor(i / 2), v = i % 2 ? SIDE - 1 - Math.floor(pixel / SIDE) : pixel % SIDE;
    return EDGE * ((2 * v + 1) / SIDE - 1);
  });
  const [timed, tell] = makeStatus(box);
  let losses, mean;

  function step() {
    for (let i = 0; i < 8; i++) {
      for (let k = 0; k < BATCH; k++) {
        const { at, label } = seen[Math.floor(seen.length * Math.random())];
        x.set(at, 2 * k);
        y[k] = label;
      }
      const loss = timed(() => net.train(x, y));
      mean = losses.length ? 0.95 * mean + 0.05 * loss : loss;
      losses.push([losses.length, mean]);
    }
    return losses.length < STEPS;
  }

  function draw() {
    predict(grid, (i, best, p) => picture.data.set([...COLOURS[best], 115 * (1.5 * p - 0.5)], 4 * i));
    small.getContext("2d").putImageData(picture, 0, 0);
    const [c, width] = clear(plane);
    c.drawImage(small, 0, 0, width, width);
    let right = 0;
    predict(spots, (i, best) => {
      const { at, label, isHeldOut } = points[i], ink = `rgb(${COLOURS[label]})`, ground = colour("background-primary");
      right += isHeldOut && best === label;
      [c.fillStyle, c.strokeStyle, c.lineWidth] = isHeldOut ? [ground, ink, 2] : [ink, ground, 1];
      c.beginPath();
      c.arc((width * (1 + at[0] / EDGE)) / 2, (width * (1 - at[1] / EDGE)) / 2, 3.5, 0, 7);
      c.fill();
      c.stroke();
    });
    const marks = [1, 0.5, 0.2, 0.1, 0.05, 0.02];
    drawCurve(curve, losses, { steps: STEPS, low: 0.02, high: 1.3, marks, scale: Math.log });
    tell(losses.length, ` · ${right} of ${points.length - seen.length} held-out points right`);
  }

  play(box, { begin: () => { net.init(); losses = []; }, step, draw, pause: 5000 });
})();
