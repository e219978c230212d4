"""The `caffelite` command: train on a built-in data set, say how it went, and draw a picture of it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from caffelite import augment, datasets, initializers, plots
from caffelite.data import DataGenerator
from caffelite.functions import BatchNorm, Conv2d, Flatten, Linear, MaxPool2d, ReLU, SoftmaxLoss
from caffelite.model import History, Model
from caffelite.optimizers import SGD, Adam, Optimizer
from caffelite.threads import show_config

BATCH_SIZE = 32
FORMATS = (".png", ".jpg", ".svg", ".pdf")  # of pictures

SPIRAL = f"""\
Train a network of one hidden layer, 2-100-3 with ReLU, to tell apart three intertwined spirals of 100 points each.
Stochastic gradient descent on batches of {BATCH_SIZE}, with momentum 0.9 and weight decay 1e-4; the learning rate falls
from 0.1 to 0. The picture shows the points over the regions that were learned, with the loss and the accuracy beside
them."""

DIGITS = f"""\
Train a convolutional network to read handwritten digits: 1,437 images of 8 x 8 pixels (UCI, in the package) to learn
from, moved at random by up to a pixel, and 360 held out to test it on. It has 16 filters of 5 x 5 pixels, 32 of 3 x 3,
each with batch normalization and ReLU, a max-pool and a layer of scores. Adam on batches of {BATCH_SIZE}; the learning
rate falls from 0.003 to 0. The picture shows every held-out image that is read wrongly, the loss and the accuracy, and
the first filters with what they make of an image."""

INFO = "Print the version, the instruction set, the number of threads and why, and whether OpenMP is there."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, those of the process by default; returns the exit status.

    As usual with argparse, --help and bad arguments raise SystemExit, with 0 and 2.
    """
    parser = _parser()
    try:
        arguments = parser.parse_args(argv)
        if arguments.run is None:
            parser.print_help(sys.stderr)
            parser.exit(2, "\ncaffelite: error: name a command: spiral, digits or info\n")
        return arguments.run(arguments)
    except KeyboardInterrupt as interrupt:
        history = getattr(interrupt, "history", None)
        when = "" if history is None else f" after {_count(history.epochs, 'epoch')}"
        print(f"caffelite: interrupted{when}", file=sys.stderr)
        return 130


def spiral(arguments: argparse.Namespace) -> int:
    """Learn the spirals and draw the regions."""
    x, y = datasets.spiral(points_per_class=100, classes=3, seed=arguments.seed)
    data = DataGenerator(x, y, batch_size=BATCH_SIZE, seed=arguments.seed)
    model = Model([Linear(2, 100), ReLU(), Linear(100, 3)], seed=arguments.seed)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    history = _train(model, data, optimizer, arguments.epochs)
    print(f"accuracy {(model.predict(x).argmax(axis=1) == y).mean():.1%} on the {len(x)} points")
    return _draw(lambda: plots.spiral_picture(model, history, x, y), arguments.output)


def digits(arguments: argparse.Namespace) -> int:
    """Learn the digits and draw the mistakes."""
    (x, y), (x_test, y_test) = datasets.digits()
    x, x_test = x[:, None], x_test[:, None]  # one channel: (n, 1, 8, 8)
    data = DataGenerator(x, y, batch_size=BATCH_SIZE, seed=arguments.seed, transform=augment.shift(1))
    small = initializers.normal(0.01)  # so that what the filters of the picture become is learned
    filters = Conv2d(1, 16, 5, padding="same", initializer=small)
    model = Model([filters, BatchNorm(16), ReLU()], seed=arguments.seed)
    model.add(Conv2d(16, 32, 3, padding="same")).add(BatchNorm(32)).add(ReLU()).add(MaxPool2d(2))
    model.add(Flatten()).add(Linear(32 * 4 * 4, 10))
    optimizer = Adam(model.parameters(), lr=3e-3)
    history = _train(model, data, optimizer, arguments.epochs, validation_data=(x_test, y_test))
    predictions = model.predict(x_test).argmax(axis=1)
    print(f"accuracy {(predictions == y_test).mean():.1%} on the {len(x_test)} held-out images")
    return _draw(lambda: plots.digits_picture(history, x_test[:, 0], y_test, predictions, filters), arguments.output)


