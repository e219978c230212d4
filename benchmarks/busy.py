"""A busy machine: how fast `fit` is on one thread, on two, and by default, while other processes want the processors.

The script starts the other processes itself: 0, 1, 2, 4 and 8 of them, each of which computes without end. They run as
caffelite runs, with the same priority and on the same processors. By default, caffelite chooses the number of threads
by itself; the other columns set it.

    python benchmarks/busy.py                  # with PyTorch's columns if it is installed
    python benchmarks/busy.py --only mnist --others 0 4
    python benchmarks/busy.py --quick          # only to see that it works

Every contestant has its own process. They take turns: each trains for about a second (of one thread of caffelite, while
the machine is quiet), then the next one. The other processes run all the time. Ratios of medians are shown, and of the
default also the slowest round.
"""

import argparse
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from statistics import median

import contestants
import convolutions
import harness
from convolutions import RELU, dense
from steps import Task
from workloads import adam

NETS = {
    "mnist": convolutions.Net(
        "dense 784-128-64-10", (784,), dense(784, 128, 64, 10, activation=RELU, at_end=False), 10, 128, *adam()
    ),
    "cifar": convolutions.NETS["cifar"],
    "lenet": convolutions.NETS["lenet"],
}
NUM_BUSY = [0, 1, 2, 4, 8]
THREADS = {"1 thread": 1, "2 threads": 2, "default": None}  # None: caffelite chooses


def caffelite(task):
    """Return a contestant: train(epochs, record) -> (seconds, losses), on `task.threads` threads."""
    if task.threads is not None:
        return contestants.caffelite(task)
    network = task.net.network()

    def train(epochs, record):
        seconds, _, history = task.net.fit(task.x, task.y, epochs, network)
        return seconds, history["loss"]

    return train


def start_process(make, task):
    """Return the process of a contestant that computes with `task.threads` threads."""
    harness.use_threads(task.threads or 1)
    if task.threads is None:
        del os.environ["OMP_NUM_THREADS"]  # so that nobody has set a number
    return harness.Process(make, task, cores=None)


@contextmanager
def busy(number):
    """Inside, this number of other processes compute without end."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def make_task(net, at_least):
    """Return the task, and the number of epochs that take one thread of caffelite `at_least` seconds."""
    model, _, _ = net.network()
    task = Task(net, *net.data(), [p.data.copy() for p in model.parameters()])
    train = start_process(caffelite, task)
    epochs = harness.epochs_to_time(train, False, at_least=at_least)
    train.close()
    task.draw_orders(epochs)
    return task, epochs


def time_rounds(processes, numbers, epochs, rounds):
    """Return the seconds of each round, by the number of other processes and the contestant."""
    seconds = {number: {name: [] for name in processes} for number in numbers}
    for number in numbers:
        with busy(number):
            for _ in range(rounds):
                for name, train in processes.items():
                    seconds[number][name].append(train(epochs, False)[0])
    return seconds


def report(name, task, numbers, epochs, rounds):
    """Time all contestants with one net, and print its table."""
    processes = {title: start_process(caffelite, replace(task, threads=n)) for title, n in THREADS.items()}
    for title in ("1 thread", "2 threads"):
        process = start_process(
            partial(convolutions.pytorch, last=task.net.convolves), replace(task, threads=THREADS[title])
        )
        if not process.missing:
            processes[f"PyTorch, {title}"] = process
    for train in processes.values():
        train(1, False)
    seconds = time_rounds(processes, numbers, epochs, rounds)
    for process in processes.values():
        process.close()

    steps = epochs * task.steps_an_epoch
    rows = []
    for number, by_name in seconds.items():
        alone = median(by_name["1 thread"])
        ratios = [f"{median(values) / alone:.2f}" for title, values in by_name.items() if title != "1 thread"]
        slowest = max(by_name["default"]) / alone
        rows.append([f"{number} others", f"{alone / steps * 1e6:,.0f}", *ratios, f"{slowest:.2f}"])
    print(f"\n{name}: {task.net}; {steps:,} steps a timing")
    titles = [title for title in processes if title != "1 thread"]
    print(harness.table(["", "1 thread: µs a step", *titles, "default, slowest"], rows), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NETS, default=["mnist", "cifar"], metavar="NAME",
                        help=f"these nets, of {', '.join(NETS)} (mnist cifar)")  # fmt: skip
    parser.add_argument(
        "--others", type=int, nargs="+", default=NUM_BUSY, help=f"how many other processes ({NUM_BUSY})"
    )
    parser.add_argument("--rounds", type=int, default=5, help="how often each is timed (5)")
    parser.add_argument("--quick", action="store_true", help="2 short rounds beside 0 and 1: not a measurement")
    options = parser.parse_args()
    numbers, rounds, at_least = options.others, options.rounds, 1.0
    if options.quick:
        numbers, rounds, at_least = [0, 1], 2, 0.01

    print(harness.environment("torch"))
    print(f"fit, float32, {rounds} rounds; columns after the first: time, 1 thread = 1")
    for name in options.only:
        task, epochs = make_task(NETS[name], at_least)
        report(name, task, numbers, epochs, rounds)


if __name__ == "__main__":
    main()
