"""`caffelite spiral`."""

from __future__ import annotations

import argparse
from typing import Any

from caffelite._support.terminal import echo
from caffelite.cli.options import add_training
from caffelite.cli.output import draw
from caffelite.cli.training import BATCH_SIZE, train
from caffelite.data import datasets
from caffelite.data.generator import DataGenerator
from caffelite.functions import Linear, ReLU
from caffelite.model.model import Model
from caffelite.optimizers import SGD
from caffelite.visualize import plots

TEXT = f"""\
Train a network with one hidden layer, 2-100-3 with ReLU, on three intertwined spirals of 100 points each. It learns by
stochastic gradient descent on batches of {BATCH_SIZE}, with momentum 0.9 and weight decay 1e-4. The learning rate falls
from 0.1 to 0. The picture shows the points and the regions of the three classes, with the loss and the accuracy beside
them."""


def add(commands: Any) -> None:
    """Add the command."""
    add_training(commands, spiral, 400, "learn three intertwined spirals and draw the regions", TEXT)


def spiral(arguments: argparse.Namespace) -> int:
    """Learn the spirals and draw the regions."""
    x, y = datasets.spiral(points_per_class=100, classes=3, seed=arguments.seed)
    data = DataGenerator(x, y, batch_size=BATCH_SIZE, seed=arguments.seed)
    model = Model([Linear(2, 100), ReLU(), Linear(100, 3)], seed=arguments.seed)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    history = train(model, (2,), data, optimizer, arguments.epochs)
    echo(f"accuracy {(model.predict(x).argmax(axis=1) == y).mean():.1%} on the {len(x)} points")
    return draw(lambda: plots.spiral_picture(model, history, x, y), arguments.output)
