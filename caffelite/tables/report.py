"""The report about a table, and about the models that were trained on it."""

from __future__ import annotations

import numpy as np

from caffelite._support.text_table import TextTable, number_text, plural, shorten, text_table
from caffelite.tables import dates
from caffelite.tables.budget import Budget
from caffelite.tables.column_types import DateColumn
from caffelite.tables.columns import Columns
from caffelite.tables.evaluation import MIN_DIFFERENCE, TableEvaluation, calibration_error, losses
from caffelite.tables.schema import ColumnSummary, Frame, Target, describe_numbers, percent_text
from caffelite.tables.table_model import TableModel
from caffelite.tables.training import TableSplit, TrainedNets, take_rows

MAX_LISTED_CLASSES = 8  # that are listed
MAX_LISTED_COLUMNS = 15  # in the table of importances
MAX_NAME_LENGTH = 24  # characters of a class,
MAX_COLUMN_LENGTH = 32  # and of a column
LEAK_ERROR = 0.05  # of the baseline's error, which is left
LEAK_IMPORTANCE = 10  # times the importance of any other column


def columns_table(summaries: list[ColumnSummary]) -> TextTable:
    """Return the columns, their kinds and their values."""
    rows = [(shorten(summary.name, MAX_COLUMN_LENGTH), summary.kind, summary.text) for summary in summaries]
    return text_table(["column", "read as", ""], rows, "<<<", cut=2)


def describe_target(target: Target, parts: TableSplit, other_task: str | None, rows_without: int = 0) -> str:
    """Return the target, the share of each class, the other task if one is possible, and the numbers of rows.

    `rows_without` is the number of rows that do not have the target.
    """
    values = target.values
    if target.classes is None:
        text = f"{target.name}: regression, {describe_numbers(values)}{target.remark}"
    else:
        counts = np.bincount(values)
        by_frequency = np.argsort(-counts, kind="stable").tolist()
        class_texts = [
            f"{shorten(target.classes[i], MAX_NAME_LENGTH)} {percent_text(counts[i] / len(values))}"
            for i in by_frequency
        ]
        if len(class_texts) > MAX_LISTED_CLASSES:
            class_texts[MAX_LISTED_CLASSES:] = [f"{len(class_texts) - MAX_LISTED_CLASSES:,} more"]
        text = f"{target.name}: classification, {len(by_frequency):,} classes: {', '.join(class_texts)}"
    text += f"; or --task {other_task}" if other_task else ""
    uses = [f"{np.count_nonzero(rows):,} for {use}" for use, rows in zip(("training", "testing"), parts, strict=True)]
    without = f"; {plural(rows_without, 'row')} without {target.name} left out" if rows_without else ""
    return f"{text}\n{plural(len(values), 'row')}: {', '.join(uses)}{without}"


def scores_table(evaluation: TableEvaluation) -> TextTable:
    """Return the scores of the nets, and the scores of the other models for the test rows."""
    titles = {TableEvaluation.NETS: "test", TableEvaluation.LINEAR: "linear", TableEvaluation.TREES: "boosted trees"}
    names = ["", "training", *[titles.get(name, baseline(evaluation)) for name in evaluation.models]]
    rows = [[name, *(_score_text(name, scores[name]) for scores in evaluation.scores)] for name in evaluation.scores[0]]
    return text_table(names, rows, "<" + ">" * (len(names) - 1))


def _score_text(name: str, score: float) -> str:
    """Return a score as text. The R² of the mean, which is hardly below 0, is 0."""
    return number_text(round(score, 4) + 0.0 if name == "R²" else score, 4)


def baseline(evaluation: TableEvaluation) -> str:
    """Return the output of the baseline, which is the same for all rows."""
    classes = evaluation.target.classes
    top = 0 if classes is None else int(evaluation.baseline.argmax())
    return "the mean" if classes is None else f"always {shorten(classes[top], MAX_NAME_LENGTH)}"


def verdict(evaluation: TableEvaluation) -> list[str]:
    """Return one or two sentences: are the nets better than the simpler models?"""
    models = [name for name in evaluation.models if name != TableEvaluation.BASELINE]
    if not any(evaluation.difference(name, TableEvaluation.BASELINE).is_significant for name in models):
        return [f"No model is reliably better than the baseline ({baseline(evaluation)})."]
    sentences = [_compare_models(evaluation, TableEvaluation.LINEAR, "a linear model", "does")]
    if TableEvaluation.TREES in models:
        sentences.append(_compare_models(evaluation, TableEvaluation.TREES, "boosted trees", "do"))
    return sentences


