"""Tensor: an array, its gradient, and the Function that made it.

Calling a Function on Tensors leaves a note on the result: the copy of the Function that was applied
(`Tensor.function`) and the Tensors it was applied to (`Tensor.inputs`). These notes are the graph. `Tensor.backward`
walks it from the result to the leaves, handing each Function the gradient of its output and passing on the gradients
of its inputs (`propagate`, in autograd.pyx).

The operators (`a + b`, `a.sum()`, …) are Functions too; `caffelite.functions` gives them to the class.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._kernels import SparseMatrix
from caffelite.core.arrays import as_real
from caffelite.core.autograd import Node, propagate, results_are
from caffelite.core.modes import initializing, without_values


class Tensor(Node):
    """An array that gradients can be computed for.

    Parameters
    ----------
    data : array-like of numbers
        float32 and float64 arrays and NumPy scalars keep their dtype; Python numbers and lists, bool, integer and
        float16 data become float32. The array is shared where it can be, and copied if `requires_grad`.
    requires_grad : bool
        Whether `backward` computes a gradient for this Tensor.
    dtype : float32 or float64, optional
    name : str, optional

    Raises
    ------
    TypeError
        For data that are not real numbers (complex, object, strings) or are longdouble, and for any other dtype.
    ValueError
        For an array with masked elements.
    """

    # Its attributes, `_data`, `function`, `inputs` and so on, are in autograd.pxd.

    __array_ufunc__ = None  # an ndarray on the left leaves the operator to the Tensor on the right
    __hash__ = object.__hash__
    _initial_version = 0  # how many changes there had been when `initialize` last set the values

    # From the files of functions/:
    __add__: Callable[..., Tensor]
    __radd__: Callable[..., Tensor]
    __sub__: Callable[..., Tensor]
    __rsub__: Callable[..., Tensor]
    __mul__: Callable[..., Tensor]
    __rmul__: Callable[..., Tensor]
    __truediv__: Callable[..., Tensor]
    __rtruediv__: Callable[..., Tensor]
    __pow__: Callable[..., Tensor]
    __rpow__: Callable[..., Tensor]
    __neg__: Callable[..., Tensor]
    __matmul__: Callable[..., Tensor]
    __rmatmul__: Callable[..., Tensor]
    matmul: Callable[..., Tensor]
    sum: Callable[..., Tensor]
    mean: Callable[..., Tensor]
    max: Callable[..., Tensor]
    min: Callable[..., Tensor]
    reshape: Callable[..., Tensor]
    transpose: Callable[..., Tensor]
    relu: Callable[..., Tensor]
    exp: Callable[..., Tensor]
    log: Callable[..., Tensor]
    sqrt: Callable[..., Tensor]
    abs: Callable[..., Tensor]
    tanh: Callable[..., Tensor]
    sigmoid: Callable[..., Tensor]
    silu: Callable[..., Tensor]
    leaky_relu: Callable[..., Tensor]
    elu: Callable[..., Tensor]
    gelu: Callable[..., Tensor]
    softplus: Callable[..., Tensor]
    softmax: Callable[..., Tensor]
    log_softmax: Callable[..., Tensor]
    mish: Callable[..., Tensor]
    clip: Callable[..., Tensor]
    __getitem__: Callable[..., Tensor]

    def __init__(self, data: Any, requires_grad: bool = False, *, dtype: Any = None, name: str | None = None) -> None:
        source = data._noted_data() if isinstance(data, Tensor) else data
        self._data = as_real(source, dtype, "Tensor")
        self._version = data._version if isinstance(data, Tensor) and self._data is source else [0]
        self.name = name
        self.requires_grad = requires_grad

    @classmethod
    def _of(cls, data: np.ndarray) -> Tensor:
        """A Tensor over an array as it is."""
        tensor = cls.__new__(cls)
        tensor._data = data
        tensor._version = [0]
        return tensor

    # ---- the array ----------------------------------------------------------------------------------------------

    @property
    def data(self) -> np.ndarray:
        """The array. Assigning to it copies the values into place: same shape, real numbers."""
        recording = kernels.recorder()
        return self._data if recording is None else recording.note(self).data

    @data.setter
    def data(self, values: Any) -> None:
        values = as_real(values._data if isinstance(values, Tensor) else values, self.dtype, "Tensor.data")
        if values.shape != self.shape:
            raise ValueError(f"{self._description()}.data got values of shape {values.shape}")
        kernels.copy(values, self.data)
        self._note_change()
        if initializing.is_on:
            self._initial_version = self._version[0]

    def _noted_data(self) -> np.ndarray:
        """The array as it is, noted where a step is recorded."""
        recording = kernels.recorder()
        if recording is not None:
            recording.note(self)
        return self._data

    def _note_change(self) -> None:
        """Note that the values are others now; all Tensors over the same memory share the count."""
        self._version[0] += 1

    def _has_initial_values(self) -> bool:
        """Whether nobody has changed the values since they were drawn: no optimizer, no file, nobody by hand."""
        return self._version[0] == self._initial_version

    @property
    def T(self) -> Tensor:
        """The Tensor with its axes reversed."""
        return self.transpose()

    def numpy(self) -> np.ndarray:
        """The array, shared."""
        return self.data

    def item(self) -> float:
        """The value of a single element; ValueError for more or fewer."""
        return self.data.item()

    def copy(self) -> Tensor:
        """A new leaf with a copy of the values, `requires_grad` and the name as here; no gradient, no graph."""
        return Tensor(self._data.copy(), self.requires_grad, name=self.name)

    __copy__ = copy

    def detach(self) -> Tensor:
        """A Tensor over the same memory that is in no graph and needs no gradient."""
        tensor = Tensor._of(self._noted_data())
        tensor._version = self._version
        return tensor

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if kernels.recorder() is not None:
            kernels.refuse("a Tensor as an array of NumPy's")
        return np.array(self._data, dtype=dtype, copy=copy)

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator[Tensor]:
        if self.ndim == 0:
            raise TypeError("iteration over a Tensor of shape ()")
        return (self[i] for i in range(len(self)))

    def __float__(self) -> float:
        return float(self.data.item())

    def __bool__(self) -> bool:
        return bool(self.data)

    def __eq__(self, other: Any) -> Any:
        return self.data == _array(other)

    def __ne__(self, other: Any) -> Any:
        return self.data != _array(other)

    def __lt__(self, other: Any) -> Any:
        return self.data < _array(other)

    def __le__(self, other: Any) -> Any:
        return self.data <= _array(other)

    def __gt__(self, other: Any) -> Any:
        return self.data > _array(other)

    def __ge__(self, other: Any) -> Any:
        return self.data >= _array(other)

    def __repr__(self) -> str:
        values = np.array2string(self._data, precision=4, threshold=8, edgeitems=3, separator=", ", prefix="Tensor(")
        notes = [f"shape={self.shape}"] if self.size > 8 else []
        notes += [f"dtype={self.dtype}"] if self.dtype != np.float32 else []
        notes += ["requires_grad=True"] if self.requires_grad and self.function is None else []
        notes += [f"name={self.name!r}"] if self.name else []
        notes += [f"function={type(self.function).__name__}"] if self.function is not None else []
        return f"Tensor({', '.join([values, *notes])})"

    def _description(self) -> str:
        return f"{self.name or 'Tensor'} {self.shape}"

    def __getstate__(self) -> dict:
        if self.function is not None:
            raise TypeError("a Tensor that a graph made can't be pickled or deep-copied; take .detach() or .copy()")
        return {name: getattr(self, name) for name in _LEAF_ATTRIBUTES} | vars(self)

    def __setstate__(self, state: dict) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    # ---- the gradient -------------------------------------------------------------------------------------------

    @property
    def grad(self) -> np.ndarray | None:
        """The gradient, of the Tensor's shape and dtype; None until something contributes, and after `zero_grad`."""
        gradient = self._present_gradient()
        if gradient is not None and self._used_rows is not None and not self._is_sparse:
            kernels.use_all_rows(self._used_rows)  # whoever has the array may write anywhere
        return gradient if gradient is None or kernels.recorder() is None else gradient.view(kernels.Recorded)

    def zero_grad(self) -> None:
        """Forget the gradient. Its memory stays, and the next contribution overwrites it."""
        recording = kernels.recorder()
        if recording is not None:
            recording.note(self).gradient_set = True
        self._has_gradient = False

    def _present_gradient(self) -> np.ndarray | None:
        """The memory of the gradient if there is one now."""
        recording = kernels.recorder()
        if recording is not None:
            recording.note(self).gradient_is_read(self)
        return self._gradient if self._has_gradient else None

    def add_grad(self, g: Any) -> None:
        """Add an array of the Tensor's shape to its gradient; ValueError for another shape.

        A Tensor that requires no gradient, a frozen parameter, takes none.
        """
        g = as_real(g, self.dtype, "add_grad")
        if g.shape != self.shape:
            raise ValueError(f"{self._description()} got a gradient of shape {g.shape}")
        if not self.requires_grad:
            return
        gradient = self._gradient_memory(None)
        if self._has_gradient:
            kernels.add(gradient, g, gradient)
        else:
            kernels.copy(g, gradient)
        self._has_gradient = True

    def add_grad_of(
        self, kernel: Callable[..., Any], *arguments: Any, rows: np.ndarray | None = None, **options: Any
    ) -> None:
        """Let a kernel write or add its result straight into the gradient: `add_grad(kernel(…))` without a copy.

        The kernel takes `out` and `accumulate`, as `matmul` and `sum` do. `rows`, int64 (m,), says which rows of the
        gradient of a sparse parameter it changes. The product of a sparse matrix's transpose, xᵀ dy, changes the rows
        that are columns of x.
        """
        if not self.requires_grad:
            return
        if rows is None and isinstance(arguments[0], SparseMatrix):
            rows = arguments[0].rows
        gradient = self._gradient_memory(rows)
        adds = self._has_gradient or (rows is not None and self._used_rows is not None)
        kernel(*arguments, out=gradient, accumulate=adds, **options)
        self._has_gradient = True

    def _gradient_memory(self, rows: np.ndarray | None) -> np.ndarray:
        """The memory for a contribution to these rows of the gradient, or to all of it; see `add_grad_of`.

        Where it is noted which rows are used, all others are 0.
        """
        by_columns = rows is not None and rows.dtype.names is not None
        recording = kernels.recorder()
        if recording is not None:
            note = recording.note(self)
            note.gradient_is_read(self)
            note.gradient_set = True
        if self._gradient is None:
            self._gradient = np.empty(self.shape, self.dtype)
            self._use_no_rows()
        if by_columns and self._used_rows is None:
            self._used_rows = _list_of_rows(len(self._data))
            if self._has_gradient:
                kernels.use_all_rows(self._used_rows)
            else:
                self._use_no_rows()
        if self._used_rows is not None:
            if rows is None:
                kernels.use_all_rows(self._used_rows)
            else:
                use = kernels.use_columns if by_columns else kernels.use_rows
                use(self._used_rows, rows, self._gradient, self._has_gradient)
        return self._gradient

    @property
    def is_sparse(self) -> bool:
        """Whether it is noted which rows of the gradient are used; the others are 0, and optimizers leave them alone.

        So that what is done in a step takes time for the rows used, and not for all. (Of a parameter that sparse inputs
        are multiplied by, the rows used are noted, too, but it changes as any other.)
        """
        return self._is_sparse

    def _use_no_rows(self) -> None:
        """Set the gradient, which is new memory, to 0, where it is noted which rows are used."""
        if self._used_rows is not None and self._gradient is not None:
            if not self._used_rows.flags.writeable:  # it was made without values
                self._used_rows = np.zeros_like(self._used_rows)
            self._gradient[...], self._used_rows[0] = 0, 0

    def retain_grad(self) -> None:
        """Keep the gradient of this Tensor although it is not a leaf."""
        self._retains_grad = True

    def backward(self, grad: Any = None) -> None:
        """Add the gradient of this Tensor to `.grad` of every leaf that it was computed from, and free the graph.

        `grad`, of this Tensor's shape, is the gradient of what comes after it; a single element needs none, it is 1.

        Raises ValueError without `grad` for several elements or for a `grad` of another shape, and RuntimeError where
        there is no graph, where it has been freed by an earlier call, or where a value that it kept has changed since.
        """
        if not self.requires_grad:
            raise RuntimeError("backward on a Tensor that needs no gradient, or whose operations were not recorded")
        if grad is not None:
            given = as_real(grad._data if isinstance(grad, Tensor) else grad, self.dtype, "backward")
            if given.shape != self.shape:
                raise ValueError(f"backward on a Tensor of shape {self.shape} got a gradient of shape {given.shape}")
        elif self.size == 1:
            given = kernels.full(self.shape, 1, self.dtype)
        else:
            raise ValueError(f"backward without a gradient needs a single element, this Tensor has shape {self.shape}")

        propagate({self: given})

    def _refuse_changed(self, t: Tensor, count: list[int]) -> None:
        """Raise for a Tensor whose memory has changed, unless the Function behind this one did not keep its values."""
        is_parameter = t is not self and not any(t is x for x in self.inputs)
        has_moved = t._version is not count  # and what was kept can't be known any more
        if is_parameter or has_moved or _may_have_kept(self.function, t._data):
            raise RuntimeError(
                f"{t._description()}, which {self.function!r} needs for its backward, "
                "has been changed since its forward"
            )


