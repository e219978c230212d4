"""History: the result of `fit`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from caffelite._support.colours import CURVES, style
from caffelite._support.terminal import make_writable
from caffelite._support.text_table import FIT_STYLE, TextTable, escape_tex, text_table

# Each run has its own line style. So a reader can distinguish them without colour.
LINE_STYLES: tuple[Any, ...] = (
    "-",
    (0, (5, 2)),
    (0, (1, 1.5)),
    (0, (6, 2, 1, 2)),
    (0, (9, 3)),
    (0, (3, 1.5, 1, 1.5, 1, 1.5)),
)
MAX_ROWS = 12  # of the table


class History(dict[str, list[float]]):
    """The loss and metrics of a training: `history["loss"]` and so on, one number for each completed epoch.

    The loss is the mean over the rows of an epoch, without penalties (weight decay). Metrics use all rows of the epoch.
    Both use the outputs of the training steps, so the parameters changed in between. Values on validation data, after
    the epoch, have `val_` before their names. A notebook shows the curves, or a table without matplotlib.
    """

    @classmethod
    def empty(cls, names: Iterable[str], has_validation: bool) -> History:
        """Return an empty History of quantities with these names, also on validation data if `has_validation`."""
        prefixes = ("", "val_") if has_validation else ("",)
        return cls({f"{prefix}{name}": [] for prefix in prefixes for name in names})

    def __getattr__(self, name: str) -> NoReturn:
        from caffelite._support.hints import attribute_error, did_you_mean  # only for errors

        key = name if name in self else "loss" if name == "history" else None
        hint = did_you_mean(name, [*self, "plot"]) if key is None else f"; a History is a dict: history[{key!r}]"
        hint = "; history.plot() draws the curves" if name == "show" else hint
        raise attribute_error("'History' object", name, hint)

    def __str__(self) -> str:
        """Return a line with the first and the last number of each quantity. `repr` has all numbers."""
        ends = [f"{name} {' → '.join([f'{x:.4g}' for x in (*x[:1], *x[1:][-1:])])}" for name, x in self.items() if x]
        epochs = max(map(len, self.values()), default=0)
        return make_writable(", ".join([f"{epochs} epoch{'s' * (epochs != 1)}", *ends]))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(make_writable(f"{self}; .plot() draws the curves"))

    def __missing__(self, name: str) -> Any:
        raise KeyError(f"{name!r} was not measured, only {', '.join(self)}; fit takes metrics and validation_data")

    @property
    def epochs(self) -> int:
        """The number of completed epochs."""
        return len(self["loss"])

    @style()
    def plot(self, *others: History, labels: Sequence[str] | None = None) -> Any:
        """Draw a panel for each quantity over the epochs, and return the matplotlib figure. Needs matplotlib.

        With others, `a.plot(b, c, labels=["SGD", "Adam", "AdamW"])`, it draws the runs together, each with its own line
        style. Validation data then has separate panels below, with the same scale.

        Raise TypeError if another run is not a History, and ValueError unless there is a label for each run.
        """
        from caffelite._support.figures import Figure

        runs = [self, *others]
        for run in others:
            if not isinstance(run, History):
                raise TypeError(f"History.plot takes other Histories, got {run!r}")
        labels = [f"run {i}" for i in range(1, len(runs) + 1)] if labels is None else list(labels)
        if len(labels) != len(runs):
            raise ValueError(f"History.plot: expected a label for each of {len(runs)} runs, got {labels}")
        measured = list(dict.fromkeys(name for run in runs for name in run))
        names = list(dict.fromkeys(name.removeprefix("val_") for name in measured))
        together = len(runs) > 1
        below = together and len(names) < len(measured)  # whether validation data has separate panels
        figure = Figure(4.5 * len(names), 2.6 * (1 + below))
        panels = figure.subplots(1 + below, len(names), squeeze=False, sharex=True, sharey="col")
        for column, name in zip(panels.T, names, strict=True):
            if together:
                _draw_runs(column, runs, labels, name)
            else:
                self.draw(column[0], name)
        for axes in panels[:-1].flat:
            axes.set_xlabel("")
        lines: Any = max((axes.lines for axes in panels.flat), key=len, default=[])
        if len(lines) > 1:
            columns = min(len(lines), 3 * len(names))
            figure.legend(handles=lines, loc="outside upper center", ncols=columns, handlelength=3)
        return figure

    def draw(self, axes: Any, name: str) -> None:
        """Draw one quantity on matplotlib axes, and its values on validation data, if any, as a dashed line."""
        for key, label, line in ((name, "training", LINE_STYLES[0]), (f"val_{name}", "validation", LINE_STYLES[1])):
            if key in self:
                _draw_line(axes, self[key], label, line)
        _label_axes(axes, name)

    def _repr_svg_(self) -> str | None:
        try:
            figure = self.plot()
        except ImportError:
            return None
        from io import StringIO

        text = StringIO()
        figure.savefig(text, format="svg")
        return text.getvalue().replace("<svg ", f'<svg style="{FIT_STYLE}" ', 1)

    def _repr_html_(self) -> str | None:
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            return self._table()._repr_html_()
        return None  # the notebook shows `_repr_svg_`

    def _table(self) -> TextTable:
        """Return the numbers as a table, one row per epoch. With many epochs it shows the first and the last ones."""
        rows = [[str(i), *[f"{x:.4g}" for x in row]] for i, row in enumerate(zip(*self.values(), strict=False), 1)]
        if len(rows) > MAX_ROWS:
            rows[1 : 1 - MAX_ROWS] = [["…"] * len(rows[0])]
        return text_table(["epoch", *self], rows, ">" * (1 + len(self)))


def _draw_runs(column: Sequence[Any], runs: list[History], labels: Sequence[str], name: str) -> None:
    """Draw a quantity of several runs. If there are axes below, draw its values on validation data there."""
    for axes, key, title in zip(column, (name, f"val_{name}"), (name, f"validation {name}"), strict=False):
        for i, (run, label) in enumerate(zip(runs, labels, strict=True)):
            if key in run:
                _draw_line(axes, run[key], label, LINE_STYLES[i % len(LINE_STYLES)], color=CURVES[i % len(CURVES)])
        _label_axes(axes, title)


def _draw_line(axes: Any, values: list[float], label: str, line: Any, **options: Any) -> None:
    """Draw a curve over the epochs, or a point for a single epoch."""
    marker = "o" if len(values) == 1 else ""
    axes.plot(range(1, len(values) + 1), values, label=escape_tex(str(label)), linestyle=line, marker=marker, **options)


def _label_axes(axes: Any, title: str) -> None:
    axes.set(xlabel="epoch", title=escape_tex(title))
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
