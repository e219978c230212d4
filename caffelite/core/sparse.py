"""Sparse inputs: rows of a matrix in which nearly all numbers are 0, in SciPy's CSR format.

caffelite never imports SciPy: any object with a `tocsr` method counts as a sparse matrix. Its numbers are not copied. A
row consists of the address of its numbers and their count, and such rows are the elements of an array
(`kernels.sparse_row`). So caffelite can shuffle, batch and record them like rows of numbers. `SparseRows` is such an
array together with the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import as_real, native_dtype
from caffelite.core.autograd import Node

INT32_MAX = np.iinfo(np.int32).max
HINT = "go into a Linear, or into `rows @ tensor`, as they are; for anything else, give .toarray()"


class Nonzeros(NamedTuple):
    """The numbers of sparse rows that are not 0, the columns of these numbers, and the class of the matrix."""

    values: np.ndarray
    columns: np.ndarray
    matrix_class: Any


class SparseOperand(kernels.SparseMatrix):
    """A sparse matrix. It can be multiplied by a weight or a gradient, and has no other operations."""

    ndim = 2
    __array_ufunc__ = None

    def _raise_unsupported(self, *others: Any) -> Any:
        raise TypeError(f"sparse rows {HINT}")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _raise_unsupported
    __matmul__ = __rmatmul__ = __pow__ = __neg__ = __abs__ = __iter__ = _raise_unsupported

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"sparse rows have no {name!r}; they {HINT}")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise TypeError("sparse rows are not an array; .toarray() makes one")


class SparseRows(SparseOperand):
    """Rows (n, features) of a sparse matrix.

    If you give a model a sparse matrix, its layers get these rows. A Linear takes them as they are, and `rows @ tensor`
    is their product with a Tensor. For other layers, `toarray()` turns them into an array, even in a recorded step. You
    can index them with slices, row numbers and masks. The rows you select share memory with the others.
    """

    def __init__(self, rows: np.ndarray, numbers: Nonzeros | None = None) -> None:
        super().__init__(rows)
        self.numbers = numbers  # None in a recorded step, because each replay has its own

    @property
    def T(self) -> SparseOperand:
        """The transpose (features, n), for `kernels.matmul`: dW = xᵀ dy."""
        return SparseOperand(self.rows, True)

    def __matmul__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, Node) else self._raise_unsupported()  # the Tensor multiplies

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, which: Any) -> SparseRows:
        return SparseRows(np.ascontiguousarray(self.rows[which]), self.numbers)

    def toarray(self) -> np.ndarray:
        """Return the rows as an array (n, features)."""
        return kernels.sparse_to_dense(self.rows)

    def tocsr(self) -> Any:
        """Return the rows as a new matrix, of the same class as the matrix they were made from."""
        numbers, counts = self._numbers(), self.rows["count"]
        ends = np.cumsum(counts)
        positions = np.arange(counts.sum()) + np.repeat(self._starts() - ends + counts, counts)
        arrays = numbers.values[positions], numbers.columns[positions], np.append(0, ends)
        return numbers.matrix_class(arrays, shape=self.shape)

    def astype(self, dtype: Any, name: str = "sparse rows") -> SparseRows:
        """Return the rows in float32 or float64. TypeError, beginning with `name`, if they are not real numbers."""
        if self.dtype == dtype:
            return self
        numbers = self._numbers()
        values = as_real(numbers.values, dtype, name)
        return make_sparse_rows(numbers._replace(values=values), self._starts(), self.rows["count"], self.shape[1])

    def bytes(self) -> Iterator[Any]:
        """Yield the contents of the rows, in pieces of memory, for a checksum."""
        for i in range(0, len(self), 10_000):
            matrix = self[i : i + 10_000].tocsr()
            yield from (matrix.indptr.data, matrix.indices.data, matrix.data.data)

    def _numbers(self) -> Nonzeros:
        if self.numbers is None:
            raise TypeError(
                "sparse rows in a step that is being recorded can go into a Linear or into `rows @ tensor`, or become "
                "an array by .toarray(); a replay would not repeat anything else"
            )
        return self.numbers

    def _starts(self) -> np.ndarray:
        """Return the position of each row's first number among all numbers."""
        columns = self._numbers().columns
        starts: np.ndarray = (self.rows["columns"] - kernels.address(columns)) // columns.itemsize
        return starts

    def __reduce__(self) -> Any:
        return as_sparse, (self.tocsr(),)

    def __repr__(self) -> str:
        return f"SparseRows(shape={self.shape}, dtype={self.dtype})"


def is_sparse(x: Any) -> bool:
    """Return whether this is a sparse matrix of any format, or SparseRows."""
    return not isinstance(x, np.ndarray) and (type(x) is SparseRows or hasattr(x, "tocsr"))


def as_sparse(x: Any, dtype: Any = None, name: str = "sparse rows") -> SparseRows:
    """Convert a sparse matrix (n, features) to SparseRows, in its own dtype or in float32 or float64.

    The numbers of each row are sorted by column, and numbers in the same column are added. If the matrix has this
    order, this dtype and int32 columns, the rows share its memory. Raise ValueError, with the row, if the arrays do not
    form a CSR matrix. Raise TypeError unless its numbers are real.
    """
    rows = x if type(x) is SparseRows else _from_matrix(x, name)
    return rows if dtype is None else rows.astype(dtype, name)


