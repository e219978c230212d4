"""`caffelite train`, `predict`, `explain` and `export`: nets of tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from caffelite._support.terminal import echo, is_terminal, make_writable, write
from caffelite.cli import argtypes
from caffelite.cli.options import SEED_HELP, add_command
from caffelite.cli.output import UsageError, as_csv, draw, raise_usage_errors, write_file
from caffelite.files.atomic import replace_file
from caffelite.tables import commands as tables
from caffelite.tables.recipe import Recipe

TRAIN_TEXT = """\
Learn to predict a column of a table, DATA.csv, from the others. The command trains a few small nets, as TableClassifier
does, and averages them. For comparison, it trains a linear model and, if scikit-learn is installed, boosted trees. It
prints how it read each column, how good all the models are on held-out rows, and which columns matter. It writes a
picture, and saves the nets for the commands predict, explain and export.
Columns may hold numbers, words or dates, with gaps. A number may look like $1,234.50 or 12 %. A date looks like
2020-01-31, 2020/1/31, 31.1.2020, or 31/1/2020 if a day above 12 shows which number is the day. A time may follow.
Columns with only one value, columns of words that each occur only once, and rows without the target are left out.
Ctrl-C ends training, and keeps the nets that have begun."""

PREDICT_TEXT = """\
Predict for each row of a table, DATA.csv, with a model from caffelite train. The command finds columns by name, and
ignores others. It writes comma-separated values, in the order of the rows: the columns of --keep, and then the class
and the probability of each class, or the value. After caffelite train --interval, it also writes which classes are in
the set of a row, or the low and high ends of its interval."""

EXPLAIN_TEXT = """\
Explain the prediction for each row of a table, DATA.csv, by a model from caffelite train --explain. The command writes
comma-separated values, in the order of the rows: how much each column contributes to the value or to a probability;
the base, which is the mean over 100 training rows; and the output, which is the sum of all these. If there are two
classes, the probability is that of the second one; if there are more, it is that of the predicted class. The command
can draw a picture: of all rows, of one row, or of one column."""

EXPORT_TEXT = """\
Write a model for other programs, as ONNX, as a C99 file, or both. A model of a table has two inputs: the numbers of a
row, and a code for each column of categories. The command lists both."""

DATA_HELP = "a table of comma-separated values in UTF-8, plain or gzip, with the names of the columns in the first line"
DELIMITER_HELP = "character between cells (default: comma, semicolon, tab or bar, whichever gives the most columns)"
INTERVAL_HELP = "share of new rows, such as 0.9, that the intervals or sets written by predict should cover"
TIME_HELP = "seconds of one thread that the nets may take, with fewer nets and epochs if necessary (default: no limit)"

TRAIN_OPTIONS: list[tuple[str, Callable[[str], Any], str, Any, str]] = [
    ("--hidden", argtypes.sizes, "SIZES", "64,64", "sizes of the hidden layers (default: %(default)s)"),
    ("--output", argtypes.model, "MODEL", "model.safetensors", "file to write (default: %(default)s)"),
    ("--picture", argtypes.picture, "PICTURE", None, "file to draw into (default: the model's name with .png)"),
    ("--test", argtypes.share, "SHARE", 0.2, "share of the rows to hold out (default: %(default)s)"),
    ("--nets", argtypes.positive, "N", None, "number of nets (default: 8, or 4 above 10,000 rows)"),
    ("--epochs", argtypes.positive, "N", None, "epochs of each net (default: depends on the number of rows)"),
    ("--batch-size", argtypes.positive, "N", None, "rows per step (default: 64 … 1,024, depending on the rows)"),
    ("--lr", argtypes.rate, "RATE", 0.005, "highest learning rate (default: %(default)s)"),
    ("--time", argtypes.seconds, "SECONDS", None, TIME_HELP),
    ("--seed", argtypes.natural, "N", 0, SEED_HELP),
    ("--interval", argtypes.share, "COVERAGE", None, INTERVAL_HELP),
    ("--delimiter", argtypes.delimiter, "CHARACTER", None, DELIMITER_HELP),
]


def add(commands: Any) -> None:
    """Add the four commands."""
    _add_train(commands)
    _add_predict(commands)
    _add_explain(commands)
    _add_export(commands)


def _add_train(commands: Any) -> None:
    add_argument = add_command(commands, train, "learn to predict a column of a table", TRAIN_TEXT)
    add_argument("data", metavar="DATA.csv", help=DATA_HELP)
    add_argument("--target", required=True, metavar="COLUMN", help="the column to predict")
    help_text = "default: classification of words and up to 20 integers, otherwise regression"
    add_argument("--task", choices=("classification", "regression"), help=help_text)
    help_text = "columns to leave out, such as a,b; names with commas in them work too; can be repeated"
    add_argument("--drop", action="append", default=[], metavar="COLUMN[,COLUMN]", help=help_text)
    help_text = "columns of numbers that are really categories, such as postal codes; written as for --drop"
    add_argument("--category", action="append", default=[], metavar="COLUMN[,COLUMN]", help=help_text)
    help_text = "keep 100 training rows in the model, for caffelite explain, and draw what matters"
    add_argument("--explain", action="store_true", help=help_text)
    for name, to_value, metavar, default, help_text in TRAIN_OPTIONS:
        add_argument(name, type=to_value, metavar=metavar, default=default, help=help_text)


def _add_predict(commands: Any) -> None:
    add_argument = add_command(commands, predict, "predict the column for the rows of a table", PREDICT_TEXT)
    add_argument("model", metavar="MODEL", help="a file from caffelite train")
    help_text = "columns to write before the predictions, such as id,name; can be repeated"
    add_argument("--keep", action="append", default=[], metavar="COLUMN[,COLUMN]", help=help_text)
    _add_table(add_argument)


def _add_explain(commands: Any) -> None:
    add_argument = add_command(commands, explain, "explain the predictions for the rows of a table", EXPLAIN_TEXT)
    add_argument("model", metavar="MODEL", help="a file from caffelite train --explain")
    _add_table(add_argument)
    add_argument("--picture", type=argtypes.picture, metavar="PICTURE", help="file to draw into")
    add_argument("--row", type=argtypes.natural, metavar="N", help="draw this row, counted from 0")
    add_argument("--column", metavar="COLUMN", help="draw the contributions of this column against its values")


def _add_table(add_argument: Callable[..., Any]) -> None:
    """Add the arguments of a command that reads a table and writes values for its rows."""
    add_argument("data", metavar="DATA.csv", help=DATA_HELP)
    add_argument("--output", type=argtypes.file, metavar="FILE.csv", help="file to write (default: standard output)")
    add_argument("--delimiter", type=argtypes.delimiter, metavar="CHARACTER", help=DELIMITER_HELP)


def _add_export(commands: Any) -> None:
    add_argument = add_command(commands, export, "write a model for other programs", EXPORT_TEXT)
    add_argument("model", metavar="MODEL", help="a file from caffelite train or model.save")
    add_argument("--onnx", type=argtypes.file, metavar="FILE.onnx", help="write ONNX")
    add_argument("--c", type=argtypes.file, metavar="FILE.c", help="write a C99 file")
    add_argument(
        "--input-shape", type=argtypes.sizes, metavar="SIZES", help="shape of a row, such as 1,28,28, if it can vary"
    )


def train(arguments: argparse.Namespace) -> int:
    """Learn a column of a table from the others, say how well, and draw it."""
    recipe = Recipe(
        nets=arguments.nets,
        hidden=arguments.hidden,
        learning_rate=arguments.lr,
        epochs=arguments.epochs,
        batch_size=arguments.batch_size,
    )
    with raise_usage_errors():
        picture = arguments.picture or argtypes.picture(str(arguments.output.with_suffix(".png")))
        result = tables.train(
            arguments.data,
            arguments.target,
            recipe,
            seed=arguments.seed,
            task=arguments.task,
            test=arguments.test,
            drop=arguments.drop,
            categories=arguments.category,
            delimiter=arguments.delimiter,
            explains=arguments.explain,
            coverage=arguments.interval,
            max_seconds=arguments.time,
            verbose=1 if is_terminal(sys.stderr) else "auto",
        )
    status = write_file(arguments.output, lambda: result.nets.model.save(arguments.output))
    if status:
        return status
    echo(f"model in {arguments.output}")
    status = draw(result.picture, picture)
    if status or result.explanation is None:
        return status
    return draw(result.explanation.summary, picture.with_stem(f"{picture.stem}-explained"))


def predict(arguments: argparse.Namespace) -> int:
    """Predict for the rows of a table."""
    with raise_usage_errors():
        tables.check_distinct_paths([arguments.model, arguments.data], [arguments.output] if arguments.output else [])
        lines, remarks = tables.predict(arguments.model, arguments.data, arguments.delimiter, arguments.keep)
    for remark in remarks:
        echo(f"caffelite predict: {remark}", sys.stderr)
    return _write_lines(lines, arguments.output, "predictions")


def explain(arguments: argparse.Namespace) -> int:
    """Explain the predictions for the rows of a table."""
    picture, row, column = arguments.picture, arguments.row, arguments.column
    with raise_usage_errors():
        if picture is None and (row is not None or column is not None):
            raise ValueError("--row and --column choose what to draw: name a file, --picture FILE.png")
        if row is not None and column is not None:
            raise ValueError("--row and --column are two pictures: choose one")
        outputs = [path for path in (arguments.output, picture) if path is not None]
        tables.check_distinct_paths([arguments.model, arguments.data], outputs)
        options = (arguments.delimiter, row, column)
        explanation, lines, remarks = tables.explain(arguments.model, arguments.data, *options)
    for remark in remarks:
        echo(f"caffelite explain: {remark}", sys.stderr)
    status = _write_lines(lines, arguments.output, "explanations")
    if status or picture is None:
        return status
    stream = sys.stderr if arguments.output is None else None  # the standard output has the values
    if column is not None:
        return draw(lambda: explanation.dependence(column), picture, stream)
    return draw(explanation.summary if row is None else lambda: explanation.plot(row), picture, stream)


def _write_lines(lines: list[list[str]], path: Path | None, what: str) -> int:
    """Write lines of cells into a file, or to the standard output. Return the exit status."""
    csv_text = as_csv(lines)
    if path is not None:
        status = write_file(path, lambda: replace_file(path, [csv_text.encode()]))
        if not status:
            echo(f"{what} in {path}")
        return status
    if sys.stdout is None:
        raise UsageError("there is no standard output: name a file, --output FILE.csv")
    if make_writable(csv_text) == csv_text or not hasattr(sys.stdout, "buffer"):
        write(make_writable(csv_text), sys.stdout)
    else:  # these are data, not to be changed
        sys.stdout.flush()
        write(csv_text.encode(), sys.stdout)
    return 0


def export(arguments: argparse.Namespace) -> int:
    """Write a model for other programs."""
    paths = {name: path for name in ("onnx", "c") if (path := getattr(arguments, name)) is not None}
    with raise_usage_errors():
        if not paths:
            raise ValueError("name a file to write: --onnx FILE, --c FILE or both")
        tables.check_distinct_paths([arguments.model], list(paths.values()))
        tables.export(arguments.model, paths, arguments.input_shape)
    for path in paths.values():
        echo(f"model in {path}")
    return 0
