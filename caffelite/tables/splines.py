"""Splines: the first layer of a net of a table, a piecewise linear function of each column."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import as_array, as_indices, as_real, native_dtype, private_copy, raise_bad_index
from caffelite.core.modes import meta_init
from caffelite.core.tensor import empty_array, make_parameter
from caffelite.files import structure
from caffelite.tables.columns import Z_LIMIT, Columns, bin_edges

INITIAL_DEVIATION = 0.7  # the initial deviation of a spline from its line, relative to the line's
MAX_Z = 1e9  # of z, whose square is finite


@structure.register
class Splines(Columns, recordable=True, rowwise=True):
    """An additive model (GAM) of a table: a sum of functions of one column each, with `size` outputs:

        y = b + Σⱼ sⱼ fⱼ(xⱼ) + Σⱼ sⱼ Wⱼ[cⱼ],    fⱼ(x) = z(x) vⱼ + Σₜ wⱼₜ codeₜ(x)

    x is `numbers` (n, k), c is `codes` (n, m), and y is (n, size). Inputs, `arrays` and errors are as in `Columns`. A
    Model that begins with it takes frames.

    - **Numbers**: f is a linear spline. Its knots are the edges of `bins` bins, each of which holds equally many
      numbers. The first and the last bin get up to 4 more knots at growing distances, for the tails of a distribution.
      code is the piecewise linear code of `Columns`: 1 for each bin below x, the share of the bin that x is in, and 0
      above. z is x at the knots, scaled by the quartiles and kept within ±3. Beyond the first and last knots, f is
      constant. A missing number has its own vector.
    - **Categories**: W has a vector for each category, one for a missing category and one for an unknown category.

    It computes the same as `Linear` after `Columns(frame, robust=True, bins=bins)`, with different parameters. For each
    number, it reads two rows of a table instead of a code of all bins. So a large number of bins takes hardly longer
    than two.

    These are the parameters of the model:

    - `weight` (rows, size) has for each number the w of its bins, and then the vector of a missing number. The vectors
      of the categories follow. The w of all bins of a column together have half the variance of v.
    - `slope` v (k, size) is None without numbers. It is drawn with a variance of 1 / (k + m).
    - `column_scale` s (k + m,) begins at 1.
    - `bias` b (size,) is drawn from −½ … ½.

    All other vectors begin at 0.

    Parameters
    ----------
    columns : frame
        As for `Columns`.
    size : int
        The number of outputs.
    categories, bins, min_frequency
        As for `Columns`.

    The code is from Y. Gorishniy, I. Rubachev and A. Babenko, "On embeddings for numerical features in tabular deep
    learning", NeurIPS 2022. The scale of each column is from D. Holzmüller, L. Grinsztajn and I. Steinwart, "Better by
    default: strong pre-tuned MLPs and boosted trees on tabular data", NeurIPS 2024.
    """

    def __init__(
        self,
        columns: Any,
        size: int,
        categories: Sequence[Any] = (),
        *,
        bins: int | Sequence[int] = 48,
        min_frequency: int = 1,
    ) -> None:
        super().__init__(columns, size, categories, robust=True, bins=bins, min_frequency=min_frequency)

    def _make_parameters(self) -> None:
        k, m = len(self.numbers), len(self.categories)
        codes = np.cumsum([len(names) + 2 for names in self.categories.values()], dtype=np.int64)
        # The beginning of each column in weight and table. In the weight a number has as many rows as edges.
        self.rows = np.concatenate([self.starts, self.starts[-1] + codes])
        self.knots = self.rows + np.minimum(np.arange(k + m + 1), k)
        self.weight = make_parameter("weight", (int(self.rows[-1]), self.size))
        self.slope = make_parameter("slope", (k, self.size)) if k else None
        self.column_scale, self.bias = make_parameter("column_scale", k + m), make_parameter("bias", self.size)
        self.z = empty_array(len(self.edges), np.float64)
        if not meta_init.is_on:
            column = np.repeat(np.arange(k), np.diff(self.starts))
            with np.errstate(over="ignore"):
                z = np.clip((self.edges - self.center[column]) / self.scale[column], -MAX_Z, MAX_Z)
            self.z[:] = z / np.sqrt(1 + (z / Z_LIMIT) ** 2)

    def initialize(self, rng: Any) -> None:
        """Draw slopes, weights of bins and biases from a seed or a `numpy.random.Generator`."""
        rng = np.random.default_rng(rng)
        deviation = (len(self.numbers) + len(self.categories)) ** -0.5
        if self.slope is not None:
            self.slope.data = deviation * rng.standard_normal(self.slope.shape)
        weight = np.zeros(self.weight.shape)
        for first, bins in zip(self.rows, self.bins, strict=False):
            bin_deviation = INITIAL_DEVIATION * deviation * max(bins, 1) ** -0.5
            weight[first : first + bins] = bin_deviation * rng.standard_normal((bins, self.size))
        self.weight.data, self.column_scale.data = weight, np.ones(self.column_scale.shape)
        self.bias.data = rng.uniform(-0.5, 0.5, self.size)

    def arguments(self) -> dict[str, Any]:
        return {name: value for name, value in super().arguments().items() if name != "robust"}

    def refine(self, numbers: np.ndarray, bins: int) -> Splines:
        """Return untrained Splines of the same columns with this many bins, learned from numbers (n, k)."""
        if not self.numbers:
            return copy.deepcopy(self)
        edges = [bin_edges(x, bins, self.robust) for x in numbers.T]
        refined = Splines(**{**self.arguments(), "bins": [len(column_edges) - 1 for column_edges in edges]})
        refined.center[:], refined.scale[:], refined.edges[:] = self.center, self.scale, np.concatenate(edges)
        refined._make_parameters()
        return refined

    @property
    def features(self) -> int:
        """The number of outputs, `size`."""
        return self.size

    def buffers(self) -> dict[str, np.ndarray]:
        """Return center and scale of the numbers, the edges of their bins, and z of these: saved, not learned."""
        return {"z": self.z, **super().buffers()}

    def table(self) -> np.ndarray:
        """Return the knots of each number, with the row of a missing one after them; then the categories' vectors."""
        return kernels.spline_table(*self._parameter_arrays(), self.z, self.rows)

    def _parameter_arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        slope = np.zeros((0, self.size), self.weight.dtype) if self.slope is None else self.slope.data
        return self.weight.data, slope, self.column_scale.data

    def forward(self, *inputs: np.ndarray) -> np.ndarray:
        self.output_shape(*[np.shape(x) for x in inputs])
        self.places = self.codes = raise_error = None
        if self.numbers:
            self.x_dtype = native_dtype(inputs[0])
            x = as_real(inputs[0], np.float64, self)
            self.places = kernels.places(x, self.edges, self.starts, self.weight.dtype)
        if self.categories:
            codes, max_codes = as_array(inputs[-1], self), np.diff(self.rows[len(self.numbers) :]).astype(np.uint64) - 1
            raise_error = functools.partial(raise_bad_index, repr(self), max_codes, codes.shape, codes.dtype)
            self.codes = as_indices(private_copy(codes), self)
        self.parameter_arrays = self._parameter_arrays()
        self.T = kernels.spline_table(*self.parameter_arrays, self.z, self.rows)
        return kernels.splines(self.T, self.bias.data, self.places, self.codes, self.knots, raise_error)

    def backward(self, dy: np.ndarray) -> Any:
        dT = kernels.splines_grad(dy, self.places, self.codes, self.knots)
        dweight, dslope, dscale = kernels.spline_table_grad(dT, *self.parameter_arrays, self.z, self.rows)
        self.weight.add_grad(dweight)
        if self.slope is not None:
            self.slope.add_grad(dslope)
        self.column_scale.add_grad_of(kernels.sum, dscale, axis=1)
        self.bias.add_grad_of(kernels.sum, dy, axis=0)
        dx = None
        if self.places is not None and self.wants_gradient(0):
            knots = self.knots[: len(self.numbers) + 1]
            dx = kernels.splines_input_grad(dy, self.T[: knots[-1]], self.places, knots, self.edges, self.starts)
            dx = as_real(dx, self.x_dtype, self)
        return (dx, None) if self.numbers and self.categories else dx
