"""Training steps in a browser: C files of `export_training`, compiled to WebAssembly by clang, beside `fit`.

The nets of the site's pages, and two that read digits, with the flags of the site and with those for speed. Node and
Chromium run them, one thread, through docs/_static/net.js. The losses of 50 steps are compared with `fit`.

    python benchmarks/browser.py
    python benchmarks/browser.py --quick      # only to see that it works

The time of a step is the least of many rounds. What is not installed is left out. `make wasm` says what clang needs.
"""

import argparse
import base64
import gzip
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import harness
import numpy as np

import caffelite as cl
import caffelite.c

STATIC = Path(__file__).parents[1] / "docs" / "_static"
FLAGS = (("-Os", "-msimd128"), ("-O3", "-msimd128"))
STEPS = 50
#: A function of JavaScript: it trains on batches in turn, and returns the losses, and µs a step.
MEASURE = """
async ({ wasm, name, indices, x, y, steps, rounds }) => {
  const net = await openNet(Uint8Array.from(atob(wasm), (c) => c.charCodeAt(0)), name);
  const inputs = net.array(indices ? Int32Array : Float32Array, x[0].length), losses = [];
  const targets = net.array(Int32Array, y[0].length);
  net.init();
  for (let i = 0; i < steps; i++) {
    inputs.set(x[i % x.length]);
    targets.set(y[i % y.length]);
    losses.push(net.train(inputs, targets));
  }
  const repeat = (times) => {
    net.init();
    const began = performance.now();
    for (let i = 0; i < times; i++) net.train(inputs, targets);
    return performance.now() - began;
  };
  const times = Math.ceil(500 / repeat(50)); // 10 ms, because a browser's clock has ticks of 0.1 ms
  let least = Infinity;
  for (let round = 0; round < rounds; round++) least = Math.min(least, repeat(times) / times);
  return [losses, 1000 * least];
}"""
NODE = 'readFileSync(0, "utf8"))).then((found) => console.log(JSON.stringify(found)))'


