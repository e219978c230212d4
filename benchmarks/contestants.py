"""What convolutions.py and sequences.py share: the training loops of caffelite, PyTorch and JAX, tables and options.

A net has what workloads.py says of one, and `classes`: the softmax loss of so many, or with 0 the mean squared error.
A contestant is a function of a Task (steps.py); it prepares, and returns train(epochs, record) -> (seconds, losses).
"""

import argparse
import copy
import math
import os
import re
from functools import partial
from statistics import median
from time import perf_counter

import harness
import numpy as np
from steps import compare, jax_rule, prepare, step_profiler, textbook_step
from workloads import columns

# ---- training loops -------------------------------------------------------------------------------------------------


def caffelite(task):
    import caffelite as cl

    cl.set_num_threads(task.threads)
    model, _, optimizer = network = task.net.network()
    start = copy.deepcopy((model.state_dict(), optimizer.state_dict()))

    def train(epochs, record):
        model.load_state_dict(start[0])
        optimizer.load_state_dict(start[1])
        seconds, _, history = task.net.fit(task.x, task.y, epochs, network)
        return seconds, history["loss"]

    return train


def start_pytorch(task, keeping=True):
    """Return the module torch, for this task's threads. `keeping`: malloc keeps its memory."""
    if keeping:
        harness.keep_memory()
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # compile in this process, and start no others
    import torch

    torch.set_num_threads(task.threads)
    return torch


def tensors(task):
    """Return the task's inputs and targets as PyTorch's tensors."""
    import torch

    return list(map(torch.from_numpy, columns(task.x, task.y)))


def pytorch_loss(net, model):
    """loss_of(*inputs, y) of a module."""
    import torch

    measure = torch.nn.CrossEntropyLoss() if net.classes else torch.nn.MSELoss()

    def compute_loss(*batch):
        *inputs, y = batch
        outputs = model(*inputs)
        return measure(outputs.flatten(0, -2), y.flatten()) if net.classes else measure(outputs, y)

    return compute_loss


def pytorch_optimizer(net, model):
    import torch

    return getattr(torch.optim, net.optimizer)(model.parameters(), **net.settings, fused=True)


def pytorch_trainer(task, model, data, weights, compiled):
    """`train` of a module that is given these weights, on tensors of inputs and targets.

    The weights are in the order of its parameters and of their shapes, but for those of Linears, (in, out).
    """
    import torch

    transposed = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Linear)}
    compute_loss = pytorch_loss(task.net, model)
    compute_loss = torch.compile(compute_loss) if compiled else compute_loss

    @torch.no_grad()
    def start():
        for p, values in zip(model.parameters(), weights, strict=True):
            p.copy_(torch.from_numpy(values.T if id(p) in transposed else values).reshape(p.shape))

    def train(epochs, record):
        start()
        optimizer = pytorch_optimizer(task.net, model)
        losses = np.zeros(epochs)
        began = perf_counter()
        for epoch, order in enumerate(map(torch.from_numpy, task.orders[:epochs])):
            for batch in zip(*[column[order].split(task.net.batch) for column in data], strict=True):
                optimizer.zero_grad()
                loss = compute_loss(*batch)
                loss.backward()
                optimizer.step()
                if record:
                    losses[epoch] += loss.item() * len(batch[-1]) / len(task.y)
        return perf_counter() - began, losses

    return train