def to_row_array(x: Any) -> np.ndarray:
    """Return the array of rows: `x.rows` for SparseRows, otherwise x itself."""
    rows: np.ndarray = x.rows if type(x) is SparseRows else x
    return rows


def from_row_array(array: np.ndarray) -> Any:
    """Undo `to_row_array`: SparseRows for an array of sparse rows, otherwise the array itself."""
    return SparseRows(array) if array.dtype.names else array


def finite_rows(x: Any) -> np.ndarray:
    """Return whether all numbers of each row are finite: bool (n,), for arrays and SparseRows."""
    if type(x) is not SparseRows:
        finite: np.ndarray = np.isfinite(x.reshape(len(x), -1)).all(axis=1)
        return finite
    row_numbers = np.repeat(np.arange(len(x)), x.rows["count"])
    finite = np.bincount(row_numbers, ~np.isfinite(x.tocsr().data), minlength=len(x)) == 0
    return finite


def _from_matrix(x: Any, name: str) -> SparseRows:
    if len(x.shape) != 2:
        hint = ": x[i : i + 1] is a matrix of one row" if len(x.shape) == 1 else ""
        raise ValueError(f"{name}: expected a sparse matrix (n, features), got shape {x.shape}{hint}")
    if x.format != "csr":
        if hasattr(x, "check_format"):  # nothing else checks the arrays in this format
            try:
                x.check_format()
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        x = x.tocsr()
    n, features = x.shape
    values, columns, ends = np.asarray(x.data), np.asarray(x.indices), np.asarray(x.indptr)
    if values.dtype.hasobject:
        raise TypeError(f"{name} holds Python objects; expected numbers")
    _check_csr(values, columns, ends, n, features, name)
    values, columns, ends = values[: ends[-1]], columns[: ends[-1]], ends.astype(np.int64)
    if not _is_sorted(columns, ends):
        values, columns, ends = _sort_columns(values, columns, ends)
    return make_sparse_rows(Nonzeros(values, columns, type(x)), ends[:-1], np.diff(ends), features)


def make_sparse_rows(numbers: Nonzeros, starts: np.ndarray, counts: np.ndarray, features: int) -> SparseRows:
    """Make SparseRows from `numbers`: row i has `counts[i]` numbers from `starts[i]` on."""
    values, columns, _ = numbers
    values = np.require(values, native_dtype(values), ["C", "A"])
    columns = np.require(columns, np.int32, ["C", "A"])
    rows = np.empty(len(counts), kernels.sparse_row(values.dtype, features))
    rows["count"] = counts
    for field, array in (("values", values), ("columns", columns)):
        rows[field] = kernels.address(array) + starts.astype(np.intp) * array.itemsize
    return SparseRows(rows, numbers._replace(values=values, columns=columns))


def _check_csr(values: np.ndarray, columns: np.ndarray, ends: np.ndarray, n: int, features: int, name: str) -> None:
    """Raise ValueError unless these are the arrays of a CSR matrix (n, features)."""
    what = f"{name} is not a CSR matrix of shape ({n}, {features})"
    for array, array_name in ((columns, "indices"), (ends, "indptr")):
        if array.dtype.kind not in "iu" or array.ndim != 1:
            raise ValueError(f"{what}: {array_name} has dtype {array.dtype} and shape {array.shape}")
    if values.ndim != 1 or len(ends) != n + 1 or features > INT32_MAX:
        lengths = f"data has shape {values.shape}, indptr {ends.shape}"
        raise ValueError(f"{what}: {lengths}; expected one axis, {n + 1} and at most {INT32_MAX} features")
    ends, length = ends.astype(np.int64), min(len(values), len(columns))
    bad = (ends[1:] < ends[:-1]) | (ends[1:] > length)
    if ends[0] != 0 or bad.any():
        row = 0 if ends[0] != 0 else int(bad.argmax())
        raise ValueError(
            f"{what}: row {row} goes from {ends[row]} to {ends[row + 1]} of {length} numbers (indptr); expected rows "
            "that follow each other, from 0 on"
        )
    columns = columns[: ends[-1]]
    if columns.size and not (columns.min() >= 0 and columns.max() < features):
        position = int(((columns < 0) | (columns >= features)).argmax())
        row = int(np.searchsorted(ends, position, side="right")) - 1
        raise ValueError(f"{what}: row {row} has a number in column {columns[position]}; expected 0 … {features - 1}")


def _is_sorted(columns: np.ndarray, ends: np.ndarray) -> bool:
    """Return whether the columns of each row are in increasing order, without repetitions."""
    is_rising = columns[1:] > columns[:-1]
    row_ends = ends[(ends > 0) & (ends < len(columns))]
    is_rising[row_ends - 1] = True
    return bool(is_rising.all())


def _sort_columns(
    values: np.ndarray, columns: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the same numbers with the columns of each row sorted, and numbers in the same column added."""
    rows = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
    order = np.lexsort((columns, rows))
    values, columns, rows = values[order], columns[order], rows[order]
    is_first = np.append(True, (columns[1:] != columns[:-1]) | (rows[1:] != rows[:-1]))
    values = np.add.reduceat(values, np.flatnonzero(is_first), dtype=values.dtype)
    counts = np.bincount(rows[is_first], minlength=len(ends) - 1)
    return values, columns[is_first], np.append(0, np.cumsum(counts))
