"""The `caffelite` command: train on built-in data, a text or a table, say how it went, and draw a picture of it."""

from __future__ import annotations

import argparse
import io
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from caffelite.core import initializers
from caffelite.core.terminal import is_terminal, say, writable, write
from caffelite.core.threads import show_config
from caffelite.data import augment, datasets
from caffelite.data.generator import DataGenerator
from caffelite.files import safetensors as files
from caffelite.functions import (
    BatchNorm,
    Conv2d,
    Embedding,
    Flatten,
    LayerNorm,
    Linear,
    MaxPool2d,
    PositionalEncoding,
    ReLU,
    SoftmaxLoss,
    TransformerBlock,
)
from caffelite.look import plots
from caffelite.model.model import History, Model
from caffelite.optimizers import SGD, Adam, AdamW, Optimizer, TrainingDiverged
from caffelite.tabular import commands as tables
from caffelite.tabular.learning import Options
from caffelite.training.progress import rate_text

BATCH_SIZE = 32
BLOCK, SIZE, WINDOWS = 64, 128, 12  # of the GPT: characters it sees, numbers for each, windows a batch
STEPS = 100  # of the GPT, in what it calls an epoch
SAMPLE = 500  # characters that it writes
HELD_OUT = 20_000  # characters at most
SHORTEST = 20 * (BLOCK + 1)  # text, of which a twentieth, a window and what follows, is held out
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

GPT = f"""\
Train a small GPT to write like a text, character by character, and have it write: FILE, or without one the
documentation of Python's language. It has 4 blocks of causal attention with 4 heads, and {SIZE} numbers for each of the
{BLOCK} characters that it sees. AdamW on batches of {WINDOWS} windows of the text, drawn at random, of which {STEPS}
count as an epoch; the learning rate falls from 0.001 to 0. Ctrl-C ends the training, and it writes with what it has
learned. The picture shows text that was held out, each character the darker the less it was expected, the loss and the
accuracy."""

TRAIN = """\
Learn a column of a table, DATA.csv, from the others: a net, and beside it a linear model. Prints what each column was
taken for, how good both are on rows that were held out, whether the linear model does as well, and which columns
matter; writes the net, which predict and export take, and a picture. Numbers are standardized, words become categories,
those of fewer than 5 rows one, (other), as which words count that come later. What is missing is a category of its own;
of numbers the mean stands in, and another number says where. Left out are columns that are the same everywhere, dates
and words that hardly come twice. A fifth of the rows that are not held out says when the net gets no better; Ctrl-C
ends the training, too."""

PREDICT = """\
Predict for each row of a table, DATA.csv, by a model that caffelite train has written. The columns are found by their
names; others are left alone. Writes lines of comma-separated values, in the order of the rows: the class and the
probability of each, or the value."""

EXPORT = """\
Write a model for other programs, as ONNX, as a file of C99, or both. A row of a table is to them one line of numbers,
which are listed: the numbers of the table as they are, and for each category 1 or 0."""