def jax_trainer(task, apply, inputs, weights, scan=False):
    """`train` of apply(weights, *inputs) -> outputs, which begins with these weights, on arrays of inputs.

    `scan`: an epoch is one call. Its batches must have the same rows.
    """
    import jax
    from jax import numpy as jnp

    def compute_loss(w, *batch):
        *inputs, y = batch
        outputs = apply(w, *inputs)
        if task.net.classes:
            return -(jax.nn.log_softmax(outputs) * y).sum() / math.prod(y.shape[:-1])
        return ((outputs - y) ** 2).mean()

    rule, moments = jax_rule(task.net)

    def step(state, batch):
        t, w, *moments = state
        loss, g = jax.value_and_grad(compute_loss)(w, *batch)
        updated = [rule(t, *arrays) for arrays in zip(w, g, *moments, strict=True)]
        return (t + 1, *zip(*updated, strict=True)), loss

    y = jax.nn.one_hot(task.y, task.net.classes) if task.net.classes else jnp.array(task.y)
    data = [*map(jnp.array, inputs), y]
    split = jax.jit(lambda order: [[column[rows] for column in data] for rows in task.batches(order)])
    stack = jax.jit(lambda order: [column[order.reshape(-1, task.net.batch)] for column in data])
    run_batch = jax.jit(step, donate_argnums=0)
    run_batches = jax.jit(partial(jax.lax.scan, step), donate_argnums=0)

    def train(epochs, record):
        w = tuple(map(jnp.array, weights))
        state = jnp.ones(()), w, *[tuple(map(jnp.zeros_like, w)) for _ in range(moments)]
        losses = []
        began = perf_counter()
        for order in task.orders[:epochs]:
            order = order.astype(np.int32)
            if scan:
                state, epoch_losses = run_batches(state, stack(order))
                losses.append(epoch_losses)
                continue
            for batch in split(order):
                state, loss = run_batch(state, batch)
                losses.append(loss)
        jax.block_until_ready(state)
        seconds = perf_counter() - began
        return seconds, np.array(losses).reshape(epochs, -1).mean(1) if record else None

    return train


# ---- tables ---------------------------------------------------------------------------------------------------------


def report(name, task, num_epochs, curves, seconds, speeds):
    """Print a net's table; returns its row in the summary: caffelite's time, and peers' as multiples of it."""
    steps = num_epochs * task.steps_an_epoch
    medians, minima = [
        {peer: statistic(times) / steps * 1e6 for peer, times in seconds.items()} for statistic in (median, min)
    ]
    ratios = {peer: us / medians["caffelite"] for peer, us in medians.items()}
    rows = [
        [peer, f"{us:,.0f}", f"{minima[peer]:,.0f}", f"{ratios[peer]:.2f}", f"{curves[peer][-1]:.5f}"]
        for peer, us in medians.items()
    ]
    gflops = max(gflops for gflops, _ in speeds)
    floor = task.flops / gflops / 1e3
    print(f"\n{name}: {task.net}; {cores(task.threads)}; {steps:,} steps a timing")
    print(f"A step's {task.flops / 1e6:,.0f} MFLOP take {floor:,.0f} µs at {gflops:.0f} GFLOP/s (NumPy's, 1536³);")
    print(f"loss: the mean of epoch {len(curves['caffelite'])}\n")
    print(harness.table([name, "µs/step, median", "least", "time, caffelite = 1", "loss"], rows))

    best = {}  # of each library, and of all
    for peer, ratio in ratios.items():
        if peer != "caffelite":
            for library in (peer.split(",")[0], "all"):
                best[library] = min(best.get(library, math.inf), ratio)
    peer_ratios = [
        f"{best[library]:.2f}" if library in best else "–" for library in ("PyTorch", "torch.compile", "JAX", "all")
    ]
    own_us = minima["caffelite"]
    return [
        f"{name}, {cores(task.threads)}",
        f"{own_us:,.0f}",
        f"{floor:,.0f}",
        f"{100 * floor / own_us:.0f}%",
        *peer_ratios,
    ]


def cores(threads):
    return f"{threads} thread{'s' * (threads > 1)}"


def megabytes(count):
    return "?" if count is None else f"{count / 1e6:.1f} MB"


def report_profile(name, net):
    """Print caffelite's kernels of a step, with shares of the peak measured before and after."""
    machine, profile = harness.Process(harness.machine_speed), harness.Process(step_profiler, net)
    before = [machine()[0] for _ in range(5)]
    table, least = profile()
    gflops = max(before + [machine()[0] for _ in range(5)])
    print(f"\n{name}: the kernels of a step, the least of all replays, as shares of {gflops:.0f} GFLOP/s (NumPy's")
    print(f"matmul of 1536³ in the same minute). Without readings of the clock it takes {1e6 * least:,.1f} µs.\n")
    print(add_peak_shares(table, gflops))
    for process in (machine, profile):
        process.close()


