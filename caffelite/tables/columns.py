"""Columns: the first layer of a model of a table, whose columns have names and may be categories or dates."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import as_real, check_bool, check_integers, check_positive_integer, native_dtype
from caffelite.core.function import Function, Shape, format_shape
from caffelite.core.modes import meta_init
from caffelite.core.tensor import empty_array
from caffelite.data import frames
from caffelite.files import structure
from caffelite.functions.embedding import Embedding
from caffelite.functions.indexing import Concatenate
from caffelite.tables.column_types import (
    CategoryColumn,
    Column,
    DateColumn,
    NumberColumn,
    column_from_config,
    find_absent_codes,
    infer_columns,
    parse_column,
)

Z_LIMIT = 3.0
MAX_TAIL_EDGES = 4
MIN_BIN_WIDTH = 1e-5  # the width of a bin, as a share of the distance of the quartiles, for float32 to tell it


@structure.register
class Columns(Function, recordable=True, rowwise=True):
    """The input layer for a table (a data frame): it standardizes numbers and embeds categories.

        y = [(x − center) / scale, gaps, bins, W₁[c₁], W₂[c₂], …]

    x `numbers` (n, k) and c `codes` (n, m), integers, y (n, features). Without categories or without numbers, there is
    one input. A Model that begins with this layer takes frames: `fit(frame, y)` and `predict(frame)`. It finds columns
    by name and ignores others. `arrays(frame)` returns the inputs.

    - **Numbers and bools** are scaled to mean 0 and standard deviation 1 over the rows they were learned from. The
      center is subtracted in float64, even in a float32 model. (In float32, seconds since 1970 would not change for
      minutes.) A missing number, NaN in x, becomes 0. If a column had missing numbers when it was learned, y also has a
      feature that is 1 if the number is missing, and otherwise 0. If `robust`, the center is the median, and the scale
      is the distance between the quartiles. y then holds z / √(1 + (z / 3)²) instead of z = (x − center) / scale. So y
      stays within ±3, and a few large numbers change nothing. The outer bins are then split by distance, for the tails.
    - **Bins**: with `bins`, y also has the piecewise linear code of each number. Each bin of a column holds equally
      many of the numbers it was learned from. If there are only a few different numbers, each of them is an edge. The
      code is 1 for each bin below x, the share of the bin that x is in, and 0 for those above it. So the first layer of
      a net can be any piecewise linear function of each column.
    - **Words and categories** are numbered in their order. A column of k categories has k + 2 codes. Code k is for a
      missing category, and k + 1 for a new one, which was not there when the column was learned. `categories` names
      columns of numbers that are categories. The vector of a code that was never trained is 0. But words that are all
      dates, or all numbers such as $1,234.50, are read as such. A warning says if 1,234 or 1/2/2020 stays ambiguous.
    - **Dates and times** become numbers: the year, sines and cosines, and the seconds since the first date. The sines
      and cosines are of month, day of the year, weekday and hour, if these vary. Dates with a time zone are read as
      local times of the zone in which they were learned.

    Parameters
    ----------
    columns : frame
        A frame of pandas, polars or Arrow, or a dict of columns, to learn from; leave the targets out. A file has a
        pair (name, description) for each column.
    size : int
        The size of the vectors that represent categories; at most the number of categories.
    categories : list of names
        The columns of numbers that are categories.
    robust : bool
        Whether numbers are scaled by their quartiles and kept within limits.
    bins : int
        The largest number of bins for a column of numbers. It has fewer if quantiles are equal, and up to 8 more in its
        tails if `robust`. With 0, there are no bins. A file has a list with the number for each column.
    min_frequency : int
        Categories with fewer rows than this count as unknown, so the vector of unknown ones is learned, too.

    `arrays` raises ValueError for a missing column and for an infinite number, with its row. It raises TypeError for
    numbers, words or dates where another kind was learned, and for dates that have lost or gained a time zone. All
    these errors name the column.

    C. Guo and F. Berkhahn, "Entity embeddings of categorical variables", 2016. D. Holzmüller, L. Grinsztajn and
    I. Steinwart, "Better by default: strong pre-tuned MLPs and boosted trees on tabular data", NeurIPS 2024.
    Y. Gorishniy, I. Rubachev and A. Babenko, "On embeddings for numerical features in tabular deep learning", NeurIPS
    2022.
    """

    absent_codes: Sequence[np.ndarray] = ()  # of each column of categories: those that no row had

    def __init__(
        self,
        columns: Any,
        size: int = 8,
        categories: Sequence[Any] = (),
        *,
        robust: bool = False,
        bins: int | Sequence[int] = 0,
        min_frequency: int = 1,
    ) -> None:
        what = type(self).__name__
        self.size, self.robust = check_positive_integer(f"{what}: size", size), check_bool(f"{what}: robust", robust)
        min_rows, is_frame = check_positive_integer(f"{what}: min_frequency", min_frequency), frames.is_frame(columns)
        columns = frames.open_frame(columns, what)
        self.columns = tuple(
            infer_columns(columns, categories, what, min_rows) if is_frame else _parse_columns(columns, what)
        )
        names = [column.name for column in self.columns]
        if len(set(names)) < len(names) or not names:
            raise ValueError(f"{what}: expected one column or more, of different names, got {names}")
        self.numbers = [feature for column in self._numeric_columns() for feature in column.features]
        if len(set(self.numbers)) < len(self.numbers):
            duplicate = next(name for name in self.numbers if self.numbers.count(name) > 1)
            raise ValueError(f"{what}: a part of a date has the name of a column, {duplicate!r}: rename the column")
        self.categories = {c.name: c.categories for c in self.columns if isinstance(c, CategoryColumn)}
        self.center, self.scale = np.zeros(len(self.numbers)), np.ones(len(self.numbers))
        self.dtype: Any = None  # of y: the model's dtype, or without a model the dtype of the embeddings or of x
        counts = check_integers(f"{what}: bins", bins, len(self.numbers), min_value=0) if self.numbers else ()
        self.bins = [*counts]
        if is_frame and self.numbers:
            numbers = self._numbers(columns, what)
            self._fit_numbers(numbers)
            edges = [bin_edges(x, count, self.robust) for x, count in zip(numbers.T, counts, strict=True)]
            self.edges, self.bins = np.concatenate(edges), [len(column_edges) - 1 for column_edges in edges]
        else:
            self.edges = empty_array(sum(self.bins) + len(self.bins), np.float64)
            if not meta_init.is_on:
                self.edges[:] = np.arange(len(self.edges))
        self.starts = np.cumsum([0, *[count + 1 for count in self.bins]], dtype=np.int64)
        offsets = np.cumsum([0, *[len(column.features) for column in self._numeric_columns()]]).tolist()
        self.gaps = np.array(
            [i for i, column in zip(offsets, self._numeric_columns(), strict=False) if column.gaps], np.int64
        )
        if is_frame and self.categories:
            values = frames.get_columns(columns, what)
            category_columns = [c for c in self.columns if isinstance(c, CategoryColumn)]
            self.absent_codes = [find_absent_codes(c, values[c.name], what) for c in category_columns]
        self._make_parameters()
        self._set_initial_values()

    def _make_parameters(self) -> None:
        self.embeddings = [Embedding(len(k) + 2, max(1, min(self.size, len(k)))) for k in self.categories.values()]
        self.concatenate = Concatenate(axis=1)

    def initialize(self, rng: Any) -> None:
        """Draw the vectors of the categories. The vectors of missing, unknown and absent ones are 0."""
        super().initialize(rng)
        for i, embedding in enumerate(self.embeddings):
            vectors = embedding.weight.data.copy()
            vectors[[-2, -1, *(self.absent_codes[i] if self.absent_codes else ())]] = 0
            embedding.weight.data = vectors

    def _numeric_columns(self) -> list[NumberColumn | DateColumn]:
        return [column for column in self.columns if not isinstance(column, CategoryColumn)]

    def _fit_numbers(self, numbers: np.ndarray) -> None:
        """Set center and scale, and note which columns have gaps, from numbers (n, k)."""
        self.center, self.scale = median_and_spread(numbers) if self.robust else mean_and_deviation(numbers)
        has_gaps = dict(zip(self.numbers, np.isnan(numbers).any(axis=0).tolist(), strict=True))
        self.columns = tuple(
            [c._replace(gaps=has_gaps[c.name]) if isinstance(c, NumberColumn) else c for c in self.columns]
        )

    @property
    def limit(self) -> float:
        """y of a number stays within ± this."""
        return Z_LIMIT if self.robust else math.inf

    @property
    def takes_float64(self) -> bool:  # type: ignore[override]
        """True if there are numbers. They would lose digits if they were rounded before the center is subtracted."""
        return bool(self.numbers)

    def arguments(self) -> dict[str, Any]:
        columns = [(column.name, column.get_config()) for column in self.columns]
        return {"columns": columns, "size": self.size, "robust": self.robust, "bins": self.bins}

    def buffers(self) -> dict[str, np.ndarray]:
        """Return center and scale of the numbers and the edges of their bins: saved, not learned."""
        return {"center": self.center, "scale": self.scale, "edges": self.edges, **super().buffers()}

    @property
    def features(self) -> int:
        """The number of features in a row of y."""
        number_features = len(self.numbers) + len(self.gaps) + sum(self.bins)
        return number_features + sum(embedding.size for embedding in self.embeddings)

    def arrays(self, frame: Any, what: str | None = None) -> tuple[np.ndarray, ...]:
        """Return `numbers` (n, k) float64 and `codes` (n, m) int64 of a frame, as a tuple of both or of one.

        Columns are found by name. The class lists the errors. They begin with `what`.
        """
        what = type(self).__name__ if what is None else what
        selection = frames.select(frame, [column.name for column in self.columns], what)
        inputs = []
        if self.numbers:
            inputs.append(self._numbers(selection, what))
        if self.categories:
            values = frames.get_columns(frames.select(selection, list(self.categories), what), what)
            codes = [
                c.array(values[c.name], _column_label(what, c)) for c in self.columns if isinstance(c, CategoryColumn)
            ]
            inputs.append(np.stack(codes, axis=1))
        return tuple(inputs)

    def feature_columns(self) -> tuple[np.ndarray, ...]:
        """Return the number of the column that each feature in `arrays` comes from: a date has several features."""
        columns = {f: i for i, column in enumerate(self.columns) for f in getattr(column, "features", [column.name])}
        return tuple([np.array([columns[name] for name in names]) for names in self.names])

    def is_equivalent(self, other: Any) -> bool:
        """Return True if the other Columns convert a frame to the same arrays."""
        if self.columns == other.columns:
            return True
        own_columns, other_columns = (
            [c._replace(gaps=False) if isinstance(c, NumberColumn) else c for c in columns]
            for columns in (self.columns, other.columns)
        )
        return own_columns == other_columns

    def _numbers(self, frame: Any, what: str) -> np.ndarray:
        """Return the numbers of a frame, (n, k) float64, NaN where one is missing. ValueError if one is infinite."""
        number_names = [column.name for column in self.columns if isinstance(column, NumberColumn)]
        date_columns = [column for column in self.columns if isinstance(column, DateColumn)]
        parts = []
        if number_names:
            selection = frames.select(frame, number_names, what)
            try:
                array = frames.as_array(selection, what, allow_missing=True)
            except TypeError:  # words
                array = self._parse_numbers(selection, what)
            parts.append(np.ascontiguousarray(array, np.float64))
        if date_columns:
            values = frames.get_columns(frames.select(frame, [column.name for column in date_columns], what), what)
            parts += [column.arrays(values[column.name], _column_label(what, column)) for column in date_columns]
        numbers = parts[0]
        if date_columns:  # they are among the others in the order of the columns
            names = number_names + [feature for column in date_columns for feature in column.features]
            positions = {name: i for i, name in enumerate(names)}
            numbers = np.concatenate(parts, axis=1)[:, [positions[name] for name in self.numbers]]
            numbers = np.ascontiguousarray(numbers)
        if np.isinf(numbers).any():
            row, i = np.argwhere(np.isinf(numbers))[0]
            raise ValueError(
                f"{what}: column {self.numbers[i]!r} has {numbers[row, i]} in row {row}; expected finite numbers"
            )
        return numbers

    def _parse_numbers(self, frame: Any, what: str) -> np.ndarray:
        values = frames.get_columns(frame, what)
        for c in self.columns:
            if (
                isinstance(c, NumberColumn)
                and not frames.is_numeric(x := values[c.name])
                and not frames.is_all_missing(x)
            ):
                values[c.name] = parse_column(c, x, _column_label(what, c))
        return frames.as_array(values, what, allow_missing=True)

    def set_notations(self, notations: Mapping[Any, str]) -> None:
        """Set how the words that numbers and dates were learned from are written."""
        columns: list[Any] = [*self.columns]
        self.columns = tuple([c._replace(notation=notations[c.name]) if c.name in notations else c for c in columns])

    def bin_bounds(self, dtype: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the column of numbers, the lower edge and the width of each bin, for an exported program."""
        is_lower_edge = np.ones(len(self.edges), bool)
        is_lower_edge[self.starts[1:] - 1] = False  # the last edge of each column begins no bin
        lower = np.flatnonzero(is_lower_edge)
        width = self.edges[np.minimum(lower + 1, len(self.edges) - 1)] - self.edges[lower]
        column = np.repeat(np.arange(len(self.bins)), self.bins)
        return column, self.edges[lower].astype(dtype), width.astype(dtype)

    def moments(self, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
        """`center` and `scale` for an exported program that gets numbers of this dtype.

        Raise ValueError, with the column, if this dtype can hardly tell the numbers of a column apart, as `predict`
        does.
        """
        for name, center, scale in zip(self.numbers, self.center, self.scale, strict=True):
            if scale < 100 * np.finfo(dtype).eps * abs(center) or not abs(center) + scale < np.finfo(dtype).max:
                raise ValueError(
                    f"export: column {name!r} is about {center:g} with a spread of {scale:g}. {np.dtype(dtype)} can "
                    f"hardly tell its numbers apart: subtract {center:g} from the column, and train again"
                )
        return self.center.astype(dtype), self.scale.astype(dtype)

    # ---- as a Function ------------------------------------------------------------------------------------------

    @property
    def frame_reader(self) -> Columns:
        return self

    @property
    def takes_indices(self) -> bool | tuple[bool, ...]:  # type: ignore[override]
        return (False, True) if self.numbers and self.categories else not self.numbers

    @property
    def required_input_shape(self) -> Any:
        shapes = tuple([(None, len(names)) for names in (self.numbers, self.categories) if names])
        return shapes if len(shapes) > 1 else shapes[0]

    def output_shape(self, *input_shapes: Shape) -> Shape:
        required = self.required_input_shape if len(self._input_kinds()) > 1 else (self.required_input_shape,)
        fits = len(input_shapes) == len(required) and all(
            len(shape) == 2 and shape[1] in (None, k) for shape, (_, k) in zip(input_shapes, required, strict=True)
        )
        if not fits:
            got = " and ".join(map(format_shape, input_shapes))
            is_row = any(len(shape) == 1 for shape in input_shapes)
            raise ValueError(
                f"{self!r} got {got}; expected {self.expected_inputs}"
                + "; frame[i : i + 1] is a frame of one row" * is_row
            )
        return (input_shapes[0][0], self.features)

    @property
    def names(self) -> list[list[Any]]:
        """The names of each input's columns, in order."""
        return [names for names in (self.numbers, list(self.categories)) if names]

    @property
    def expected_inputs(self) -> str:
        """Describe the inputs of the Function for errors."""
        arrays = " and ".join(
            f"{kind} (n, {len(names)})" for kind, names in zip(self._input_kinds(), self.names, strict=True)
        )
        columns = frames.join_names([column.name for column in self.columns])
        return (
            f"{arrays}, or where it is first in a Model a frame with the columns {columns}, "
            f"such as {{name: [value], …}}"
        )

    def _input_kinds(self) -> list[str]:
        return [kind for kind, names in (("numbers", self.numbers), ("codes", self.categories)) if names]

    def forward(self, *inputs: np.ndarray) -> np.ndarray:
        self.output_shape(*[np.shape(x) for x in inputs])
        parts = []
        if self.numbers:
            self.x, self.x_dtype = as_real(inputs[0], np.float64, self), native_dtype(inputs[0])
            embedding_dtype = self.embeddings[0].weight.dtype if self.embeddings else self.x_dtype
            dtype = self.dtype or embedding_dtype
            parts.append(kernels.standardize(self.x, self.center, self.scale, self.gaps, self.limit, dtype))
            if any(self.bins):
                parts.append(kernels.piecewise(self.x, self.edges, self.starts, dtype))
        parts += [embedding.forward(inputs[-1][:, i]) for i, embedding in enumerate(self.embeddings)]
        return self.concatenate.forward(*parts)

    def backward(self, dy: np.ndarray) -> Any:
        parts = list(self.concatenate.backward(dy))
        dx = None
        if self.numbers:
            dx = kernels.standardize_grad(parts.pop(0), self.x, self.center, self.scale, self.limit)
            if any(self.bins):
                dx = kernels.add(dx, kernels.piecewise_grad(parts.pop(0), self.x, self.edges, self.starts))
            dx = as_real(dx, self.x_dtype, self)
        for embedding, part in zip(self.embeddings, parts, strict=True):
            embedding.backward(part)
        return (dx, None) if self.numbers and self.categories else dx

    def __repr__(self) -> str:
        labels = [f"{c.name}[{len(c.categories)}]" if isinstance(c, CategoryColumn) else c.name for c in self.columns]
        return f"{type(self).__name__}({frames.join_names(labels)})"


def _parse_columns(columns: Any, what: str) -> list[Column]:
    """Return the columns that a file describes as pairs (name, description)."""
    if not isinstance(columns, list | tuple) or any(not isinstance(x, list | tuple) or len(x) != 2 for x in columns):
        got = reprlib.repr(columns)
        raise TypeError(f"{what} takes a frame of pandas, polars or Arrow, or a dict of columns, got {got}")
    return [column_from_config(name, described) for name, described in columns]


def _column_label(what: str, column: Column) -> str:
    return f"{what}: column {column.name!r}"


def mean_and_deviation(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation, 1 in place of 0, of each column of numbers (n, k), leaving out NaN."""
    is_present = ~np.isnan(numbers)
    counts, filled = np.maximum(is_present.sum(axis=0), 1), np.where(is_present, numbers, 0.0)
    _, exponent = np.frexp(np.abs(filled).max(axis=0))
    scaled = np.ldexp(filled, -exponent)  # within ±1: no square is beyond float64
    mean = scaled.sum(axis=0) / counts
    deviation = np.sqrt((np.where(is_present, scaled - mean, 0.0) ** 2).sum(axis=0) / counts)
    low, high = (np.where(is_present, numbers, x).T for x in (np.inf, -np.inf))
    is_constant = low.min(axis=1) >= high.max(axis=1)
    mean = np.where(is_constant & is_present.any(axis=0), high.max(axis=1), np.ldexp(mean, exponent))
    return mean, np.where(is_constant | (deviation == 0), 1.0, np.ldexp(deviation, exponent))


def bin_edges(numbers: np.ndarray, bins: int, robust: bool) -> np.ndarray:
    """Return the edges of at most this many bins of equally many numbers (n,), leaving out NaN. No bin has one edge.

    If no more numbers are different, all of them are edges. Otherwise, if `robust`, the outer bins get more edges.
    """
    values = np.sort(numbers[~np.isnan(numbers)])
    if bins == 0 or values.size == 0:
        return np.zeros(1)
    edges = values[np.append(True, values[1:] != values[:-1])]
    if len(edges) < 2:
        return edges
    low, high = np.quantile(values, [0.25, 0.75])
    spread = high - low if high > low else edges[-1] - edges[0]  # of the quartiles, as an outlier makes the range large
    is_few = len(edges) <= bins + 1
    if not is_few:
        edges = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1)))
    edges = edges[np.append(True, np.diff(edges) > MIN_BIN_WIDTH * spread)]
    if is_few or not robust:
        return edges
    edges = split_last_bin(edges, values)
    return -split_last_bin(-edges[::-1], -values[::-1])[::-1]


def split_last_bin(edges: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Add up to MAX_TAIL_EDGES to the last bin. Each new bin is twice as wide as the one before it.

    Two of the values, which are sorted, are beyond each new edge.
    """
    if len(edges) < 4:
        return edges
    with np.errstate(over="ignore"):
        width = edges[-2] / 2 - edges[-4] / 2  # the mean of the two bins before
        added = edges[-2] + width * (2.0 ** np.arange(2, MAX_TAIL_EDGES + 2) - 2)
    return np.concatenate([edges[:-1], added[added <= min(values[-2], edges[-1] - width)], edges[-1:]])


def median_and_spread(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the median and the interquartile range of each column of numbers (n, k), leaving out NaN.

    If the quartiles are equal, use half of the range; if all numbers are equal, or all are missing, 1.
    """
    ordered, counts = np.sort(numbers, axis=0), np.count_nonzero(~np.isnan(numbers), axis=0)

    def quantile(q: float) -> np.ndarray:
        position = q * np.maximum(counts - 1, 0)
        low, share = np.floor(position).astype(int), position % 1
        high, columns = np.minimum(low + 1, np.maximum(counts - 1, 0)), np.arange(numbers.shape[1])
        return ordered[low, columns] * (1 - share) + ordered[high, columns] * share

    minimum, low, center, high, maximum = map(quantile, (0.0, 0.25, 0.5, 0.75, 1.0))
    scale = np.where(high > low, high / 2 - low / 2, maximum / 4 - minimum / 4) * 2
    scale = np.where(np.isfinite(scale), scale, np.finfo(np.float64).max)
    return np.where(counts > 0, center, 0.0), np.where((counts > 0) & (scale > 0), scale, 1.0)