results_are(Tensor)

# What a leaf has by way of attributes.
_LEAF_ATTRIBUTES = (
    "_data",
    "_version",
    "name",
    "_requires_grad",
    "_retains_grad",
    "_owns_data",
    "_gradient",
    "_has_gradient",
    "_used_rows",
    "_is_sparse",
)


def _may_have_kept(function: Any, data: np.ndarray) -> bool:
    """Whether an applied Function may have kept an array over the same memory. What a user's keeps can't be known."""
    stack, seen = [function], set()
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, np.ndarray) and np.may_share_memory(value, data):
            return True
        if isinstance(value, list | tuple | set):
            stack.extend(value)
        elif isinstance(value, dict):
            stack.extend(value.values())
        elif hasattr(type(value), "runs_in_python"):  # a Function
            if value.runs_in_python:
                return True
            stack.append(vars(value))
    return False


def _array(value: Any) -> Any:
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        raise ValueError("a Tensor is compared with an integer that is too large for a float")
    return value._data if isinstance(value, Tensor) else value


def parameter(name: str, shape: int | tuple[int, ...], *, sparse: bool = False) -> Tensor:
    """A parameter of this shape, float32, for a Function in the making; its values are still to be set."""
    tensor = Tensor._of(uninitialized(shape))
    tensor.name, tensor._owns_data, tensor.requires_grad = name, True, True
    if sparse:
        tensor._used_rows, tensor._is_sparse = _list_of_rows(len(tensor)), True
    return tensor


def _list_of_rows(rows: int) -> np.ndarray:
    """Room for a list of some of so many rows, an empty one; see the kernel `use_rows`."""
    return np.broadcast_to(np.int64(0), 1 + 2 * rows) if without_values.is_on else np.zeros(1 + 2 * rows, np.int64)


def uninitialized(shape: int | tuple[int, ...]) -> np.ndarray:
    """An array, float32, whose values are still to be set. Made `without_values`, it takes no memory."""
    return np.broadcast_to(np.float32(0), shape) if without_values.is_on else np.empty(shape, np.float32)
