"""What is said of a table, and of the models that have learned from it."""

from __future__ import annotations

import numpy as np

from caffelite.core.tables import Table, shortened, table
from caffelite.model.table import TableModel
from caffelite.tabular.columns import MISSING, OTHER, Fact, Target, flag, percent
from caffelite.tabular.judging import Judgement
from caffelite.tabular.learning import Split

MOST_CLASSES = 8  # that are listed
MOST_COLUMNS = 15  # of which is said how much they matter
LONGEST = 24  # characters of a class or a column
TEST, LINEAR = 2, 3  # among the scores of a Judgement


def of_columns(facts: list[Fact]) -> Table:
    """What the columns were taken for."""
    rows = [(shortened(fact.name, LONGEST), fact.taken_for, fact.text) for fact in facts]
    return table(["column", "taken for", ""], rows, "<<<", cut=2)


def of_target(target: Target, parts: Split, other: str | None) -> str:
    """What is to be predicted, how often each class comes, which rows are for what; and the other task there is."""
    values = target.values
    if target.classes is None:
        text = f"{target.name}: regression, {values.min():g} … {values.max():g}, mean {values.mean():.4g}"
    else:
        counts = np.bincount(values)
        often = np.argsort(-counts, kind="stable").tolist()
        shown = [f"{shortened(target.classes[i], LONGEST)} {percent(counts[i] / len(values))}" for i in often]
        shown[MOST_CLASSES:] = [f"{len(shown) - MOST_CLASSES:,} more"] if len(shown) > MOST_CLASSES else []
        text = f"{target.name}: classification, {len(often):,} classes: {', '.join(shown)}"
    text += f"; or --task {other}" if other else ""
    uses = [f"{np.count_nonzero(rows):,} for the {name}" for name, rows in parts._asdict().items()]
    return f"{text}\n{len(values):,} rows: {', '.join(uses)}"


def of_scores(judgement: Judgement) -> Table:
    """The net's scores, and beside those for the test a linear model's and a baseline's."""
    names = ["", *judgement.parts._fields, "linear, test", f"{baseline(judgement)}, test"]
    rows = [[name, *(f"{scores[name]:.4g}" for scores in judgement.scores)] for name in judgement.scores[0]]
    return table(names, rows, "<>>>>>")


def baseline(judgement: Judgement) -> str:
    """What the baseline always says."""
    classes = judgement.target.classes
    most = 0 if classes is None else int(judgement.baseline.argmax())
    return "the mean" if classes is None else f"always {shortened(classes[most], LONGEST)}"


def verdict(judgement: Judgement) -> str:
    """Whether the net is worth its while, in a sentence."""
    main = next(iter(judgement.scores[0]))
    net, linear = judgement.scores[TEST][main], judgement.scores[LINEAR][main]
    if not any(judgement.difference(i, 2).is_sure for i in (0, 1)):
        return f"Neither the net nor a linear model is surely better than saying {baseline(judgement)}."
    difference = judgement.difference(0, 1)
    quantity, better = ("R²", "higher") if judgement.target.classes is None else ("log loss", "lower")
    apart = f"{abs(difference.mean):.3g} ± {difference.error:.2g} (standard error)"
    sure = f"its {quantity} on the test rows is {apart} {better}"
    if difference.is_sure:
        return f"The net does better than a linear model: {sure}; {main} {net:.4g} against {linear:.4g}."
    if judgement.difference(1, 0).is_sure:
        return f"A linear model does better: {sure}; {main} {linear:.4g} against {net:.4g}."
    return (
        f"A linear model does as well: {main} {linear:.4g} on the test rows, the net's {net:.4g}; "
        f"the difference in {quantity}, {apart}, may be chance."
    )


def of_importances(judgement: Judgement) -> Table:
    """The columns that matter most."""
    main = next(iter(judgement.scores[0]))
    shown = list(judgement.importances.items())[:MOST_COLUMNS]
    rows = [(shortened(name, LONGEST), f"{round(fall, 3) + 0.0:.3f}") for name, fall in shown]
    return table(["column", f"{main} lost without it"], rows, "<>")


def of_features(model: TableModel) -> Table:
    """What the numbers of a row are that `TableModel.as_sequence` takes."""
    columns = model.columns
    flags = {flag(name): name for name in columns.numbers}
    rows = []
    for name, mean in zip(columns.numbers, columns.center, strict=True):
        of_number = f"number; {mean:.7g} where it is missing"
        rows.append((name, f"1 where {flags[name]} is missing, else 0" if name in flags else of_number))
    for name, known in columns.categories.items():
        for category in known:
            told = "none of these" if category == OTHER else "missing" if category == MISSING else repr(category)
            rows.append((name, f"1 where it is {told}, else 0"))
    return table(["", "column", "what"], [(str(i), *row) for i, row in enumerate(rows)], "><<")
