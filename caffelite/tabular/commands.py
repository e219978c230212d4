"""What the commands `train`, `predict` and `export` do: tables in, models, reports and predictions out."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Collection, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np

from caffelite.core.tables import WIDTH
from caffelite.core.terminal import say
from caffelite.files import safetensors as files
from caffelite.functions import SoftmaxLoss
from caffelite.look import plots
from caffelite.model.loading import load
from caffelite.model.table import TableModel
from caffelite.tabular import columns, report
from caffelite.tabular.judging import Judgement
from caffelite.tabular.learning import Options, learn, split
from caffelite.tabular.reading import Table, counted, read
from caffelite.training.history import History

LINEAR_RATE = 10  # times the net's learning rate: what a linear model learns has one minimum, and no cliffs


class Trained(NamedTuple):
    """What a training has made."""

    net: TableModel
    history: History
    judgement: Judgement

    def picture(self) -> Any:
        """A matplotlib Figure."""
        target, rows, outputs = self.judgement.target, self.judgement.parts.test, self.judgement.outputs[-1]
        predictions = outputs[:, 0] if target.classes is None else outputs.argmax(axis=1)
        return plots.table_picture(
            self.history, target.values[rows], predictions, target.classes, self.judgement.importances
        )


def train(
    path: str,
    target_name: str,
    options: Options,
    *,
    task: str | None = None,
    test: float = 0.2,
    drop: Collection[str] = (),
    categories: Collection[str] = (),
    delimiter: str | None = None,
) -> Trained:
    """Have a net and a linear model learn a column of a table from the others, and print how well they do.

    ValueError, saying what is wrong, for a table that can't be learned from.
    """
    as_words = {*categories, *([target_name] if task == "classification" else [])}
    data = read(path, delimiter, as_words=as_words)
    _check_names(data, [target_name, *drop, *categories])
    target = columns.target_of(data, target_name, task)
    parts = split(target, test, options.seed)
    encoding, facts = columns.taken_for(data, parts.training, target_name, drop)
    frame, _ = columns.encoded(data, encoding)
    other = columns.other_task(data.columns[target_name], target) if task is None else None
    say(f"{report.of_columns(facts)}\n\n{report.of_target(target, parts, other)}\n")
    say("The net learns, and then the linear model:", flush=True)

    started = time.perf_counter()
    net, history = learn(frame, target, parts, options)
    seconds = time.perf_counter() - started
    linear, _ = learn(frame, target, parts, options._replace(hidden=(), lr=LINEAR_RATE * options.lr))
    judgement = Judgement(net, linear, frame, target, parts, options.seed)
    best = int(np.argmin(history["val_loss"])) + 1
    say(f"\n{net.summary()}\n")
    say(f"{counted(history.epochs, 'epoch')} in {seconds:.2f} seconds, the best for the validation: {best:,}\n")
    say(f"{report.of_scores(judgement)}\n\n{fill(report.verdict(judgement), WIDTH)}\n")
    say(f"{report.of_importances(judgement)}\n")
    return Trained(net, history, judgement)


def predict(path: str, table: str, delimiter: str | None = None) -> tuple[list[list[str]], list[str]]:
    """What a model in a file predicts for the rows of a table: lines of cells, the names first; and what to say of it.

    The first cell of a line is the class, followed by the probability of each, or the value.

    ValueError for a file that is no model of a table, and a table that it can't be applied to.
    """
    model = load(path)
    if not isinstance(model, TableModel):
        raise ValueError(f"{path} is no model of a table, as caffelite train makes them")
    encoding = columns.encoding_of(model.columns)
    data = read(table, delimiter, as_words=encoding.categories)
    frame, remarks = columns.encoded(data, encoding)
    outputs = model.predict(frame)
    if model.classes is None:
        return [[model.target], *outputs.astype(str).tolist()], remarks
    names = [model.target, *(f"P({name})" for name in model.classes)]
    classes = np.array(model.classes)[outputs.argmax(axis=1)]
    probabilities = SoftmaxLoss().link(outputs).astype(str)
    return [names, *np.column_stack([classes, probabilities]).tolist()], remarks


def as_csv(lines: list[list[str]]) -> str:
    """Cells as comma-separated values."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def export(path: str, paths: dict[str, Path], input_shape: tuple[int, ...] | None = None) -> None:
    """Write a model in a file as other programs take it, each of the `paths` by the module of its name.

    Of a table, `TableModel.as_sequence`; what its numbers are is printed. Nothing is written unless all can be.
    """
    model = load(path)
    whole = model
    if isinstance(model, TableModel):
        if input_shape is not None:
            raise ValueError(f"{path} is a model of a table, whose rows have a shape: leave out --input-shape")
        whole, input_shape = model.as_sequence(), (len(model.features()),)
    written = {}
    for module, target in paths.items():
        with TemporaryDirectory() as folder:
            first = Path(folder, target.name)  # whose name is in it
            import_module(f"caffelite.{module}").export(whole, first, input_shape)
            written[target] = first.read_bytes()
    for target, content in written.items():
        files.replace(target, [content])
    if isinstance(model, TableModel):
        what = "the value" if model.classes is None else f"a score for each of {', '.join(model.classes)}"
        say(f"{report.of_features(model)}\n\nOne input, these numbers of each row, float32; one output, {what}.")
        if model.classes is not None:
            say("The class is that of the highest score; softmax makes probabilities of them.")


def check_apart(read: Sequence[str], written: Sequence[Path]) -> None:
    """ValueError where a file that is to be written is one of those that are read, or to be written twice."""
    for i, path in enumerate(written):
        if any(_is_same(path, other) for other in [*map(Path, read), *written[:i]]):
            raise ValueError(f"{path} is in use here already: write another file")


def _is_same(path: Path, other: Path) -> bool:
    return path == other or (path.exists() and other.exists() and path.samefile(other))


def _check_names(data: Table, names: list[str]) -> None:
    if unknown := [name for name in names if name not in data.columns]:
        raise ValueError(f"{data.path} has no column {unknown[0]!r}; it has {', '.join(data.columns)}")
