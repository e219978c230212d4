"""Columns: the first layer of a model of a table, whose columns have names and may be categories."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import as_real, native, positive_integer
from caffelite.core.function import Function, Shape, shape_text
from caffelite.core.tensor import Tensor
from caffelite.data import frames
from caffelite.functions.embedding import Embedding
from caffelite.functions.indexing import Concatenate

__all__ = ["Columns"]


class Columns(Function, recordable=True, by_row=True):
    """The columns of a table as rows of features: numbers are standardized, each category has an Embedding.

        y = [(x − mean) / deviation, W₁[c₁], W₂[c₂], …]

    x `numbers` (n, k) and c `codes` (n, m), integers, y (n, features). Without categories or without numbers there is
    one input. The mean is subtracted in float64, also in a model of float32, in which seconds since 1970 would not
    change for minutes. A Model whose first Function it is takes frames, `fit(frame, y)` and `predict(frame)`. It finds
    the columns by their names, and ignores other columns. `arrays(frame)` returns the inputs.

    Parameters
    ----------
    columns : frame
        A frame of pandas or polars, or a dict of columns, to learn from; leave the targets out. `mean` and `deviation`,
        which are buffers, are those of its columns of numbers and bools. Constant columns are not scaled. Words and
        categories are numbered and remembered; a categorical type has its own order.
        Files have (name, None) for each column of numbers and (name, categories) for the others.
    size : int
        The size of the vectors that categories become; at most the number of categories.

    ValueError, with the column, for missing values. In `arrays` also for a missing column, and for an unknown category,
    with its row. TypeError for values that are neither numbers nor words.

    C. Guo and F. Berkhahn, "Entity embeddings of categorical variables", 2016.
    """

    def __init__(self, columns: Any, size: int = 8) -> None:
        self.size = positive_integer("Columns: size", size)
        learned = frames.columns(columns, "Columns") if frames.is_frame(columns) else None
        self.columns = tuple(_described(columns if learned is None else learned))
        names = [name for name, _ in self.columns]
        if len(set(names)) < len(names) or not names:
            raise ValueError(f"Columns: expected one column or more, of different names, got {names}")
        self.numbers = [name for name, known in self.columns if known is None]
        self.categories = {name: known for name, known in self.columns if known is not None}
        self.embeddings = [Embedding(len(known), min(self.size, len(known))) for known in self.categories.values()]
        self.mean, self.deviation = np.zeros(len(self.numbers)), np.ones(len(self.numbers))
        self.dtype: Any = None  # of y: the model's, or without a model that of the embeddings or of x
        self.concatenate = Concatenate(axis=1)
        if learned is not None:
            for i, name in enumerate(self.numbers):
                self.mean[i], self.deviation[i] = _moments(learned[name], f"Columns: column {name!r}")

    @property
    def takes_float64(self) -> bool:  # type: ignore[override]
        """Whether there are numbers. They would lose digits if they were rounded before the mean is subtracted."""
        return bool(self.numbers)

    def arguments(self) -> dict[str, Any]:
        return {"columns": self.columns, "size": self.size}

    def buffers(self) -> dict[str, np.ndarray]:
        """What is kept but not learned: mean and standard deviation of the numbers."""
        return {"mean": self.mean, "deviation": self.deviation, **super().buffers()}

    @property
    def features(self) -> int:
        """The number of features in a row of y."""
        return len(self.numbers) + sum(embedding.size for embedding in self.embeddings)

    def arrays(self, frame: Any, what: str = "Columns") -> tuple[np.ndarray, ...]:
        """A tuple of `numbers` (n, k) float64 and `codes` (n, m) int64 of a frame, or of the one that there is.

        Columns are found by name. Errors are those that the class lists, and begin with `what`.
        """
        chosen = frames.select(frame, [name for name, _ in self.columns], what)
        inputs = []
        if self.numbers:
            numbers = frames.as_array(frames.select(chosen, self.numbers, what), what)
            inputs.append(np.ascontiguousarray(numbers, np.float64))
        if self.categories:
            found = frames.columns(frames.select(chosen, list(self.categories), what), what)
            places = {name: {x: i for i, x in enumerate(known)} for name, known in self.categories.items()}
            codes = [frames.codes(found[name], known, f"{what}: column {name!r}") for name, known in places.items()]
            inputs.append(np.stack(codes, axis=1))
        return tuple(inputs)

    def moments(self, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
        """`mean` and `deviation` for an exported program that gets numbers of this dtype.

        ValueError, with the column, if this dtype can hardly tell the numbers of a column apart, as `predict` does.
        """
        for name, mean, deviation in zip(self.numbers, self.mean, self.deviation, strict=True):
            if deviation < 100 * np.finfo(dtype).eps * abs(mean) or not abs(mean) + deviation < np.finfo(dtype).max:
                raise ValueError(
                    f"export: column {name!r} is about {mean:g} with a standard deviation of {deviation:g}, which "
                    f"{np.dtype(dtype)} hardly tells apart: train on a column from which {mean:g} is subtracted"
                )
        return self.mean.astype(dtype), self.deviation.astype(dtype)

    # ---- as a Function ------------------------------------------------------------------------------------------

    @property
    def takes_indices(self) -> bool | tuple[bool, ...]:  # type: ignore[override]
        return (False, True) if self.numbers and self.categories else not self.numbers

    @property
    def required_input_shape(self) -> Any:
        shapes = tuple([(None, len(given)) for given in (self.numbers, self.categories) if given])
        return shapes if len(shapes) > 1 else shapes[0]

    def output_shape(self, *input_shapes: Shape) -> Shape:
        required = self.required_input_shape if len(self._kinds()) > 1 else (self.required_input_shape,)
        fits = len(input_shapes) == len(required) and all(
            len(shape) == 2 and shape[1] in (None, k) for shape, (_, k) in zip(input_shapes, required, strict=True)
        )
        if not fits:
            got = " and ".join(map(shape_text, input_shapes))
            is_row = any(len(shape) == 1 for shape in input_shapes)
            raise ValueError(
                f"{self!r} got {got}; expected {self.expected}" + "; frame[i : i + 1] is a frame of one row" * is_row
            )
        return (input_shapes[0][0], self.features)

    @property
    def names(self) -> list[list[Any]]:
        """The names of each input's columns, in order."""
        return [names for names in (self.numbers, list(self.categories)) if names]

    @property
    def expected(self) -> str:
        """What the Function takes, in words, for errors."""
        arrays = " and ".join(
            f"{kind} (n, {len(names)})" for kind, names in zip(self._kinds(), self.names, strict=True)
        )
        named = frames.listed([name for name, _ in self.columns])
        return (
            f"{arrays}, or where it is first in a Model a frame with the columns {named}, such as {{name: [value], …}}"
        )

    def _kinds(self) -> list[str]:
        return [kind for kind, given in (("numbers", self.numbers), ("codes", self.categories)) if given]

    def formula(self, *inputs: Any) -> Tensor:
        parts = []
        if self.numbers:
            mean, deviation = self.moments(inputs[0].dtype)
            parts.append((inputs[0] - mean) / deviation)
        parts += [embedding(inputs[-1][:, i]) for i, embedding in enumerate(self.embeddings)]
        return self.concatenate(*parts)

    def forward(self, *inputs: np.ndarray) -> np.ndarray:
        self.output_shape(*[np.shape(x) for x in inputs])
        parts = []
        if self.numbers:
            self.x_dtype = native(inputs[0])
            of_embeddings = self.embeddings[0].weight.dtype if self.embeddings else self.x_dtype
            difference = kernels.subtract(as_real(inputs[0], np.float64, self), self.mean)
            standardized = kernels.divide(difference, self.deviation)
            parts.append(as_real(standardized, self.dtype or of_embeddings, self))
        parts += [embedding.forward(inputs[-1][:, i]) for i, embedding in enumerate(self.embeddings)]
        return self.concatenate.forward(*parts)

    def backward(self, dy: np.ndarray) -> Any:
        parts = list(self.concatenate.backward(dy))
        dx = None
        if self.numbers:
            dx = kernels.divide(as_real(parts.pop(0), np.float64, self), self.deviation)
            dx = as_real(dx, self.x_dtype, self)
        for embedding, part in zip(self.embeddings, parts, strict=True):
            embedding.backward(part)
        return (dx, None) if self.numbers and self.categories else dx

    def __repr__(self) -> str:
        shown = [name if known is None else f"{name}[{len(known)}]" for name, known in self.columns]
        return f"Columns({frames.listed(shown)})"