def add_peak_shares(profile, gflops):
    """Return the table of `Program.profile` with one more column: a kernel's GFLOP/s as a share of the peak."""
    head, rule, *rows = profile.splitlines()
    width = max(map(len, (head, rule, *rows)))
    lines = [f"{head:{width}}  of peak", rule + "-" * (width - len(rule) + 9)]
    for row in rows:
        _, _, *numbers = re.split(r"\s{2,}", row)
        share = f"{float(numbers[1]) / gflops:.0%}" if len(numbers) == 4 else ""  # µs, GFLOP/s, GB/s, share
        lines.append(f"{row:{width}}  {share:>7}".rstrip())
    return "\n".join(lines)


# ---- memory ---------------------------------------------------------------------------------------------------------


def caffelite_memory(net, few, batch):
    """Return a contestant: () -> (bytes of the block of temporaries, the most that is alive at once, by how much it
    grows).

    Of a step on the part `batch` of the net's arrays, such as np.s_[:64], after one on the smaller part `few`.
    """
    import caffelite as cl

    step, data = textbook_step(net)

    def measure():
        cl.capture(step, *[column[few] for column in data])
        arrays, programs = [column[batch] for column in data], []
        grown = harness.memory_growth(lambda: programs.append(cl.capture(step, *arrays)))
        recorded, lives = programs[0].optimize(), {}
        for i, operand in recorded.operands():
            if operand.buffer.is_temporary:
                lives.setdefault(operand.buffer, [i, i])[1] = i
        alive = [
            sum(buffer.nbytes for buffer, (begin, end) in lives.items() if begin <= i <= end)
            for i in range(len(recorded.instructions))
        ]
        return recorded.memory[-1].nbytes, max(alive), grown

    return measure


def pytorch_memory_growth(net, model, data, few, batch):
    """By how many bytes a process that has made steps on the part `few` grows in steps on the part `batch`."""
    compute_loss, optimizer = pytorch_loss(net, model), pytorch_optimizer(net, model)

    def train(part):
        for _ in range(3):
            optimizer.zero_grad()
            compute_loss(*[column[part] for column in data]).backward()
            optimizer.step()

    train(few)
    return harness.memory_growth(lambda: train(batch))


# ---- all of it ------------------------------------------------------------------------------------------------------


def make_parser(description, nets):
    """Return the options that both scripts have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=nets, default=list(nets), metavar="NAME",
                        help=f"these nets, of {', '.join(nets)}")  # fmt: skip
    parser.add_argument("--threads", type=int, nargs="+", default=[1], help="numbers of threads, in turn (1)")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is timed (5)")
    parser.add_argument("--quick", action="store_true", help="2 short rounds: a smoke test, not a measurement")
    return parser


def begin(options):
    """Print what is measured where."""
    harness.use_threads(1)
    print(f"float32, {num_rounds(options)} rounds")
    print(harness.environment("torch", "jax"))


def num_rounds(options):
    return 2 if options.quick else options.rounds


def compare_all(nets, contestants, options):
    """Compare and time the contestants(net, quick) of the nets asked for; print tables; returns who is missing."""
    summary = []
    for threads in options.threads:
        harness.use_threads(threads)
        for name in options.only:
            task, check_epochs, num_epochs = prepare(nets[name], options.quick, caffelite, threads)
            all_contestants = {"caffelite": caffelite, **contestants(task.net, options.quick)}
            *results, missing = compare(all_contestants, task, check_epochs, num_epochs, num_rounds(options))
            summary.append(report(name, task, num_epochs, *results))
    harness.use_threads(1)

    print("\nThe best times of peers with caffelite's as 1; the share of the multiply-adds, at the peak, in its time\n")
    header = ["caffelite, least", "µs/step", "floor, µs", "share", "PyTorch", "torch.compile", "JAX", "the best"]
    print(harness.table(header, summary))
    print("\nOn AMD processors PyTorch's matrix products (MKL) use AVX2, not AVX-512.")
    return missing
