"""Explanation: the contributions of columns to outputs, as numbers, a frame and pictures."""

from __future__ import annotations

import operator
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from caffelite._support.text_table import number_text, plural
from caffelite.data import frames
from caffelite.tables import dates
from caffelite.tables.notation import read_words


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """How much each column of some rows contributes to a model's outputs.

    The outputs are `base + values.sum(axis=1)`. A contribution is the column's Shapley value. Turn a background row
    into the explained row, one column after the other. The value is how much this column changes the output, averaged
    over all background rows and all orders. The pictures need matplotlib.

    Attributes
    ----------
    values : array (n, columns), or (n, columns, k) for k outputs
        The contributions, in the units of the outputs. A classifier's outputs are probabilities, and a column's
        contributions to all classes add up to 0.
    errors : array, shaped like values
        The standard errors of the values, due to the random orders. They are 0 if all orders were computed.
    base : float, or array (k,)
        The mean output for the background rows.
    outputs : array (n,) or (n, k)
        The model's outputs for the rows.
    columns : list
        The names of the columns.
    data : frame or dict
        The rows.
    classes : list, optional
        The class of each output, if the outputs are probabilities.
    target : str, optional
        The name of the predicted column, for the pictures.
    """

    values: np.ndarray
    errors: np.ndarray
    base: Any
    outputs: np.ndarray
    columns: list[Any]
    data: Any
    classes: list[Any] | None = None
    target: str | None = None

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        outputs = f", {self.values.shape[2]} outputs" if self.values.ndim == 3 else ""
        errors = f"standard errors up to {self.errors.max():.2g}" if self.errors.any() else "exact"
        return f"Explanation({plural(len(self), 'row')}, {plural(len(self.columns), 'column')}{outputs}, {errors})"

    def frame(self, output: Any = None) -> Any:
        """Return the contributions as a frame: each row's columns, `base` and `output`.

        It is a pandas or polars frame if the rows were in one, otherwise a dict. `output` is a class, or the index of
        an output. For a classifier, the default is the second of two classes, or each row's predicted class if there
        are more. The first column names it.
        """
        places, rows = self._output_places(self._second_class(output)), np.arange(len(self))
        values, base, outputs = self.values, self.base, self.outputs
        result: dict[Any, Any] = {}
        if places is not None:
            values, base, outputs = values[rows, :, places], base[places], outputs[rows, places]
            if self.classes is not None:
                result[self._new_name("class")] = np.array(self.classes)[places]
        result |= dict(zip(self.columns, values.T, strict=True))
        result |= {self._new_name("base"): np.broadcast_to(base, len(self)), self._new_name("output"): outputs}
        if frames.is_instance(self.data, "pandas", "DataFrame"):
            return sys.modules["pandas"].DataFrame(result, index=self.data.index)
        if frames.is_instance(self.data, "polars", "DataFrame"):
            return sys.modules["polars"].DataFrame(result)
        return result

    def plot(self, row: int = 0, output: Any = None, *, axes: Any = None) -> Any:
        """Draw a waterfall from the base to a row's output. Return the matplotlib figure.

        The largest contributions are at the top. Each bar starts where the one below it ends. Whiskers extend two
        standard errors to each side. `output` is as in `frame`. Raise IndexError for a row that does not exist.
        """
        from caffelite.visualize import contributions as pictures

        row = operator.index(row)
        if not -len(self) <= row < len(self):
            raise IndexError(f"plot: there is no row {row}; the explanation has the rows 0 … {len(self) - 1}")
        row %= len(self)
        places = self._output_places(output)
        place = () if places is None else (int(places[row]),)
        columns = frames.get_columns(self.data, "explain")
        labels = [f"{name} = {describe_value(columns[name], row)}" for name in self.columns]
        base, output_value = np.asarray(self.base)[place], self.outputs[(row, *place)]
        values, errors = (a[(row, slice(None), *place)] for a in (self.values, self.errors))
        return pictures.waterfall(
            labels, values, errors, float(base), float(output_value), self._axis(places, row), axes
        )

    def summary(self, output: Any = None, *, axes: Any = None) -> Any:
        """Draw the contributions of all columns in all rows. Return the figure.

        The most important column is at the top. Each point is a row. Its colour shows the number or date in the column,
        from low to high; words are grey. For two classes, the plot shows the second one. For more classes without an
        `output`, bars show the mean size of the contributions to each class.
        """
        from caffelite.visualize import contributions as pictures

        if output is None and self.classes is not None and len(self.classes) > 2:
            return pictures.class_bars(self.columns, np.abs(self.values).mean(axis=0), self.classes, axes)
        places = self._output_places(self._second_class(output))
        columns = frames.get_columns(self.data, "explain")
        ranks = np.stack([rank_values(columns[name]) for name in self.columns], axis=1)
        return pictures.beeswarm(self.columns, self._values(places), ranks, self._axis(places), axes)

    def dependence(self, column: Any, output: Any = None, *, axes: Any = None) -> Any:
        """Draw a column's contributions over its values, a point per row. Return the figure.

        Words are side by side, and so are missing values. For two classes, the plot shows the second one. For more
        classes without an `output`, each point refers to the predicted class of its row. Raise ValueError for an
        unknown column.
        """
        from caffelite.visualize import contributions as pictures

        if column not in self.columns:
            raise ValueError(f"dependence: there is no column {column!r}; there are {frames.join_names(self.columns)}")
        output = self._second_class(output)
        places = self._output_places(output)
        is_mixed = output is None and self.classes is not None
        what = "probability of the predicted class" if is_mixed else self._axis(places)
        values = self._values(places)[:, self.columns.index(column)]
        data = frames.get_columns(self.data, "explain")[column]
        return pictures.dependence(to_axis(data), values, str(column), what, axes)

    def _values(self, places: np.ndarray | None) -> np.ndarray:
        return self.values if places is None else self.values[np.arange(len(self)), :, places]

    def _second_class(self, output: Any) -> Any:
        """Return the second of two classes if no output is given."""
        return self.classes[1] if output is None and self.classes is not None and len(self.classes) == 2 else output

    def _output_places(self, output: Any) -> np.ndarray | None:
        """Return the output's index for each row, or None if there is only one. ValueError for an unknown output."""
        if self.values.ndim == 2:
            if output is not None:
                raise ValueError(f"expected output=None, because the explanation is of one output, got {output!r}")
            return None
        if output is None and self.classes is not None:
            return self.outputs.argmax(axis=1)
        options = list(range(self.values.shape[2])) if self.classes is None else self.classes
        if output not in options:
            raise ValueError(f"expected an output of {options}, got {output!r}")
        return np.full(len(self), options.index(output))

    def _axis(self, places: np.ndarray | None, row: int = 0) -> str:
        """Return the name of the output."""
        if places is None:
            return self.target or "output"
        if self.classes is None:
            return f"output {places[row]}"
        return f"probability of {f'{self.target} = ' if self.target else ''}{self.classes[places[row]]}"

    def _new_name(self, name: str) -> str:
        """Return a name that no column has."""
        while name in self.columns:
            name += "_"
        return name