def _described(columns: Any) -> Iterable[tuple[Any, tuple[Any, ...] | None]]:
    """Each column's name, and its categories or None, of columns by name or as files have them."""
    if not isinstance(columns, dict):
        if not isinstance(columns, list | tuple) or any(
            not isinstance(x, list | tuple) or len(x) != 2 for x in columns
        ):
            raise TypeError(
                f"Columns takes a frame of pandas or polars, or a dict of columns, got {reprlib.repr(columns)}"
            )
        for name, known in columns:
            if known is not None and (not known or len({(type(x), x) for x in known}) < len(known)):
                raise ValueError(f"Columns: expected categories of column {name!r} that differ, got {known}")
            yield _checked(name), None if known is None else tuple(known)
        return
    for name, column in columns.items():
        what = f"Columns: column {name!r}"
        if frames.are_numbers(column):
            yield _checked(name), None
        else:
            codes, names = frames.categories(column, what)
            frames.check_missing(codes < 0, what)
            if not names:
                raise ValueError(f"{what} has no rows")
            yield _checked(name), tuple(names)


def _checked(name: Any) -> Any:
    if not isinstance(name, str | int):
        raise TypeError(f"Columns: expected names that are words or integers, got {name!r}")
    return name


def _moments(column: Any, what: str) -> tuple[float, float]:
    """The mean and the standard deviation, 1 where that is 0, of a column of numbers."""
    numbers = frames.numbers(column, what).astype(np.float64)
    if numbers.size == 0:
        raise ValueError(f"{what} has no rows")
    if not np.isfinite(numbers).all():
        row = int((~np.isfinite(numbers)).argmax())
        raise ValueError(f"{what} has {numbers[row]} in row {row}; expected finite numbers")
    if numbers.min() == numbers.max():
        return float(numbers[0]), 1.0
    exponent = np.frexp(np.abs(numbers).max())[1]  # by a power of 2, so that no square is beyond float64 or below it
    numbers = np.ldexp(numbers, -exponent)
    return float(np.ldexp(numbers.mean(), exponent)), float(np.ldexp(numbers.std(), exponent)) or 1.0