READ = "a table of comma-separated values in UTF-8, plain or gzip, with the names of its columns in the first line"
DELIMITER = "between cells (default: comma, semicolon, tab or bar, whichever makes the most columns)"

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
            parser.exit(2, "\ncaffelite: error: name a command: train, predict, export, spiral, digits, gpt or info\n")
        status = arguments.run(arguments)
        write("", sys.stdout)  # what is buffered
        return status
    except Refused as error:
        say(f"caffelite {arguments.run.__name__}: error: {error}", sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        history = getattr(interrupt, "history", None)
        when = "" if history is None else f" after {_count(history.epochs, 'epoch')}"
        say(f"caffelite: interrupted{when}", sys.stderr)
        return 130
    except OSError as error:
        if not _is_of_output(error):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that Python can end without another
        if not isinstance(error, BrokenPipeError):  # else who reads has enough
            say(f"caffelite: could not write to the standard output: {error.strerror}", sys.stderr)
        return 1


def spiral(arguments: argparse.Namespace) -> int:
    """Learn the spirals and draw the regions."""
    x, y = datasets.spiral(points_per_class=100, classes=3, seed=arguments.seed)
    data = DataGenerator(x, y, batch_size=BATCH_SIZE, seed=arguments.seed)
    model = Model([Linear(2, 100), ReLU(), Linear(100, 3)], seed=arguments.seed)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    history = _train(model, (2,), data, optimizer, arguments.epochs)
    say(f"accuracy {(model.predict(x).argmax(axis=1) == y).mean():.1%} on the {len(x)} points")
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
    history = _train(model, (1, 8, 8), data, optimizer, arguments.epochs, validation_data=(x_test, y_test))
    predictions = model.predict(x_test).argmax(axis=1)
    say(f"accuracy {(predictions == y_test).mean():.1%} on the {len(x_test)} held-out images")
    return _draw(lambda: plots.digits_picture(history, x_test[:, 0], y_test, predictions, filters), arguments.output)


def gpt(arguments: argparse.Namespace) -> int:
    """Learn to write like a text, write, and draw what was not expected of the text."""
    written = _documentation() if arguments.file is None else arguments.file
    characters = sorted(set(written))
    numbers = {character: i for i, character in enumerate(characters)}
    text = np.array([numbers[character] for character in written])
    text, held_out = np.split(text, [-min(len(text) // 20, HELD_OUT)])
    places = np.arange(0, len(held_out) - BLOCK, BLOCK)[:, None] + np.arange(BLOCK)
    x, y = held_out[places], held_out[places + 1]

    model = Model([Embedding(len(characters), SIZE), PositionalEncoding(SIZE, BLOCK)], seed=arguments.seed)
    for _ in range(4):
        model.add(TransformerBlock(SIZE, heads=4, causal=True))
    model.add(LayerNorm(SIZE)).add(Linear(SIZE, len(characters), bias=False))
    optimizer = AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    validation_data = DataGenerator(x, y, batch_size=BATCH_SIZE, shuffle=False)
    try:
        windows = Windows(text, arguments.seed)
        history = _train(model, (BLOCK,), windows, optimizer, arguments.epochs, validation_data=validation_data)
    except KeyboardInterrupt as interrupt:
        if not hasattr(interrupt, "history"):
            raise
        history = interrupt.history
        say(f"caffelite: stopped after {_count(history.epochs, 'epoch')}", sys.stderr)
    scores = model.predict(x, batch_size=BATCH_SIZE)
    say(f"accuracy {(scores.argmax(axis=-1) == y).mean():.1%} on the {y.size} held-out characters")

    sample = _continued(model, held_out[:BLOCK], arguments.sample, arguments.seed)
    say(f"\n{BLOCK} held-out characters, and what it writes behind them:\n\n{''.join(characters[i] for i in sample)}\n")
    probabilities = np.take_along_axis(SoftmaxLoss().link(scores), y[..., None], axis=-1)
    shown = "".join(characters[i] for i in y.flat)
    return _draw(lambda: plots.text_picture(history, shown, probabilities.reshape(-1)), arguments.output)


class Windows:
    """Batches of windows that begin anywhere in a text, and of the same one character later: STEPS an epoch."""

    def __init__(self, text: np.ndarray, seed: int) -> None:
        self.text, self.rng = text, np.random.default_rng(seed)

    def __len__(self) -> int:
        return STEPS

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for _ in range(STEPS):
            places = self.rng.integers(len(self.text) - BLOCK, size=(WINDOWS, 1)) + np.arange(BLOCK)
            yield self.text[places], self.text[places + 1]


def _continued(model: Model, text: np.ndarray, count: int, seed: int) -> np.ndarray:
    """The text and so many further characters, drawn by their probabilities, the likely ones somewhat more often."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        scores = model.predict(text[None, -BLOCK:])[0, -1].astype(float) / 0.8
        p = np.exp(scores - scores.max())
        text = np.append(text, rng.choice(len(p), p=p / p.sum()))
    return text


def _documentation() -> str:
    """What Python's `help()` says of its language, each paragraph once."""
    from pydoc_data.topics import topics

    return "\n\n".join(dict.fromkeys("\n\n".join(topics.values()).split("\n\n")))


def train(arguments: argparse.Namespace) -> int:
    """Learn a column of a table from the others, say how well, and draw it."""
    options = Options(
        arguments.hidden,
        arguments.epochs,
        arguments.batch_size,
        arguments.lr,
        arguments.seed,
        verbose=1 if is_terminal(sys.stderr) else "auto",
    )
    with _refusing():
        picture = arguments.picture or _output(str(arguments.output.with_suffix(".png")))
        trained = tables.train(
            arguments.data,
            arguments.target,
            options,
            task=arguments.task,
            test=arguments.test,
            drop=arguments.drop,
            categories=arguments.category,
            delimiter=arguments.delimiter,
        )
    failed = _write(arguments.output, lambda: trained.net.save(arguments.output))
    if failed:
        return failed
    say(f"model in {arguments.output}")
    return _draw(trained.picture, picture)


def predict(arguments: argparse.Namespace) -> int:
    """Predict for the rows of a table."""
    with _refusing():
        tables.check_apart([arguments.model, arguments.data], [arguments.output] if arguments.output else [])
        lines, remarks = tables.predict(arguments.model, arguments.data, arguments.delimiter)
    for remark in remarks:
        say(f"caffelite predict: {remark}", sys.stderr)
    text = tables.as_csv(lines)
    if arguments.output is not None:
        failed = _write(arguments.output, lambda: files.replace(arguments.output, [text.encode()]))
        if not failed:
            say(f"predictions in {arguments.output}")
        return failed
    if sys.stdout is None:
        raise Refused("there is no standard output: name a file, --output FILE.csv")
    if writable(text) == text or not hasattr(sys.stdout, "buffer"):
        write(writable(text), sys.stdout)
    else:  # these are data, not to be changed
        sys.stdout.flush()
        write(text.encode(), sys.stdout)
    return 0


def export(arguments: argparse.Namespace) -> int:
    """Write a model for other programs."""
    paths = {name: path for name in ("onnx", "c") if (path := getattr(arguments, name)) is not None}
    with _refusing():
        if not paths:
            raise ValueError("name a file to write: --onnx FILE, --c FILE or both")
        tables.check_apart([arguments.model], list(paths.values()))
        tables.export(arguments.model, paths, arguments.input_shape)
    for path in paths.values():
        say(f"model in {path}")
    return 0


class Refused(Exception):
    """What was given can't be used, as its message says."""


@contextmanager
def _refusing() -> Iterator[None]:
    """Errors inside are told as what they are: of what was given."""
    try:
        yield
    except OSError as error:
        if _is_of_output(error):
            raise
        raise Refused(f"{error.filename}: {error.strerror}" if error.filename else error) from None
    except (ValueError, TypeError, ImportError, TrainingDiverged, argparse.ArgumentTypeError) as error:
        raise Refused(error) from None


def _is_of_output(error: OSError) -> bool:
    """Whether the standard output takes no more."""
    return error.filename is not None and error.filename == getattr(sys.stdout, "name", None)


def info(arguments: argparse.Namespace) -> int:
    """Print the configuration."""
    show_config()
    return 0


def _train(
    model: Model,
    row: tuple[int, ...],
    data: DataGenerator | Windows,
    optimizer: Optimizer,
    epochs: int,
    validation_data: Any = None,
) -> History:
    """Train as all commands do, the learning rate falling to 0, then print the model for such a row and the speed."""
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
        verbose=1 if is_terminal(sys.stderr) else "auto",  # on a terminal a bar, even for a run that is soon over
    )
    seconds = time.perf_counter() - started
    steps = epochs * len(data)
    say(f"\n{model.summary(row)}\n")
    say(f"{_count(epochs, 'epoch')} in {seconds:.2f} seconds, {rate_text(steps / seconds)} steps per second")
    return history


def _draw(picture: Callable[[], Any], output: Path) -> int:
    """Make a figure and write it; returns the exit status. Without matplotlib, say that there is no picture."""

    def write() -> None:
        content = io.BytesIO()
        picture().savefig(content, format=output.suffix[1:], dpi="figure")
        files.replace(output, [content.getvalue()])

    try:
        failed = _write(output, write)
    except ImportError:
        say("picture skipped: it needs matplotlib (pip install 'caffelite[plot]')")
        return 0
    if not failed:
        say(f"picture in {output}")
    return failed


def _write(output: Path, write: Callable[[], Any]) -> int:
    """Write a file; returns the exit status. Why it fails is told, as what is to be written may have taken long."""
    try:
        write()
    except ImportError:
        raise
    except Exception as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        say(f"caffelite: could not write {output}: {reason}", sys.stderr)
        return 1
    return 0


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


# ---- arguments ------------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="caffelite",
        description="Train a small neural network on a table, a text or built-in data, with no download.",
        epilog="caffelite COMMAND --help says what a command trains and takes.",
    )
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_tables(commands)
    _add_training(commands, spiral, 400, "learn three intertwined spirals and draw the regions", SPIRAL)
    _add_training(commands, digits, 20, "learn handwritten digits and draw those that are read wrongly", DIGITS)
    line, epoch = "learn to write like a text, write, and draw what was not expected", f"epochs of {STEPS} steps"
    add = _add_training(commands, gpt, 20, line, GPT, epoch)
    add("file", nargs="?", type=_text, metavar="FILE", help=f"a text in UTF-8, of {SHORTEST:,} characters or more")
    add("--sample", type=_length, default=SAMPLE, metavar="N", help="characters to write (default: %(default)s)")
    _add_command(commands, info, "print version, instruction set and threads", INFO)
    return parser


def _add_training(
    commands: Any, run: Callable[..., int], epochs: int, line: str, text: str, epoch: str = "passes over the data"
) -> Callable[..., Any]:
    add = _add_command(commands, run, line, text)
    add("--epochs", type=_epochs, default=epochs, metavar="N", help=f"{epoch} (default: %(default)s)")
    add("--seed", type=_seed, default=0, metavar="N", help="the same seed gives the same run (default: %(default)s)")
    add(
        "--output",
        type=_output,
        default=f"{run.__name__}.png",
        metavar="PICTURE",
        help=f"file to draw into; its extension, {' or '.join(FORMATS)}, is the format (default: %(default)s)",
    )
    return add


def _add_tables(commands: Any) -> None:
    """The commands `train`, `predict` and `export`."""
    add = _add_command(commands, train, "learn a column of a table from the others", TRAIN)
    add("data", metavar="DATA.csv", help=READ)
    add("--target", required=True, metavar="COLUMN", help="the column to be predicted")
    add("--hidden", type=_sizes, default="64,64", metavar="SIZES", help="of the hidden layers (default: %(default)s)")
    add(
        "--output",
        type=_model,
        default="model.safetensors",
        metavar="MODEL",
        help="file to write (default: %(default)s)",
    )
    add("--picture", type=_output, metavar="PICTURE", help="file to draw into (default: the model's name with .png)")
    tasks = ("classification", "regression")
    add("--task", choices=tasks, help="default: words, and up to 20 different integers, are classes, else numbers")
    add("--drop", action="append", default=[], metavar="COLUMN", help="a column to leave out; may be given repeatedly")
    text = "a column of numbers that are names, such as postal codes; may be given repeatedly"
    add("--category", action="append", default=[], metavar="COLUMN", help=text)
    add("--test", type=_share, default=0.2, metavar="SHARE", help="of the rows, to be held out (default: %(default)s)")
    add(
        "--epochs",
        type=_epochs,
        default=200,
        metavar="N",
        help="at most; it ends when it gets no better (default: %(default)s)",
    )
    add("--batch-size", type=_epochs, metavar="N", help="rows a step (default: 32, of many rows up to 1,024)")
    add("--lr", type=_rate, default=1e-3, metavar="RATE", help="learning rate (default: %(default)s)")
    add("--seed", type=_seed, default=0, metavar="N", help="the same seed gives the same run (default: %(default)s)")
    add("--delimiter", type=_delimiter, metavar="CHARACTER", help=DELIMITER)

    add = _add_command(commands, predict, "predict for the rows of a table", PREDICT)
    add("model", metavar="MODEL", help="a file that caffelite train has written")
    add("data", metavar="DATA.csv", help=READ)
    add("--output", type=_file, metavar="FILE.csv", help="file to write (default: the standard output)")
    add("--delimiter", type=_delimiter, metavar="CHARACTER", help=DELIMITER)

    add = _add_command(commands, export, "write a model for other programs", EXPORT)
    add("model", metavar="MODEL", help="a file that caffelite train, or model.save, has written")
    add("--onnx", type=_file, metavar="FILE.onnx", help="write ONNX")
    add("--c", type=_file, metavar="FILE.c", help="write a file of C99")
    add("--input-shape", type=_sizes, metavar="SIZES", help="of a row, such as 1,28,28, where the model takes any")


def _add_command(commands: Any, run: Callable[..., int], line: str, text: str) -> Callable[..., Any]:
    command = commands.add_parser(run.__name__, help=line, description=text)
    command.set_defaults(run=run)
    return command.add_argument


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


def _length(text: str) -> int:
    return _integer(text, 0)


def _text(name: str) -> str:
    """What is in a file, refused where nothing could be learned from it."""
    try:
        written = Path(name).read_text(encoding="utf-8-sig")  # a byte order mark is no text
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot read {name!r}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise argparse.ArgumentTypeError(f"{name!r} is no text in UTF-8: byte {error.start:,} is not") from None
    if len(written) < SHORTEST:
        raise argparse.ArgumentTypeError(f"expected {SHORTEST:,} characters or more, {name!r} has {len(written):,}")
    return written


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple([_integer(size, 1) for size in text.split(",")])
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"expected integers, 1 or more, such as 64,64, got {text!r}") from None


def _number(text: str, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < most:
        raise argparse.ArgumentTypeError(f"expected a number above 0 and below {most:g}, got {text!r}")
    return value


def _share(text: str) -> float:
    return _number(text, 1.0)


def _rate(text: str) -> float:
    return _number(text, 1e6)


def _delimiter(text: str) -> str:
    text = "\t" if text in ("\\t", "tab") else text
    if len(text) != 1 or text in '"\r\n':
        raise argparse.ArgumentTypeError(f"expected one character, or tab, got {text!r}")
    return text


def _model(text: str) -> Path:
    """The path of a model, refused as a picture's is."""
    return _file(text, (".safetensors",))


def _output(text: str) -> Path:
    """The path of a picture, refused where it could not be written after the training."""
    return _file(text, FORMATS)


def _file(text: str, formats: Sequence[str] = ("",)) -> Path:
    """The path of a file to write, refused where it could not be, or ends otherwise."""
    path = Path(text)
    if not any(format in ("", path.suffix.lower()) for format in formats):
        raise argparse.ArgumentTypeError(f"expected a file that ends in {' or '.join(formats)}, got {text!r}")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    try:
        files.check_place(path)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot write {text!r}: {error.strerror}") from None
    return path
