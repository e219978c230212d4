"""Training steps, beside other libraries and beside the time that their arithmetic alone would take.

µs a step for the networks in workloads.py, from 2-100-3 to 784-512-512-10: caffelite, PyTorch eager, scikit-learn's
MLPClassifier, NumPy written by hand, JAX, and tinygrad (which needs clang), side by side in one run.

    python benchmarks/steps.py             # the peers are the extra `bench`; those not installed are left out
    python benchmarks/steps.py --only spiral32 mnist
    python benchmarks/steps.py --profile   # then also, kernel by kernel, where the time of caffelite's steps goes
    python benchmarks/steps.py --chart examples/speed.svg   # also draw the medians, for light and for dark pages
    python benchmarks/steps.py --quick     # only to see that it works
    XLA_FLAGS=--xla_cpu_experimental_ynn_fusion_type=-reduce python benchmarks/steps.py  # JAX 0.12 at its best

Every contestant has its own process, all of them pinned to the same core, one working at a time. They start from the
same weights, take the same batches and make the same updates: their loss curves are compared before anything is timed
(without dropout, whose masks are everybody's own), and a disagreement ends the run. Then come rounds, each of which
times every contestant once, so that a machine that is busy for a while is busy for all. All make the same number of
steps, with which caffelite is busy for 0.1 to 0.2 s; tinygrad stops after a second.

caffelite is timed through `Model.fit` as a user calls it, on a new model each time, its loss history included. The
peers are timed without recording losses, with tensors sliced and no data loader, PyTorch with its fused optimizers, JAX
with donation, compiled for a step and for an epoch, or as many epochs as make ten steps.
"""

import argparse
import os
import shutil
import warnings
from dataclasses import dataclass, field
from functools import partial
from itertools import count, pairwise
from statistics import median
from time import perf_counter

import chart
import harness
import numpy as np
from workloads import SEED, WORKLOADS, Workload, add_options, columns


