"""`caffelite train`, `predict` and `export`: nets of tables."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from caffelite.cli import values
from caffelite.cli.arguments import SEED, add_command
from caffelite.cli.saying import Refused, draw, refusing, write_file
from caffelite.core.terminal import is_terminal, say, writable, write
from caffelite.files import safetensors as files
from caffelite.tabular import commands as tables
from caffelite.tabular.learning import Options

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


def add(commands: Any) -> None:
    """Add the three commands."""
    _add_train(commands)
    _add_predict(commands)
    _add_export(commands)


def _add_train(commands: Any) -> None:
    argument = add_command(commands, train, "learn a column of a table from the others", TRAIN)
    argument("data", metavar="DATA.csv", help=READ)
    argument("--target", required=True, metavar="COLUMN", help="the column to be predicted")
    argument(
        "--hidden",
        type=values.sizes,
        default="64,64",
        metavar="SIZES",
        help="of the hidden layers (default: %(default)s)",
    )
    argument(
        "--output",
        type=values.model,
        default="model.safetensors",
        metavar="MODEL",
        help="file to write (default: %(default)s)",
    )
    argument(
        "--picture",
        type=values.picture,
        metavar="PICTURE",
        help="file to draw into (default: the model's name with .png)",
    )
    tasks = ("classification", "regression")
    argument("--task", choices=tasks, help="default: words, and up to 20 different integers, are classes, else numbers")
    argument(
        "--drop", action="append", default=[], metavar="COLUMN", help="a column to leave out; may be given repeatedly"
    )
    text = "a column of numbers that are names, such as postal codes; may be given repeatedly"
    argument("--category", action="append", default=[], metavar="COLUMN", help=text)
    argument(
        "--test",
        type=values.share,
        default=0.2,
        metavar="SHARE",
        help="of the rows, to be held out (default: %(default)s)",
    )
    argument(
        "--epochs",
        type=values.positive,
        default=200,
        metavar="N",
        help="at most; it ends when it gets no better (default: %(default)s)",
    )
    argument(
        "--batch-size", type=values.positive, metavar="N", help="rows a step (default: 32, of many rows up to 1,024)"
    )
    argument("--lr", type=values.rate, default=1e-3, metavar="RATE", help="learning rate (default: %(default)s)")
    argument("--seed", type=values.natural, default=0, metavar="N", help=SEED)
    argument("--delimiter", type=values.delimiter, metavar="CHARACTER", help=DELIMITER)


def _add_predict(commands: Any) -> None:
    argument = add_command(commands, predict, "predict for the rows of a table", PREDICT)
    argument("model", metavar="MODEL", help="a file that caffelite train has written")
    argument("data", metavar="DATA.csv", help=READ)
    argument("--output", type=values.file, metavar="FILE.csv", help="file to write (default: the standard output)")
    argument("--delimiter", type=values.delimiter, metavar="CHARACTER", help=DELIMITER)


def _add_export(commands: Any) -> None:
    argument = add_command(commands, export, "write a model for other programs", EXPORT)
    argument("model", metavar="MODEL", help="a file that caffelite train, or model.save, has written")
    argument("--onnx", type=values.file, metavar="FILE.onnx", help="write ONNX")
    argument("--c", type=values.file, metavar="FILE.c", help="write a file of C99")
    argument(
        "--input-shape", type=values.sizes, metavar="SIZES", help="of a row, such as 1,28,28, where the model takes any"
    )


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
    with refusing():
        picture = arguments.picture or values.picture(str(arguments.output.with_suffix(".png")))
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
    failed = write_file(arguments.output, lambda: trained.net.save(arguments.output))
    if failed:
        return failed
    say(f"model in {arguments.output}")
    return draw(trained.picture, picture)


def predict(arguments: argparse.Namespace) -> int:
    """Predict for the rows of a table."""
    with refusing():
        tables.check_apart([arguments.model, arguments.data], [arguments.output] if arguments.output else [])
        lines, remarks = tables.predict(arguments.model, arguments.data, arguments.delimiter)
    for remark in remarks:
        say(f"caffelite predict: {remark}", sys.stderr)
    text = tables.as_csv(lines)
    if arguments.output is not None:
        failed = write_file(arguments.output, lambda: files.replace(arguments.output, [text.encode()]))
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
    with refusing():
        if not paths:
            raise ValueError("name a file to write: --onnx FILE, --c FILE or both")
        tables.check_apart([arguments.model], list(paths.values()))
        tables.export(arguments.model, paths, arguments.input_shape)
    for path in paths.values():
        say(f"model in {path}")
    return 0
