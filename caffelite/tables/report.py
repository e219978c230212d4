"""The report about a table, and about the models that were trained on it."""

from __future__ import annotations

import numpy as np

from caffelite._support.text_table import TextTable, shorten, text_table
from caffelite.data import dates
from caffelite.data.columns import DateColumn
from caffelite.functions import Columns
from caffelite.tables.evaluation import Judgement
from caffelite.tables.schema import Fact, Target, percent
from caffelite.tables.training import Split

MOST_CLASSES = 8  # that are listed
MOST_COLUMNS = 15  # in the table of importances
LONGEST = 24  # characters of a class or a column


def of_columns(facts: list[Fact]) -> TextTable:
    """The columns, their kinds and their values."""
    rows = [(shorten(fact.name, LONGEST), fact.taken_for, fact.text) for fact in facts]
    return text_table(["column", "read as", ""], rows, "<<<", cut=2)


def of_target(target: Target, parts: Split, other: str | None) -> str:
    """The target, the share of each class, the other task if one is possible, and the numbers of rows."""
    values = target.values
    if target.classes is None:
        text = f"{target.name}: regression, {values.min():g} … {values.max():g}, mean {values.mean():.4g}"
    else:
        counts = np.bincount(values)
        often = np.argsort(-counts, kind="stable").tolist()
        shown = [f"{shorten(target.classes[i], LONGEST)} {percent(counts[i] / len(values))}" for i in often]
        shown[MOST_CLASSES:] = [f"{len(shown) - MOST_CLASSES:,} more"] if len(shown) > MOST_CLASSES else []
        text = f"{target.name}: classification, {len(often):,} classes: {', '.join(shown)}"
    text += f"; or --task {other}" if other else ""
    uses = [f"{np.count_nonzero(rows):,} for the {name}" for name, rows in parts._asdict().items()]
    return f"{text}\n{len(values):,} rows: {', '.join(uses)}"


def of_scores(judgement: Judgement) -> TextTable:
    """The scores of the nets, and the scores of the other models for the test rows."""
    others = {Judgement.NETS: "test", Judgement.LINEAR: "linear", Judgement.TREES: "boosted trees"}
    names = ["", "training", *[others.get(name, baseline(judgement)) for name in judgement.models]]
    rows = [[name, *(f"{scores[name]:.4g}" for scores in judgement.scores)] for name in judgement.scores[0]]
    return text_table(names, rows, "<" + ">" * (len(names) - 1))


def baseline(judgement: Judgement) -> str:
    """The output of the baseline, which is the same for all rows."""
    classes = judgement.target.classes
    most = 0 if classes is None else int(judgement.baseline.argmax())
    return "the mean" if classes is None else f"always {shorten(classes[most], LONGEST)}"


def verdict(judgement: Judgement) -> list[str]:
    """Return one or two sentences: are the nets better than the simpler models?"""
    models = [name for name in judgement.models if name != Judgement.BASELINE]
    if not any(judgement.difference(name, Judgement.BASELINE).is_sure for name in models):
        return [f"No model is reliably better than the baseline ({baseline(judgement)})."]
    sentences = [_compared(judgement, Judgement.LINEAR, "a linear model", "does")]
    if Judgement.TREES in models:
        sentences.append(_compared(judgement, Judgement.TREES, "boosted trees", "do"))
    return sentences


def _compared(judgement: Judgement, other: str, name: str, do: str) -> str:
    """Compare another model with the nets in a sentence."""
    difference, nets = judgement.difference(Judgement.NETS, other), judgement.score(Judgement.NETS)
    apart = f"a difference of {abs(difference.mean):.3g} ± {difference.error:.2g}"
    of_other, judged_by = judgement.score(other), judgement.judged_by
    if difference.is_sure:
        return f"The nets do better than {name}: {judged_by} {nets:.4g} against {of_other:.4g}, {apart}."
    how = "better" if judgement.difference(other, Judgement.NETS).is_sure else "as well"
    return f"{name[0].upper()}{name[1:]} {do} {how}: {judged_by} {of_other:.4g} against {nets:.4g}, {apart}."


def of_importances(judgement: Judgement) -> TextTable:
    """The columns that matter most."""
    head = "R² lost" if judgement.target.classes is None else "log loss added"
    shown = list(judgement.importances.items())[:MOST_COLUMNS]
    rows = [(shorten(name, LONGEST), f"{round(x.mean, 3) + 0.0:.3f} ± {x.error:.3f}") for name, x in shown]
    return text_table(["column", f"{head} if shuffled"], rows, "<>")


def of_inputs(columns: Columns) -> TextTable:
    """The inputs of an exported model, which are the arrays that `columns.arrays` makes from a frame."""
    rows = []
    numbers = [feature for column in columns.columns if isinstance(column, DateColumn) for feature in _of_date(column)]
    told = dict(numbers)
    for i, name in enumerate(columns.numbers):
        rows.append(("numbers", str(i), name, told.get(name, "as in the table, NaN where it is missing")))
    for i, (name, known) in enumerate(columns.categories.items()):
        for code, category in enumerate((*map(repr, known), "missing", "none of these")):
            rows.append(("codes", str(i), name, f"{code} where it is {category}"))
    return text_table(["input", "", "column", "what"], rows, "<><<")


def _of_date(column: DateColumn) -> list[tuple[str, str]]:
    """The features of a date, and how they are computed."""
    found = []
    for part in column.parts:
        if part == "seconds":
            first = np.datetime64(int(column.first * 1e6), "us")
            found.append(f"seconds since {first}{' UTC' if column.zone else ''}")
        elif part in dates.CYCLES:
            angle = f"2π · {part} / {dates.CYCLES[part]:g}"
            found += [f"sin({angle}), counted from 0", f"cos({angle}), counted from 0"]
        else:
            found.append(part)
    return list(zip(column.features, found, strict=True))
