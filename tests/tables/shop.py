"""A table of a shop, and the commands on it."""

import contextlib
import csv
import io
from types import SimpleNamespace

import numpy as np

from caffelite import cli
from caffelite.tables import training
from caffelite.tables.recipe import Recipe

N = 400


def shop(n=N, seed=0):
    """Return the lines of a table in which `price` is not linear in size, and `sold` follows from city and price."""
    rng = np.random.default_rng(seed)
    size, city = rng.uniform(-2, 2, n), rng.choice(["Ulm", "Bonn", "Aachen"], n, p=[0.5, 0.3, 0.2])
    price = size**2 + 2 * (city == "Bonn") + 0.1 * rng.normal(size=n)
    sold = np.where(price + (city == "Ulm") > 2, "yes", "no")
    names = ["", "size", "city", "age", "country", "name", "since", "price", "sold"]
    ages = ["" if rng.random() < 0.1 else str(age) for age in rng.integers(1, 90, n)]
    cells = zip(
        range(n),
        size,
        city,
        ages,
        ["DE"] * n,
        map("n{}".format, range(n)),
        ["2020-01-02"] * n,
        price,
        sold,
        strict=True,
    )
    return [names, *cells]


def write_rows(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return str(path)


def run(*arguments):
    """Return the exit status of a command, and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = cli.main([str(argument) for argument in arguments])
        except SystemExit as exit:
            status = exit.code
    return SimpleNamespace(status=status, out=out.getvalue(), err=err.getvalue())


def learn_nets(frame, target, seed=0, **numbers):
    parts = training.split(target, 0.25, 0)
    nets = training.train_nets(frame, target, parts.training, Recipe(**{"nets": 2, **numbers}), seed, 0)
    return nets, parts