@dataclass
class Task:
    net: Workload
    x: np.ndarray  # (rows, features) float32, or a tuple of inputs
    y: np.ndarray  # (rows,) int64
    weights: list[np.ndarray]  # W1 (in, out), b1 (out,), W2, b2 …
    orders: list[np.ndarray] = field(default_factory=list)  # the rows' order in each epoch, the one that `fit` takes
    threads: int = 1

    @property
    def is_shuffled(self):
        """Whether orders differ; where a batch is all rows, they need not."""
        return self.net.batch < len(self.y)

    @property
    def steps_an_epoch(self):
        return -(-len(self.y) // self.net.batch)

    @property
    def epochs_per_call(self):
        """How many epochs make ten steps."""
        return -(-10 // self.steps_an_epoch)

    @property
    def flops(self):
        """A step's multiply-adds, counted twice, the mean of an epoch."""
        return len(self.y) / self.steps_an_epoch * self.net.flops

    def batches(self, order):
        return [order[i : i + self.net.batch] for i in range(0, len(order), self.net.batch)]

    def draw_orders(self, epochs):
        import caffelite as cl

        rows = np.arange(len(self.y))
        epoch = cl.DataGenerator(rows, batch_size=len(rows), seed=SEED)
        self.orders = [order for _ in range(epochs) for order in epoch] if self.is_shuffled else [rows] * epochs


# ---- the contestants: each prepares, and returns train(epochs, record) -> (seconds, losses) -------------------------


def caffelite(task):
    def train(epochs, record):
        net = task.net.without_dropout() if record else task.net
        seconds, _, history = net.fit(task.x, task.y, epochs)
        return seconds, history["loss"]

    return train


def pytorch(task):
    import torch

    torch.set_num_threads(1)
    x, y = torch.from_numpy(task.x), torch.from_numpy(task.y)

    def train(epochs, record):
        *hidden, last = pairwise(task.net.sizes)
        layers = []
        for shape in hidden:
            layers += [torch.nn.Linear(*shape)]
            layers += [torch.nn.BatchNorm1d(shape[1])] if task.net.norms else []
            layers += [torch.nn.ReLU()]
            layers += [torch.nn.Dropout(task.net.dropout)] if task.net.dropout and not record else []
        model = torch.nn.Sequential(*layers, torch.nn.Linear(*last))
        with torch.no_grad():
            for p, values in zip(model.parameters(), task.weights, strict=True):
                p.copy_(torch.from_numpy(values.T))
        optimizer = getattr(torch.optim, task.net.optimizer)(model.parameters(), **task.net.settings, fused=True)
        cross_entropy = torch.nn.CrossEntropyLoss()
        losses = np.zeros(epochs)
        start = perf_counter()
        for epoch, order in enumerate(task.orders[:epochs]):
            batches = [(x, y)]
            if task.is_shuffled:
                order = torch.from_numpy(order)
                batches = zip(x[order].split(task.net.batch), y[order].split(task.net.batch), strict=True)
            for xb, yb in batches:
                optimizer.zero_grad()
                loss = cross_entropy(model(xb), yb)
                loss.backward()
                optimizer.step()
                if record:
                    losses[epoch] += loss.item() * len(xb) / len(x)
        return perf_counter() - start, losses

    return train


def scikit_learn(task):
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    warnings.simplefilter("ignore", ConvergenceWarning)  # it wants to go on until it has converged
    settings = task.net.settings
    if task.net.optimizer == "SGD":
        rule = {"solver": "sgd", "momentum": settings["momentum"], "nesterovs_momentum": False}
    else:
        rule = dict(zip(("beta_1", "beta_2", "epsilon"), (*settings["betas"], settings["eps"]), strict=True))

    def train(epochs, record):
        classifier = MLPClassifier(
            task.net.sizes[1:-1], learning_rate_init=settings["lr"], **rule, batch_size=task.net.batch,
            shuffle=task.is_shuffled, alpha=settings["weight_decay"] * task.net.batch, max_iter=1, tol=0,
            n_iter_no_change=10**9, random_state=SEED, warm_start=True,
        )  # fmt: skip
        classifier.fit(task.x, task.y)
        weights = [values.copy() for values in task.weights]
        classifier.coefs_, classifier.intercepts_ = weights[::2], weights[1::2]
        classifier.set_params(max_iter=epochs)
        start = perf_counter()
        classifier.fit(task.x, task.y)
        return perf_counter() - start, np.array(classifier.loss_curve_[1:])

    return train


def numpy_by_hand(task):
    """All arrays are made beforehand, and parameters, gradients and the optimizer's moments are one vector each."""
    ends = np.cumsum([values.size for values in task.weights])
    w, g = np.zeros((2, ends[-1]), np.float32)

    def views(vector):
        parts = [part.reshape(p.shape) for part, p in zip(np.split(vector, ends[:-1]), task.weights, strict=True)]
        return parts[::2], parts[1::2]

    (W, b), (dW, db) = views(w), views(g)
    *hidden, classes = task.net.sizes[1:]
    onehot = np.eye(classes, dtype=np.float32)[task.y]
    xs, ys, batch = task.x.copy(), onehot.copy(), task.net.batch

    def arrays(rows, widths):
        return [np.empty((rows, width), np.float32) for width in widths]

    # For full and for short batches: the layers' outputs, gradients of the hidden ones', and a number for each row.
    widths = (*hidden, classes), hidden, [1]
    memory = {rows: [arrays(rows, each) for each in widths] for rows in (batch, len(xs) % batch)}
    matmul, add, subtract, multiply, divide = np.matmul, np.add, np.subtract, np.multiply, np.divide
    rule = numpy_sgd if task.net.optimizer == "SGD" else numpy_adam

    def train(epochs, record):
        w[:] = np.concatenate([values.ravel() for values in task.weights])
        update = rule(w, g, **task.net.settings)
        losses = np.zeros(epochs)
        start = perf_counter()
        for epoch, order in enumerate(task.orders[:epochs]):
            if task.is_shuffled:
                np.take(task.x, order, axis=0, out=xs)
                np.take(onehot, order, axis=0, out=ys)
            for i in range(0, len(xs), batch):
                x, y = xs[i : i + batch], ys[i : i + batch]
                n = len(x)
                outputs, gradients, [row] = memory[n]

                h = x
                for k, s in enumerate(outputs):
                    matmul(h, W[k], s)
                    h = add(s, b[k], s)
                    if k < len(hidden):
                        np.maximum(h, 0, out=h)

                np.maximum.reduce(s, 1, None, row, True)
                subtract(s, row, s)
                np.exp(s, s)
                add.reduce(s, 1, None, row, True)
                divide(s, row, s)
                if record:
                    losses[epoch] -= np.log((s * y).sum(axis=1)).sum() / len(xs)
                subtract(s, y, s)
                divide(s, n, s)

                for k in range(len(hidden), -1, -1):
                    h = outputs[k - 1] if k else x
                    matmul(h.T, s, dW[k])
                    add.reduce(s, 0, None, db[k])
                    if k:
                        s = matmul(s, W[k].T, gradients[k - 1])
                        multiply(s, np.sign(h, h), s)  # h ≥ 0, so its sign is ReLU's derivative
                update()
        return perf_counter() - start, losses

    return train


def numpy_sgd(w, g, lr, momentum, weight_decay):
    v, change = np.zeros((2, len(w)), w.dtype)

    def update():
        np.multiply(v, momentum, v)
        np.add(v, g, v)
        if weight_decay:
            np.multiply(w, weight_decay, change)
            np.add(v, change, v)
        np.multiply(v, lr, change)
        np.subtract(w, change, w)

    return update


def numpy_adam(w, g, lr, betas, eps, weight_decay):
    """Adam, and AdamW where weights decay; √(1 − β₂ᵗ) is drawn out of m̂ / (√v̂ + eps), which saves a pass."""
    (beta1, beta2), steps = betas, count(1)
    m, v, change = np.zeros((3, len(w)), w.dtype)

    def update():
        t = next(steps)
        correction = (1 - beta2**t) ** 0.5
        np.multiply(v, beta2, v)
        np.multiply(g, g, change)
        np.multiply(change, 1 - beta2, change)
        np.add(v, change, v)
        np.multiply(m, beta1, m)
        np.multiply(g, 1 - beta1, g)
        np.add(m, g, m)
        np.sqrt(v, change)
        np.add(change, eps * correction, change)
        np.divide(m, change, change)
        np.multiply(change, lr * correction / (1 - beta1**t), change)
        if weight_decay:
            np.multiply(w, 1 - lr * weight_decay, w)
        np.subtract(w, change, w)

    return update


def jax(task, scan):
    import jax
    from jax import numpy as jnp

    x, y = jnp.array(task.x), jax.nn.one_hot(task.y, task.net.sizes[-1])
    batch, at_once = task.net.batch, task.epochs_per_call if scan else 1

    def compute_loss(parameters, x, y, step, dropout):
        *hidden, W, b = parameters
        key = jax.random.fold_in(jax.random.key(SEED), step.astype(int))
        for i in range(0, len(hidden), 4 if task.net.norms else 2):
            x = x @ hidden[i] + hidden[i + 1]
            if task.net.norms:  # without running moments: a little less than the others do
                x = (x - x.mean(0)) * jax.lax.rsqrt(x.var(0) + 1e-5) * hidden[i + 2] + hidden[i + 3]
            x = jnp.maximum(x, 0)
            if dropout:
                x = jnp.where(
                    jax.random.bernoulli(jax.random.fold_in(key, i), 1 - dropout, x.shape), x / (1 - dropout), 0
                )
        return -(jax.nn.log_softmax(x @ W + b) * y).sum() / len(y)

    rule, moments = jax_rule(task.net)

    def step(state, batch, dropout):
        t, w, *moments = state
        loss, g = jax.value_and_grad(compute_loss)(w, *batch, t, dropout)
        updated = [rule(t, *arrays) for arrays in zip(w, g, *moments, strict=True)]
        return (t + 1, *zip(*updated, strict=True)), loss

    def epoch(state, order, dropout):
        xs, ys = (x[order], y[order]) if task.is_shuffled else (x, y)
        full = len(x) // batch * batch
        batches = [array[:full].reshape(-1, batch, array.shape[1]) for array in (xs, ys)]
        state, losses = jax.lax.scan(partial(step, dropout=dropout), state, batches)
        if full < len(x):
            state, last = step(state, (xs[full:], ys[full:]), dropout)
            losses = jnp.append(losses, last)
        return state, losses

    def run_epochs(state, orders, dropout):
        return jax.lax.scan(partial(epoch, dropout=dropout), state, orders)

    one_step, some_epochs = [jax.jit(f, donate_argnums=0, static_argnums=2) for f in (step, run_epochs)]
    split = jax.jit(lambda order: [(x[rows], y[rows]) for rows in task.batches(order)])

    def train(epochs, record):
        w = tuple(map(jnp.array, task.weights))
        state = jnp.ones(()), w, *[tuple(map(jnp.zeros_like, w)) for _ in range(moments)]
        orders = np.reshape(np.array(task.orders[:epochs], np.int32), (-1, at_once, len(x)))
        dropout = 0.0 if record else task.net.dropout
        values = []  # the losses of the steps, as they come
        start = perf_counter()
        for order in orders:
            if scan:
                state, value = some_epochs(state, order, dropout)
                values.append(value)
            else:
                for rows in split(order[0]) if task.is_shuffled else [(x, y)]:
                    state, value = one_step(state, rows, dropout)
                    values.append(value)
        jax.block_until_ready(state)
        seconds = perf_counter() - start
        if not record:
            return seconds, None
        if task.net.dropout:
            train(at_once, False)  # so that it is compiled before it is timed
        losses = np.hstack([np.ravel(value) for value in values]).reshape(epochs, -1)
        return seconds, np.average(losses, axis=1, weights=[len(rows) for rows in task.batches(task.orders[0])])

    return train


def jax_rule(net):
    """rule(step, weights, gradients, *moments) -> (weights, *moments), and how many moments there are."""
    from jax import numpy as jnp

    def sgd(t, w, g, v, lr, momentum, weight_decay):
        v = momentum * v + g + (weight_decay * w if weight_decay else 0)
        return w - lr * v, v

    def adam(t, w, g, m, v, lr, betas, eps, weight_decay):
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        m_hat, v_hat = [moment / -jnp.expm1(t * np.log(beta)) for moment, beta in zip((m, v), betas, strict=True)]
        return (1 - lr * weight_decay) * w - lr * m_hat / (jnp.sqrt(v_hat) + eps), m, v

    rule, moments = (sgd, 1) if net.optimizer == "SGD" else (adam, 2)
    return partial(rule, **net.settings), moments


def tinygrad(task):
    """Its time is taken over a second at most, and counted for all steps."""
    os.environ["DEV"] = "CPU"
    from tinygrad import Tensor, TinyJit, nn
    from tinygrad.helpers import TRAINING

    if not shutil.which(os.environ.get("CC", "clang")):
        raise ModuleNotFoundError("tinygrad compiles by clang", name="clang")

    TRAINING.value = 1
    w, settings = list(map(Tensor, task.weights)), dict(task.net.settings)
    if task.net.optimizer == "SGD":
        optimizer = nn.optim.SGD(w, **settings)
        state = optimizer.b
    else:
        b1, b2 = settings.pop("betas")
        optimizer = nn.optim.AdamW(w, b1=b1, b2=b2, **settings)
        state = [optimizer.b1_t, optimizer.b2_t, *optimizer.m, *optimizer.v]
    start = [*task.weights, *[p.numpy() for p in state]]

    def compute_loss(x, y, dropout):
        *hidden, W, b = w
        for i in range(0, len(hidden), 4 if task.net.norms else 2):
            x = x @ hidden[i] + hidden[i + 1]
            if task.net.norms:  # without running moments, as JAX
                x = (x - x.mean(0)) * (x.var(0, correction=0) + 1e-5).rsqrt() * hidden[i + 2] + hidden[i + 3]
            x = x.relu().dropout(dropout)
        return (x @ W + b).sparse_categorical_crossentropy(y)

    def make_step(dropout):
        @TinyJit
        def step(x, y):
            optimizer.zero_grad()
            loss = compute_loss(x, y, dropout).backward()
            return loss.realize(*optimizer.schedule_step())

        return step

    # A TinyJit is compiled at its second call, for batches of one size.
    sizes = {len(rows) for rows in task.batches(np.arange(len(task.x)))}
    steps = {(rows, dropout): make_step(dropout) for rows in sizes for dropout in {0.0, task.net.dropout}}
    batches = {rows: [Tensor(column[:rows]).realize() for column in (task.x, task.y)] for rows in sizes}
    for (rows, _), step in steps.items():
        for _ in range(3):
            step(*batches[rows])

    def train(epochs, record):
        Tensor.realize(*[p.assign(Tensor(values)) for p, values in zip([*w, *state], start, strict=True)])
        dropout = 0.0 if record else task.net.dropout
        losses = np.zeros(epochs)
        began = perf_counter()
        for epoch, order in enumerate(task.orders[:epochs], 1):
            for rows in task.batches(order):
                batch = batches[len(rows)]
                if task.is_shuffled:
                    batch = [Tensor(column[rows]).realize() for column in (task.x, task.y)]
                loss = steps[len(rows), dropout](*batch)
                if record:
                    losses[epoch - 1] += loss.item() * len(rows) / len(task.x)
            loss.item()
            if not record and perf_counter() - began > 1:
                break
        return (perf_counter() - began) * epochs / epoch, losses

    return train


CONTESTANTS = {
    "caffelite": caffelite,
    "PyTorch": pytorch,
    "scikit-learn": scikit_learn,
    "NumPy by hand": numpy_by_hand,
    "JAX, jit a step": partial(jax, scan=False),
    "JAX, scan": partial(jax, scan=True),
    "tinygrad": tinygrad,
}
DIFFERS = {"scikit-learn"}  # see the note at the end
TOLERANCES = {"tinygrad": 1e-3}  # its Adam computes 1 − β₂ᵗ in float32, where half of the digits cancel at first
WITHOUT_NORMS = {"scikit-learn", "NumPy by hand"}


# ---- comparing and timing -------------------------------------------------------------------------------------------


def check_agreement(curves, tolerance=1e-4):
    """Raise unless every loss curve is caffelite's, but for the rounding of float32."""
    for name, curve in curves.items():
        error = np.max(np.abs(np.divide(curve, curves["caffelite"]) - 1))
        if not error <= TOLERANCES.get(name, tolerance) and name not in DIFFERS:
            raise SystemExit(f"{name}'s losses differ from caffelite's by up to {error:.1e}: {list(curve)}")


def prepare(net, quick, contestant=caffelite, threads=1):
    """Return the task, and how many epochs are compared (of `net.check_epochs` steps or a few more) and timed.

    Both are at least ten steps. A timing keeps the contestant busy for 0.1 s or more.
    """
    model, _, _ = net.network()
    task = Task(net, *net.data(), [p.data.copy() for p in model.parameters()], threads=threads)
    check_epochs = num_epochs = task.epochs_per_call
    if not quick:
        check_epochs *= -(-net.check_steps // (num_epochs * task.steps_an_epoch))
        probe = harness.Process(contestant, task, cores=threads)
        num_epochs = harness.epochs_to_time(probe, False, first=num_epochs)
        probe.close()
    task.draw_orders(max(check_epochs, num_epochs))
    return task, check_epochs, num_epochs


def compare(contestants, task, check_epochs, num_epochs, rounds):
    """Check and time all contestants: loss curves and seconds by name, the machine's speeds, who is missing."""
    processes, missing = {}, []
    for name, make in contestants.items():
        process = harness.Process(make, task, cores=task.threads)
        if process.missing:
            missing.append(f"{name} (no module {process.missing})")
        else:
            processes[name] = process
    curves = {name: train(check_epochs, True)[1] for name, train in processes.items()}
    check_agreement(curves)

    machine = harness.Process(harness.machine_speed, cores=task.threads)
    speeds, seconds = [], {name: [] for name in processes}
    for _ in range(rounds):
        speeds.append(machine())
        for name, train in processes.items():
            seconds[name].append(train(num_epochs, False)[0])
    for process in (machine, *processes.values()):
        process.close()
    return curves, seconds, speeds, missing


def report(name, task, num_epochs, curves, seconds, speeds):
    """Print a workload's table; returns its row in the summary, and who is faster by how much, if anyone is."""
    steps = num_epochs * task.steps_an_epoch
    medians, minima = [
        {peer: statistic(times) / steps * 1e6 for peer, times in seconds.items()} for statistic in (median, min)
    ]
    ratios = {peer: us / medians["caffelite"] for peer, us in medians.items()}
    rows = []
    for peer, us in medians.items():
        loss = f"{curves[peer][-1]:.5f}{'*' if peer in DIFFERS else ' '}"
        rows.append([peer, f"{us:.1f}", f"{minima[peer]:.1f}", f"{ratios[peer]:.2f}", f"{1e6 / us:,.0f}", loss])
    gflops, copied = (max(values) for values in zip(*speeds, strict=True))
    floor = task.flops / gflops / 1e3

    print(f"\n{name}: {task.net}; {steps:,} steps a timing")
    print(f"A step's multiply-adds take {floor:.2f} µs at the peak, {gflops:.0f} GFLOP/s (NumPy's matmul, 1536³);")
    print(f"copying {copied:.1f} GB/s; loss: the mean of epoch {len(curves['caffelite'])}\n")
    print(harness.table([name, "µs/step, median", "least", "time, caffelite = 1", "steps/s", "loss "], rows))

    del ratios["caffelite"]
    best = min(ratios, key=ratios.__getitem__, default=None)
    own_us, torch = minima["caffelite"], f"{ratios['PyTorch']:.2f}" if "PyTorch" in ratios else "–"
    if best is None:  # no peer that is installed has these layers
        return [name, f"{own_us:.1f}", torch, "–", "–", f"{100 * floor / own_us:.0f}%"], None
    row = [name, f"{own_us:.1f}", torch, best, f"{ratios[best]:.2f}", f"{100 * floor / own_us:.0f}%"]
    return row, f"{name} ({best}, {ratios[best]:.2f})" if ratios[best] < 1 else None


def textbook_step(net):
    """Return a training step (*inputs, y) -> loss of the net in caffelite, to be recorded, and its data."""
    model, loss, optimizer = net.network()

    def step(*batch):
        *inputs, y = batch
        optimizer.zero_grad()
        value = loss(model(*inputs), y)
        value.backward()
        optimizer.step()
        return value

    return step, columns(*net.data())


def step_profiler(net):
    """Return a contestant: profile() -> (the table of a training step's kernels, the least seconds of a replay)."""
    import caffelite as cl

    step, data = textbook_step(net)
    program = cl.capture(step, *[column[: net.batch] for column in data])

    def profile():
        seconds = min(harness.seconds_per_call("run()", 1e-3, run=program.replay.run) for _ in range(10))
        return program.profile(max(20, int(0.2 / seconds))), seconds

    return profile


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--profile", action="store_true", help="also time the kernels of caffelite's steps")
    parser.add_argument("--chart", metavar="FILE", help="also write this SVG file, and one for dark pages beside it")
    options = parser.parse_args()
    rounds = 2 if options.quick else options.rounds

    harness.use_threads(1)
    print(f"float32, one thread on one core, {rounds} rounds")
    print(harness.environment("torch", "scikit-learn", "jax", "tinygrad"))
    summary, slower, chart_data = [], [], {}
    for name in options.only:
        task, check_epochs, num_epochs = prepare(WORKLOADS[name], options.quick)
        contestants = {
            name: make for name, make in CONTESTANTS.items() if not (task.net.norms and name in WITHOUT_NORMS)
        }
        *results, missing = compare(contestants, task, check_epochs, num_epochs, rounds)
        row, faster = report(name, task, num_epochs, *results)
        summary.append(row)
        slower += [faster] if faster else []
        medians = {peer: median(times) for peer, times in results[1].items()}
        own_us = medians["caffelite"]
        us = own_us / num_epochs / task.steps_an_epoch * 1e6
        title = f"{task.net.title}: " + (f"{us:.2g} µs" if us < 99.5 else f"{us / 1e3:.2g} ms")
        chart_data[title] = {peer: seconds / own_us for peer, seconds in medians.items()}
    if options.chart:
        chart.write(
            options.chart, chart_data, f"Time of a training step, caffelite = 1. {harness.processor()}, one core"
        )

    header = ["caffelite, least", "µs/step", "PyTorch's time", "fastest peer", "its time", "share of arithmetic"]
    print("\nPeers' times with caffelite's as 1; the share of the multiply-adds, at the peak, in caffelite's time\n")
    print(harness.table(header, summary))
    print(f"\nA peer is faster in: {'; '.join(slower) or 'nowhere'}\n")
    print("* not compared: scikit-learn draws orders of its own, decays weights only, by alpha / rows of the batch and")
    print("  with Adam in the gradient, and counts the penalty as loss")
    print("On AMD processors PyTorch's matrix products (MKL) use AVX2, not AVX-512.")
    for name in options.only if options.profile else []:
        table, min_seconds = harness.Process(step_profiler, WORKLOADS[name])()
        print(f"\nThe time of each kernel in a step of {name}, measured with a reading of the clock, the least of")
        print(f"all replays. Without readings a replay takes {1e6 * min_seconds:.2f} µs.")
        print(f"`fit` also fetches batches and sums losses.\n\n{table}")
    if missing:
        print(f"\nNot installed, left out: {'; '.join(missing)}")


if __name__ == "__main__":
    main()
