"""`caffelite spiral` and `digits`: training on built-in data."""

from __future__ import annotations

import argparse
from typing import Any

from caffelite._support.terminal import echo
from caffelite.cli.options import add_training
from caffelite.cli.output import draw
from caffelite.cli.training import BATCH_SIZE, train
from caffelite.core import initializers
from caffelite.data import augment, datasets
from caffelite.data.generator import DataGenerator
from caffelite.functions import BatchNorm, Conv2d, Flatten, Linear, MaxPool2d, ReLU
from caffelite.model.model import Model
from caffelite.optimizers import SGD, Adam
from caffelite.visualize import plots

SPIRAL_TEXT = f"""\
Train a network with one hidden layer, 2-100-3 with ReLU, on three intertwined spirals of 100 points each. It learns by
stochastic gradient descent on batches of {BATCH_SIZE}, with momentum 0.9 and weight decay 1e-4. The learning rate falls
from 0.1 to 0. The picture shows the points and the regions of the three classes, with the loss and the accuracy beside
them."""

DIGITS_TEXT = f"""\
Train a convolutional network to read handwritten digits of 8 x 8 pixels (from UCI, included in the package). It trains
on 1,437 images, shifted at random by up to one pixel, and tests on 360 held-out images. It has 16 filters of 5 x 5
pixels and 32 of 3 x 3, each with batch normalization and ReLU, then a max-pool and a layer of scores. It learns with
Adam on batches of {BATCH_SIZE}. The learning rate falls from 0.003 to 0. The picture shows every held-out image with a
wrong prediction, the loss and the accuracy, and the first filters with their outputs for an image."""


def add(commands: Any) -> None:
    """Add both commands."""
    add_training(commands, spiral, 400, "learn three intertwined spirals and draw the regions", SPIRAL_TEXT)
    add_training(commands, digits, 20, "learn handwritten digits and draw the wrong predictions", DIGITS_TEXT)


def spiral(arguments: argparse.Namespace) -> int:
    """Learn the spirals and draw the regions."""
    x, y = datasets.spiral(points_per_class=100, classes=3, seed=arguments.seed)
    data = DataGenerator(x, y, batch_size=BATCH_SIZE, seed=arguments.seed)
    model = Model([Linear(2, 100), ReLU(), Linear(100, 3)], seed=arguments.seed)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    history = train(model, (2,), data, optimizer, arguments.epochs)
    echo(f"accuracy {(model.predict(x).argmax(axis=1) == y).mean():.1%} on the {len(x)} points")
    return draw(lambda: plots.spiral_picture(model, history, x, y), arguments.output)


def digits(arguments: argparse.Namespace) -> int:
    """Learn the digits and draw the mistakes."""
    (x, y), (x_test, y_test) = datasets.digits()
    x, x_test = x[:, None], x_test[:, None]  # one channel: (n, 1, 8, 8)
    data = DataGenerator(x, y, batch_size=BATCH_SIZE, seed=arguments.seed, transform=augment.shift(1))
    small = initializers.normal(0.01)  # the filters in the picture are then learned, not random
    filters = Conv2d(1, 16, 5, padding="same", initializer=small)
    model = Model([filters, BatchNorm(16), ReLU()], seed=arguments.seed)
    model.add(Conv2d(16, 32, 3, padding="same")).add(BatchNorm(32)).add(ReLU()).add(MaxPool2d(2))
    model.add(Flatten()).add(Linear(32 * 4 * 4, 10))
    optimizer = Adam(model.parameters(), lr=3e-3)
    history = train(model, (1, 8, 8), data, optimizer, arguments.epochs, validation_data=(x_test, y_test))
    predictions = model.predict(x_test).argmax(axis=1)
    echo(f"accuracy {(predictions == y_test).mean():.1%} on the {len(x_test)} held-out images")
    return draw(lambda: plots.digits_picture(history, x_test[:, 0], y_test, predictions, filters), arguments.output)