def load_site():
    """Return the module that makes the nets of the site's pages."""
    spec = importlib.util.spec_from_file_location("build", STATIC.parent / "_wasm" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_digits(*layers, shape):
    """Return what `export_training` takes, for a net that reads digits, and all digits."""
    (images, labels), _ = cl.datasets.digits()
    model = cl.Model(layers, seed=0)
    optimizer = cl.Adam(model.parameters(), lr=3e-3)
    net = {"model": model, "loss": cl.SoftmaxLoss(), "optimizer": optimizer, "batch_size": 32, "input_shape": shape}
    return net, images.reshape(-1, *shape), labels


def make_mlp():
    return make_digits(cl.Linear(64, 100), cl.ReLU(), cl.Linear(100, 10), shape=(64,))


def make_lenet():
    layers = [cl.Conv2d(1, 6, 3, padding=1), cl.ReLU(), cl.MaxPool2d(2), cl.Conv2d(6, 16, 3, padding=1), cl.ReLU()]
    layers += [cl.MaxPool2d(2), cl.Flatten(), cl.Linear(64, 32), cl.ReLU(), cl.Linear(32, 10)]
    return make_digits(*layers, shape=(1, 8, 8))


def make_spiral():
    x, y = cl.datasets.spiral(seed=0)
    order = np.random.default_rng(0).permutation(len(x))
    return load_site().make_spiral(), x[order], y[order]


def make_microgpt():
    rng = np.random.default_rng(0)
    x, y = np.full((64, 16), 26), np.full((64, 16), -1)
    for row, target, length in zip(x, y, rng.integers(3, 15, 64), strict=True):
        name = rng.integers(0, 26, length)
        row[1 : length + 1], target[: length + 1] = name, [*name, 26]
    return load_site().make_microgpt(), x, y


NETS = {
    "spiral": ("spiral 2-100-3, batch 32, SGD", make_spiral),
    "mlp": ("digits 64-100-10, batch 32, Adam", make_mlp),
    "lenet": ("LeNet for 8 × 8 digits, batch 32, Adam", make_lenet),
    "microgpt": ("microgpt, one name, Adam", make_microgpt),
}


def fit_losses(net, x, y):
    """Return the losses of the first steps of `fit`, a batch each."""
    options = {"loss": net["loss"], "optimizer": net["optimizer"], "shuffle": False, "verbose": 0}
    n, losses = net["batch_size"], []
    for i in range(STEPS):
        rows = slice(i * n % len(x), i * n % len(x) + n)
        losses += net["model"].fit(x[rows], y[rows], epochs=1, batch_size=n, **options)["loss"]
    return np.array(losses)


def run_in_node(question):
    """Return what MEASURE does in Node."""
    program = f'{(STATIC / "net.js").read_text()}\n({MEASURE})(JSON.parse(require("fs").{NODE}'
    done = subprocess.run(["node", "-e", program], input=json.dumps(question), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def open_chromium():
    """Return a function that does the same in Chromium, or None. It closes when the program ends."""
    names = ("chromium", "chromium-browser", "google-chrome")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if path is None or importlib.util.find_spec("playwright") is None:
        return None
    from playwright.sync_api import sync_playwright

    page = sync_playwright().start().chromium.launch(executable_path=path, args=["--no-sandbox"]).new_page()
    page.add_script_tag(content=(STATIC / "net.js").read_text())
    return lambda question: page.evaluate(MEASURE, question)


def make_question(wasm, name, net, x, y, rounds):
    """Return what MEASURE takes: a compiled net, and batches of whole rows."""
    n = net["batch_size"]
    batches = [[rows[i : i + n].ravel().tolist() for i in range(0, len(x) - n + 1, n)] for rows in (x, y)]
    question = {"wasm": base64.b64encode(wasm).decode(), "name": name, "indices": x.dtype.kind == "i"}
    return question | {"x": batches[0], "y": batches[1], "steps": STEPS, "rounds": rounds}


def compare(name, build, engines, rounds):
    """Return the rows of a net's table."""
    net, x, y = NETS[name][1]()
    n, rows, losses = net["batch_size"], [], []
    with tempfile.TemporaryDirectory() as folder:
        caffelite.c.export_training(path=Path(folder, f"{name}.c"), name=name, check=False, **net)
        for flags in FLAGS:
            build.compile_net(name, Path(folder), flags)
            wasm = Path(folder, f"{name}.wasm").read_bytes()
            found = [run(make_question(wasm, name, net, x, y, rounds)) for run in engines.values()]
            losses.append([mine for mine, _ in found])
            sizes = f"{len(wasm):,}", f"{len(gzip.compress(wasm)):,}"
            rows.append([" ".join(flags), *sizes, *[f"{time:.1f}" for _, time in found]])
    expected = fit_losses(net, x[: len(x) // n * n], y[: len(x) // n * n])
    return [
        [*row, f"{np.abs(np.array(mine) / expected - 1).max():.1e}"] for row, mine in zip(rows, losses, strict=True)
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one net, few rounds")
    options = parser.parse_args()
    build = load_site()
    if missing := [program for program in (build.CLANG, "node") if shutil.which(program) is None]:
        sys.exit(f"not installed: {', '.join(missing)}")
    harness.use_threads(1)
    print(harness.environment("playwright"))
    engines = {"Node": run_in_node} | ({"Chromium": run} if (run := open_chromium()) else {})
    header = ["", "bytes", "gzip", *[f"{engine}, µs" for engine in engines], "difference of losses"]
    for name in list(NETS)[: 1 if options.quick else None]:
        rows = compare(name, build, engines, 3 if options.quick else 300)
        print(f"\n{NETS[name][0]}\n\n{harness.table(header, rows)}")


if __name__ == "__main__":
    main()