def info(arguments: argparse.Namespace) -> int:
    """Print the configuration."""
    show_config()
    return 0


def _train(
    model: Model, data: DataGenerator, optimizer: Optimizer, epochs: int, validation_data: Any = None
) -> History:
    """Train as both commands do, the learning rate falling to 0, then print the model and the speed."""
    lr = optimizer.lr

    def decay(epoch: int, history: History) -> None:
        optimizer.lr = lr * (1 - (epoch + 1) / epochs)

    started = time.perf_counter()
    history = model.fit(
        data,
        loss=SoftmaxLoss(),
        optimizer=optimizer,
        epochs=epochs,
        validation_data=validation_data,
        metrics=["accuracy"],
        callbacks=[decay],
        verbose=1 if sys.stderr.isatty() else "auto",  # on a terminal a bar, even for a run that is soon over
    )
    seconds = time.perf_counter() - started
    steps = epochs * len(data)
    print(f"\n{model.summary(data.x[0].shape)}\n")
    print(f"{_count(epochs, 'epoch')} in {seconds:.2f} seconds, {steps / seconds:,.0f} steps per second")
    return history


def _draw(picture: Callable[[], Any], output: Path) -> int:
    """Make a figure and write it; returns the exit status. Without matplotlib, say that there is no picture."""
    try:
        picture().savefig(output, dpi="figure")
    except ImportError:
        print("picture skipped: it needs matplotlib (pip install 'caffelite[plot]')")
    except OSError as error:
        print(f"caffelite: could not write {output}: {error.strerror or error}", file=sys.stderr)
        return 1
    else:
        print(f"picture in {output}")
    return 0


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


# ---- arguments ------------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="caffelite",
        description="Train a small neural network on built-in data, with no download, in seconds.",
        epilog="caffelite COMMAND --help says what a command trains and takes.",
    )
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_training(commands, spiral, 400, "learn three intertwined spirals and draw the regions", SPIRAL)
    _add_training(commands, digits, 20, "learn handwritten digits and draw those that are read wrongly", DIGITS)
    commands.add_parser("info", help="print version, instruction set and threads", description=INFO).set_defaults(
        run=info
    )
    return parser


def _add_training(commands: Any, run: Callable[..., int], epochs: int, line: str, text: str) -> None:
    command = commands.add_parser(run.__name__, help=line, description=text)
    command.set_defaults(run=run)
    add = command.add_argument
    add("--epochs", type=_epochs, default=epochs, metavar="N", help="passes over the data (default: %(default)s)")
    add("--seed", type=_seed, default=0, metavar="N", help="the same seed gives the same run (default: %(default)s)")
    add(
        "--output",
        type=_output,
        default=f"{run.__name__}.png",
        metavar="PICTURE",
        help=f"file to draw into; its extension, {' or '.join(FORMATS)}, is the format (default: %(default)s)",
    )


def _integer(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"expected an integer, {least} or more, got {text!r}")
    return value


def _epochs(text: str) -> int:
    return _integer(text, 1)


def _seed(text: str) -> int:
    return _integer(text, 0)


def _output(text: str) -> Path:
    """The path of a picture, refused where it could not be written after the training."""
    path = Path(text)
    if path.suffix.lower() not in FORMATS:
        raise argparse.ArgumentTypeError(f"expected a file that ends in {' or '.join(FORMATS)}, got {text!r}")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    existed = os.path.lexists(path)
    try:
        path.open("ab").close()
        if not existed:
            path.unlink()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot write {text!r}: {error.strerror}") from None
    return path