def describe_value(column: Any, row: int) -> str:
    """Return the value of a column in a row as a short text."""
    if isinstance(column, frames.Categories):
        return str(column.names[column.codes[row]]) if column.codes[row] >= 0 else "missing"
    value = column.iloc[row] if hasattr(column, "iloc") else column[row]
    if frames.is_missing(value) or str(value) == "NaT":
        return "missing"
    if isinstance(value, bool | np.bool_ | str):
        return str(value)
    if isinstance(value, int | float | np.number):
        return number_text(float(value))
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[s]").item()
    return str(value).removesuffix(" 00:00:00")


def rank_values(column: Any) -> np.ndarray:
    """Return the rank of each number or date of a column in 0 … 1; NaN for missing values and words."""
    values = to_axis(column)
    ranks = np.full(len(values), np.nan)
    if values.dtype != object:
        present = ~(np.isnat(values) if values.dtype.kind == "M" else np.isnan(values))
        known, places = np.unique(values[present], return_inverse=True)
        ranks[present] = places / max(len(known) - 1, 1)
    return ranks


def to_axis(column: Any) -> np.ndarray:
    """Return values for an axis: numbers, dates (datetime64), or words as objects. None is a missing word."""
    if frames.is_numeric(column):
        return frames.to_numbers(column, "explain", allow_missing=True).astype(np.float64)
    if isinstance(column, frames.Categories):
        return np.array([None if code < 0 else column.names[code] for code in column.codes], object)
    if dates.is_date_column(column):
        return dates.to_dates(column, "explain").stamps
    values = column.to_list() if hasattr(column, "to_list") else column.tolist()
    words = ["" if frames.is_missing(x) else str(x) for x in values]
    reading = read_words(words)  # dates and numbers that are words
    return np.array([word or None for word in words], object) if reading is None else reading.values[:-1]
