"""The commands `train`, `predict`, `explain` and `export`. They make models, reports and predictions from tables."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np

from caffelite._support.terminal import echo, is_terminal
from caffelite._support.text_table import WIDTH
from caffelite.attribution.explain import explain_game, make_game
from caffelite.attribution.explanation import Explanation
from caffelite.data.generator import unpack_single
from caffelite.files.atomic import replace_file
from caffelite.model.load import load
from caffelite.tables import report, schema
from caffelite.tables.budget import Budget
from caffelite.tables.evaluation import TableEvaluation
from caffelite.tables.reading import CSVTable, Words, read
from caffelite.tables.recipe import Recipe
from caffelite.tables.table_model import TableModel
from caffelite.tables.training import TrainedNets, predict_trees, split, take_rows, train_linear, train_nets
from caffelite.visualize import plots

SUM_TOLERANCE = 1e-3  # how far the probabilities of a row may be from 1
MAX_EXPLAINED_ROWS = 60_000  # held-out rows times the square of the columns
BLOCK_ROWS = 100  # that `explain` explains between two looks at its progress
BAR_DELAY = 0.5  # seconds until it is shown


class TrainingResult(NamedTuple):
    """The result of training: the nets, and how good they are."""

    nets: TrainedNets
    evaluation: TableEvaluation
    explanation: Explanation | None = None

    def picture(self) -> Any:
        """Return a matplotlib Figure."""
        target, rows, importances = self.evaluation.target, self.evaluation.parts.test, self.evaluation.importances
        outputs = self.evaluation.models[TableEvaluation.NETS]
        predictions = outputs[:, 0] if target.classes is None else outputs.argmax(axis=1)
        means = {name: importance.mean for name, importance in importances.items()}
        history = self.nets.mean_history()
        return plots.table_picture(history, target.values[rows], predictions, target.classes, means)


def train(
    path: str,
    target_name: str,
    recipe: Recipe,
    *,
    seed: int = 0,
    task: str | None = None,
    test: float = 0.2,
    drop: Collection[str] = (),
    categories: Collection[str] = (),
    delimiter: str | None = None,
    explains: bool = False,
    coverage: float | None = None,
    max_seconds: float | None = None,
    verbose: int | str = "auto",
) -> TrainingResult:
    """Train nets and simpler models to predict a column of a table from the others. Print how good they are.

    If `explains`, the model keeps training rows, and the result has an explanation of held-out rows. With a coverage,
    the model has intervals or sets. If the nets would take more than `max_seconds` of one thread, there are fewer nets
    and epochs.

    Raise ValueError with the reason if a table can't be learned from.
    """
    as_words = {*_split(categories), *([target_name] if task == "classification" else [])}
    data = read(path, delimiter, as_words=as_words)
    _check_names(data, [target_name])
    drop, _ = _find_names(data, drop), _find_names(data, categories)
    readings = {name: x.reading for name, x in data.columns.items() if isinstance(x, Words) and x.reading is not None}
    rows, data = len(data.lines), schema.drop_rows_without(data, target_name)
    target = schema.encode_target(data, target_name, task)
    if target_name in readings and target.classes is None:
        target = target._replace(remark=readings[target_name].describe())
    parts = split(target, test, seed)
    frame, summaries = schema.select_columns(data, parts.training, target_name, recipe.min_frequency, drop)
    other = schema.other_task(data.columns[target_name], target) if task is None else None
    description = report.describe_target(target, parts, other, rows - len(data.lines))
    echo(f"{report.columns_table(summaries)}\n\n{description}\n", flush=True)

    started, budget = time.perf_counter(), None if max_seconds is None else Budget(max_seconds, warns=False)
    nets = train_nets(frame, target, parts.training, recipe, seed, verbose, explains, coverage, budget, readings)
    seconds = time.perf_counter() - started
    echo(f"{report.describe_nets(nets, seconds, budget)}\n", flush=True)
    linear = train_linear(frame, target, parts.training, seed)
    tree_outputs = predict_trees(nets.model.columns, frame, target, parts, seed)
    evaluation = TableEvaluation(nets.model, linear, tree_outputs, frame, target, parts, seed)
    if question := report.ask_about_leak(evaluation):
        echo(f"{fill(question, WIDTH)}\n")
    echo(f"{report.scores_table(evaluation)}\n")
    echo("\n".join([fill(sentence, WIDTH) for sentence in report.verdict(evaluation)]) + "\n")
    if nets.model.regions is not None:
        echo(fill(report.describe_regions(evaluation, nets.model, frame), WIDTH) + "\n")
    echo(f"{report.importances_table(evaluation)}\n")
    if not explains:
        return TrainingResult(nets, evaluation)
    limit = int(np.clip(MAX_EXPLAINED_ROWS // len(nets.model.columns.columns) ** 2, 10, MAX_EXPLAINED_ROWS // 100))
    held_out = np.random.default_rng(seed).permutation(np.flatnonzero(parts.test))[:limit]
    return TrainingResult(nets, evaluation, explain_rows(nets.model, take_rows(frame, np.sort(held_out))))


def predict(
    path: str, table: str, delimiter: str | None = None, keep: Collection[str] = ()
) -> tuple[list[list[str]], list[str]]:
    """Apply a model in a file to the rows of a table. Return lines of cells, and remarks for the user.

    The first line has names. The other lines have the cells of the columns in `keep`, and then a class and the
    probability of each class, or a value. If the model has intervals, their ends follow. If it has sets, 1 or 0 follows
    for each class: in the set or not.

    Raise ValueError for a file that is not a model of a table, and for a table that does not fit the model.
    """
    model = _load_table_model(path)
    data = read(table, delimiter, as_words=[*schema.word_column_names(model.columns), *_split(keep)])
    (frame, remarks), keep = schema.make_frame(data, model.columns), _find_names(data, keep)
    arrays = model.columns.arrays(frame)
    outputs = model.predict(unpack_single(arrays))
    names, columns = [f"predicted {model.target}" if model.target in keep else model.target], [outputs]
    if model.classes is not None:
        if not (abs(outputs.sum(axis=1) - 1) < SUM_TOLERANCE).all():
            raise ValueError(f"{path} gives no probabilities: train it again")
        names += [f"P({name})" for name in model.classes]
        columns = [np.array(model.classes)[outputs.argmax(axis=1)], outputs]
    if model.regions is not None:
        regions = model.regions.predict(outputs, arrays)
        names += ["low", "high"] if model.classes is None else [f"in set({name})" for name in model.classes]
        columns.append(regions.astype(outputs.dtype if model.classes is None else int))
    kept: list[Any] = [data.columns[name] for name in keep]
    columns = [*[np.array([*words.words, ""])[words.codes] for words in kept], *columns]
    return [[*keep, *names], *np.column_stack([x.astype(str) for x in columns]).tolist()], remarks


def explain(
    path: str, table: str, delimiter: str | None = None, row: int | None = None, column: str | None = None
) -> tuple[Explanation, list[list[str]], list[str]]:
    """Explain the outputs of a model in a file for the rows of a table. Also return lines of cells, and remarks.

    The first line has names. Each other line has the predicted class, if there are classes, the contributions of the
    columns, the base, and the output. For two classes, this is the probability of the second one, which the first line
    names; for more, that of the predicted class.

    `row` and `column` are those to draw. Raise ValueError if there is no such row or column, and for a file without
    training rows. Also raise the errors of `predict`.
    """
    model = _load_table_model(path)
    if model.background is None:
        raise ValueError(f"{path} has no rows of the training to compare with: train it again with --explain")
    data = read(table, delimiter, as_words=schema.word_column_names(model.columns))
    frame, remarks = schema.make_frame(data, model.columns)
    rows, known = len(model.columns.arrays(frame)[0]), [column.name for column in model.columns.columns]
    if row is not None and row >= rows:
        raise ValueError(f"there is no row {row}: {table} has the rows 0 … {rows - 1}")
    if column is not None and column not in known:
        raise ValueError(f"there is no column {column!r}: the model has {', '.join(known)}")
    explanation = _explain_in_blocks(model, frame)
    columns = [*explanation.frame().values()]
    names = [*map(str, explanation.columns), "base", "output"]
    numbers = [x.astype(np.float32).astype(str) for x in columns[-len(names) :]]  # as many digits as the nets have
    if model.classes is not None:
        numbers.insert(0, np.array(model.classes)[explanation.outputs.argmax(axis=1)])
        names = [model.target, *names[:-1], f"P({model.classes[1]})" if len(model.classes) == 2 else "output"]
    return explanation, [names, *np.column_stack(numbers).tolist()], remarks


def _explain_in_blocks(model: TableModel, frame: schema.Frame) -> Explanation:
    """Return what `explain_rows` returns. On a terminal, a bar counts the rows."""
    from tqdm import tqdm  # late, since most commands have no bar

    rows, blocks = np.arange(len(model.columns.arrays(frame)[0])), []
    with tqdm(total=len(rows), unit=" rows", leave=False, delay=BAR_DELAY, disable=not is_terminal(sys.stderr)) as bar:
        for start in range(0, len(rows), BLOCK_ROWS):
            blocks.append(explain_rows(model, take_rows(frame, rows[start : start + BLOCK_ROWS])))
            bar.update(len(blocks[-1]))
    names = ("values", "errors", "outputs")
    arrays: dict[str, Any] = {name: np.concatenate([getattr(block, name) for block in blocks]) for name in names}
    return replace(blocks[0], **arrays, data=frame)


def explain_rows(model: TableModel, frame: schema.Frame) -> Explanation:
    """Return the explanation of a model that has training rows, for the rows of a frame."""
    assert model.background is not None
    names = [column.name for column in model.columns.columns]
    game, _ = make_game(model, frame, model.background)
    return explain_game(game, 0, names, frame, model.classes, model.target)


def _load_table_model(path: str) -> TableModel:
    model = load(path)
    if not isinstance(model, TableModel):
        raise ValueError(f"{path} is not a model of a table from caffelite train")
    return model


def export(path: str, paths: dict[str, Path], input_shape: tuple[int, ...] | None = None) -> None:
    """Write a model in a file in the formats of other programs. The keys of `paths` are modules, such as "onnx".

    For a model of a table, this also prints a description of the inputs. If one file can't be written, none is.
    """
    model = load(path)
    if isinstance(model, TableModel) and input_shape is not None:
        raise ValueError(f"{path} is a model of a table, and knows the shape of its rows: leave out --input-shape")
    contents = {}
    for module, target in paths.items():
        with TemporaryDirectory() as folder:
            first = Path(folder, target.name)  # the file contains its own name
            import_module(f"caffelite.{module}").export(model, first, input_shape)
            contents[target] = first.read_bytes()
    for target, content in contents.items():
        replace_file(target, [content])
    if isinstance(model, TableModel):
        what = "the value" if model.classes is None else f"the probabilities of {', '.join(model.classes)}"
        counts = {"numbers": len(model.columns.numbers), "codes": len(model.columns.categories)}
        inputs = ", then ".join([f"{name} (n, {count})" for name, count in counts.items() if count])
        echo(f"{report.inputs_table(model.columns)}\n\nInputs: {inputs}. Output: {what}.")


def check_distinct_paths(read: Sequence[str], written: Sequence[Path]) -> None:
    """Raise ValueError if a file to write is also to be read, or is to be written twice."""
    for i, path in enumerate(written):
        if any(_is_same(path, other) for other in [*map(Path, read), *written[:i]]):
            raise ValueError(f"the command already reads or writes {path}: write another file")


def _is_same(path: Path, other: Path) -> bool:
    return path == other or (path.exists() and other.exists() and path.samefile(other))


def _split(names: Collection[str]) -> list[str]:
    return [part for name in names for part in (name, *name.split(","))]


def _find_names(data: CSVTable, names: Collection[str]) -> list[str]:
    """Return names of columns. A name that no column has is split at its commas. ValueError for an unknown one."""
    found = [part for name in names for part in ([name] if name in data.columns else name.split(","))]
    _check_names(data, found)
    return found


def _check_names(data: CSVTable, names: list[str]) -> None:
    if unknown := [name for name in names if name not in data.columns]:
        is_data = any(name.removeprefix("-").replace(".", "", 1).isdigit() for name in data.columns)
        hint = "; the first line should have the names of the columns" if is_data else ""
        raise ValueError(f"{data.path} has no column {unknown[0]!r}; it has {', '.join(data.columns)}{hint}")