def _compare_models(evaluation: TableEvaluation, other: str, name: str, do: str) -> str:
    """Compare another model with the nets in a sentence."""
    difference, nets = evaluation.difference(TableEvaluation.NETS, other), evaluation.score(TableEvaluation.NETS)
    margin = f"a difference of {abs(difference.mean):.3g} ± {difference.error:.2g}"
    if abs(difference.mean) <= MIN_DIFFERENCE:
        margin = f"a difference below {MIN_DIFFERENCE}, which does not matter"
    other_score, metric = evaluation.score(other), evaluation.metric
    if difference.is_significant:
        return f"The nets do better than {name}: {metric} {nets:.4g} against {other_score:.4g}, {margin}."
    if evaluation.difference(other, TableEvaluation.NETS).is_significant:
        how = f"{do} better"
    else:  # a difference that would matter may be chance
        how = "may do as well" if difference.mean > MIN_DIFFERENCE else f"{do} as well"
    return f"{name[0].upper()}{name[1:]} {how}: {metric} {other_score:.4g} against {nets:.4g}, {margin}."


def describe_nets(nets: TrainedNets, seconds: float, budget: Budget | None) -> str:
    """Return the number of nets and of their epochs, how many of these a budget left, and their best epochs."""
    best = [int(np.argmin(history["val_loss"])) + 1 for history in nets.histories]
    epochs = max(history.epochs for history in nets.histories)
    parameters = sum(p.data.size for p in nets.model.parameters())
    text = (
        f"{plural(len(best), 'net')}, {parameters:,} parameters, {plural(epochs, 'epoch')} in {seconds:.2f} seconds\n"
    )
    text += "" if budget is None else f"--time {budget.seconds:g}: {budget.summary}\n"
    return text + f"best for the rows that a net holds out: epoch {min(best)} … {max(best)}"


def describe_regions(evaluation: TableEvaluation, model: TableModel, frame: Frame) -> str:
    """Return the share of test rows whose interval or set contains the truth, and the sizes of these."""
    assert model.regions is not None
    outputs, rows = evaluation.models[TableEvaluation.NETS], evaluation.parts.test
    values = evaluation.target.values[rows]
    found = model.regions.predict(outputs, model.columns.arrays(take_rows(frame, rows)))
    coverage = f"{100 * model.regions.coverage:g}%"
    if evaluation.target.classes is None:
        share = ((found[:, 0] <= values) & (values <= found[:, 1])).mean()
        width = np.median(found[:, 1] - found[:, 0])
        return f"{coverage} intervals: {share:.1%} of the test rows are inside. The median width is {width:.4g}."
    share, size = found[np.arange(len(values)), values].mean(), found.sum(axis=1).mean()
    return (
        f"{coverage} sets: they have the class of {share:.1%} of the test rows, and {size:.3g} classes on average. The "
        f"expected calibration error of the probabilities is {calibration_error(outputs, values):.3f}."
    )


def importances_table(evaluation: TableEvaluation) -> TextTable:
    """Return the columns that matter most."""
    head = "R² lost" if evaluation.target.classes is None else "log loss added"
    columns = list(evaluation.importances.items())[:MAX_LISTED_COLUMNS]
    rows = [(shorten(name, MAX_COLUMN_LENGTH), f"{round(x.mean, 3) + 0.0:.3f} ± {x.error:.3f}") for name, x in columns]
    return text_table(["column", f"{head} if shuffled"], rows, "<>")


def ask_about_leak(evaluation: TableEvaluation) -> str:
    """Return a question about a column that gives the target away by itself, or "" if there is no such column."""
    (name, importance), *others = evaluation.importances.items()
    nets, baseline_error = (
        losses(evaluation.models[model], evaluation.target, evaluation.parts.test).mean()
        for model in (evaluation.NETS, evaluation.BASELINE)
    )
    if nets > LEAK_ERROR * baseline_error or not others or importance.mean < LEAK_IMPORTANCE * others[0][1].mean:
        return ""
    return (
        f"{name} alone tells nearly everything. Will you know it when you predict {evaluation.target.name}? If not, "
        "--drop it: with it, the report is too good."
    )


def inputs_table(columns: Columns) -> TextTable:
    """Return the inputs of an exported model, which are the arrays that `columns.arrays` makes from a frame."""
    rows: list[tuple[str, ...]] = []
    descriptions: dict[str, str] = {}
    for column in columns.columns:
        if isinstance(column, DateColumn):
            descriptions |= _describe_date(column)
    for i, name in enumerate(columns.numbers):
        rows.append(("numbers", str(i), name, descriptions.get(name, "as in the table, NaN where it is missing")))
    for i, (name, known) in enumerate(columns.categories.items()):
        for code, category in enumerate((*map(repr, known), "missing", "none of these")):
            rows.append(("codes", str(i), name, f"{code} where it is {category}"))
    return text_table(["input", "", "column", "what"], rows, "<><<")


def _describe_date(column: DateColumn) -> dict[str, str]:
    """Return how each feature of a date is computed."""
    descriptions = []
    for part in column.parts:
        if part == "seconds":
            first = np.datetime64(int(column.first * 1e6), "us")
            descriptions.append(f"seconds since {first}{' UTC' if column.zone else ''}")
        elif part in dates.CYCLES:
            angle = f"2π · {part} / {dates.CYCLES[part]:g}"
            descriptions += [f"sin({angle}), counted from 0", f"cos({angle}), counted from 0"]
        else:
            descriptions.append(part)
    return dict(zip(column.features, descriptions, strict=True))
