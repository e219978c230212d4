"""Tensor: an array, its gradient, and the Function that made it.

A call of a Function on Tensors leaves a note on the result: the copy of the Function that was applied
(`Tensor.function`) and its inputs (`Tensor.inputs`). These notes are the graph. `Tensor.backward` walks it from the
result to the leaves. It gives each Function the gradient of its output, and passes the gradients of its inputs on
(`propagate`, in autograd.pyx).

The operators (`a + b`, `a.sum()`, …) are Functions too. The files in functions/ add them to the class.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._kernels import SparseMatrix
from caffelite._support.migration_hints import foreign_attributes
from caffelite.core.arrays import as_real
from caffelite.core.autograd import Node, propagate, set_tensor_class
from caffelite.core.modes import init_dtype, initializing, meta_init, mode

if TYPE_CHECKING:
    from caffelite.core.tensor_methods import TensorMethods  # _kernels/generate.py writes what functions/ add
else:
    TensorMethods = Node

CAFFELITES_FUNCTIONS = "caffelite's functions, such as cl.concatenate, cl.where and cl.matmul"
SHAPE_FUNCTIONS = (np.shape, np.ndim, np.size)  # NumPy functions that do not look at values


@foreign_attributes(
    "argsort astype bmm chunk clamp cpu cuda dot double expand flatten flip float gather logsumexp masked_fill maximum "
    "minimum mm norm permute requires_grad_ sort split swapaxes to topk unsqueeze view"
)
class Tensor(TensorMethods):
    """An array with a gradient, which remembers the Function that made it.

    Parameters
    ----------
    data : array-like of numbers
        float32 and float64 arrays and NumPy scalars keep their dtype. Other real numbers become float32. The Tensor
        shares the array's memory if possible, but copies the array if `requires_grad`.
    requires_grad : bool
        Whether `backward` computes a gradient for this Tensor.
    dtype : float32 or float64, optional
    name : str, optional

    Raises
    ------
    TypeError
        If the data are complex, objects, strings or longdouble, or `dtype` is neither float32 nor float64.
    ValueError
        If an array has masked elements.
    """

    # The attributes, `_data`, `function`, `inputs` and so on, are declared in autograd.pxd.

    __array_ufunc__ = None  # an ndarray on the left leaves the operator to the Tensor on the right
    __hash__ = object.__hash__
    _initial_version = 0  # the version, a count of changes, of the values that `initialize` set last

    def __init__(self, data: Any, requires_grad: bool = False, *, dtype: Any = None, name: str | None = None) -> None:
        if isinstance(data, Tensor) and data.function is not None:
            data._check_outside_graph("the Tensor itself")
        array = data._recorded_data() if isinstance(data, Tensor) else data
        self._data = as_real(array, dtype, "Tensor")
        self._version = data._version if isinstance(data, Tensor) and self._data is array else [0]
        self.name = name
        self.requires_grad = requires_grad

    @classmethod
    def _from_array(cls, data: np.ndarray) -> Tensor:
        """Return a Tensor that shares this array, which must be float32 or float64."""
        tensor = cls.__new__(cls)
        tensor._data = data
        tensor._version = [0]
        return tensor

    # ---- the array ----------------------------------------------------------------------------------------------

    @property
    def data(self) -> np.ndarray:
        """The array. Setting it copies the values into the array; they must be real numbers of the same shape."""
        recording = kernels.recorder()
        return self._data if recording is None else recording.snapshot(self).data

    @data.setter
    def data(self, values: Any) -> None:
        values = as_real(values._data if isinstance(values, Tensor) else values, self.dtype, "Tensor.data")
        if values.shape != self.shape:
            raise ValueError(f"{self._description()}.data got values of shape {values.shape}")
        kernels.copy(values, self.data)
        self._bump_version()
        if initializing.is_on:
            self._initial_version = self._version[0]

    def _recorded_data(self) -> np.ndarray:
        """Return the array. If a step is being recorded, the recording notes that the array was read."""
        recording = kernels.recorder()
        if recording is not None:
            recording.snapshot(self)
        return self._data

    def _bump_version(self) -> None:
        """Count a change of the values. All Tensors over the same memory share this count."""
        self._version[0] += 1

    def _has_initial_values(self) -> bool:
        """Return whether no optimizer, file or user has changed the values since `initialize` set them."""
        return self._version[0] == self._initial_version

    @property
    def T(self) -> Tensor:
        """The Tensor with its axes reversed."""
        return self.transpose()

    def numpy(self) -> np.ndarray:
        """Return the array itself, not a copy."""
        return self.data

    def item(self) -> float:
        """Return the value as a number. Raise ValueError if the Tensor does not have exactly one element."""
        value: float = self.data.item()
        return value

    def copy(self) -> Tensor:
        """Return a new leaf with a copy of the values, the same `requires_grad` and name, but no gradient or graph."""
        return Tensor(self._data.copy(), self.requires_grad, name=self.name)

    __copy__ = copy

    def detach(self) -> Tensor:
        """Return a Tensor that shares the memory, but is not in the graph and requires no gradient."""
        tensor = Tensor._from_array(self._recorded_data())
        tensor._version = self._version
        return tensor

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        """Apply a NumPy function to the values. Raise RuntimeError if the Tensor is part of a graph."""
        if function not in SHAPE_FUNCTIONS:
            name = function.__name__
            candidates = (sys.modules.get("caffelite"), f"cl.{name}"), (Tensor, f"t.{name}(…)")
            ways_out = [way_out for owner, way_out in candidates if callable(getattr(owner, name, None))]
            self._check_outside_graph(f"{ways_out[0]} instead of np.{name}" if ways_out else CAFFELITES_FUNCTIONS)
        return function(*_unwrap(arguments), **_unwrap(options))

    def _check_outside_graph(self, way_out: str) -> None:
        """Raise RuntimeError if NumPy would cut the graph here."""
        if self._requires_grad and mode.records_graph:
            raise RuntimeError(
                "a Tensor that takes part in a graph can't become an array, because no gradient would come through it: "
                f"use {way_out}, or t.data for the values alone"
            )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        self._check_outside_graph(CAFFELITES_FUNCTIONS)
        if kernels.recorder() is not None:
            kernels.raise_unrecordable("a Tensor as an array of NumPy's")
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
        details = [f"shape={self.shape}"] if self.size > 8 else []
        details += [f"dtype={self.dtype}"] if self.dtype != np.float32 else []
        details += ["requires_grad=True"] if self.requires_grad and self.function is None else []
        details += [f"name={self.name!r}"] if self.name else []
        details += [f"function={type(self.function).__name__}"] if self.function is not None else []
        return f"Tensor({', '.join([values, *details])})"

    def _description(self) -> str:
        return f"{self.name or 'Tensor'} {self.shape}"

    def __getstate__(self) -> dict[str, Any]:
        if self.function is not None:
            raise TypeError("a Tensor that a graph made can't be pickled or deep-copied; take .detach() or .copy()")
        return {name: getattr(self, name) for name in _LEAF_ATTRIBUTES} | vars(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    # ---- the gradient -------------------------------------------------------------------------------------------

    @property
    def grad(self) -> np.ndarray | None:
        """The gradient, an array like `data`; None before its first contribution and after `zero_grad`."""
        gradient = self._present_gradient()
        if gradient is not None and self._used_rows is not None and not self._is_sparse:
            kernels.use_all_rows(self._used_rows)  # the caller may write anywhere into the array
        return gradient if gradient is None or kernels.recorder() is None else gradient.view(kernels.RecordedArray)

    @grad.setter
    def grad(self, value: Any) -> None:
        """Forget the gradient, like `zero_grad`. You can only assign None."""
        if value is None:
            self.zero_grad()
        elif value is not self._gradient:  # `p.grad *= 0.5` assigns the array it has multiplied
            raise TypeError(
                f"Tensor.grad can be set to None only, got {type(value).__name__}; after `zero_grad()`, "
                "`add_grad(g)` sets the gradient to g"
            )

    def zero_grad(self) -> None:
        """Forget the gradient. Its memory stays, and the next contribution overwrites it."""
        recording = kernels.recorder()
        if recording is not None:
            recording.snapshot(self).changes_gradient = True
        self._has_gradient = False

    def _present_gradient(self) -> np.ndarray | None:
        """Return the gradient's memory, or None if there is no gradient now."""
        recording = kernels.recorder()
        if recording is not None:
            recording.snapshot(self).record_gradient_read(self)
        return self._gradient if self._has_gradient else None

    def add_grad(self, g: Any) -> None:
        """Add an array of this Tensor's shape to its gradient. ValueError if it differs.

        This does nothing if the Tensor requires no gradient, like a frozen parameter.
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
        """Do `add_grad(kernel(…))` without a copy: the kernel writes or adds its result into the gradient itself.

        The kernel takes `out` and `accumulate`, as `matmul` and `sum` do. `rows`, int64 (m,), are the rows of a sparse
        parameter's gradient that the kernel changes. A product xᵀ dy with sparse rows x changes only the rows for those
        columns in which x has numbers.
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
        """Return the memory for these rows of the gradient, or all rows if None, to write or add to; see `add_grad_of`.

        If the Tensor keeps a list of used rows, all other rows of this memory are 0.
        """
        by_columns = rows is not None and rows.dtype.names is not None
        recording = kernels.recorder()
        if recording is not None:
            snapshot = recording.snapshot(self)
            snapshot.record_gradient_read(self)
            snapshot.changes_gradient = True
        if self._gradient is None:
            self._gradient = np.empty(self.shape, self.dtype)
            self._clear_used_rows()
        if by_columns and self._used_rows is None:
            self._used_rows = _empty_row_list(len(self._data))
            if self._has_gradient:
                kernels.use_all_rows(self._used_rows)
            else:
                self._clear_used_rows()
        if self._used_rows is not None:
            if rows is None:
                kernels.use_all_rows(self._used_rows)
            else:
                use = kernels.use_columns if by_columns else kernels.use_rows
                use(self._used_rows, rows, self._gradient, self._has_gradient)
        return self._gradient

    @property
    def is_sparse(self) -> bool:
        """Whether optimizers update only the rows that a step used, to save time.

        (The weight of a Linear with sparse inputs keeps a list of used rows, too. But optimizers update all its rows.)
        """
        return self._is_sparse

    def _clear_used_rows(self) -> None:
        """Set the gradient, which is new memory, to 0 if the Tensor keeps a list of used rows."""
        if self._used_rows is not None and self._gradient is not None:
            if not self._used_rows.flags.writeable:  # the parameter was made inside `meta_init()`
                self._used_rows = np.zeros_like(self._used_rows)
            self._gradient[...], self._used_rows[0] = 0, 0

    def retain_grad(self) -> None:
        """Keep this Tensor's gradient in `backward`, as if it were a leaf."""
        self._retains_grad = True

    def backward(self, grad: Any = None) -> None:
        """Compute the gradients of all leaves below this Tensor, and free the graph.

        They are added to each leaf's `.grad`. `grad` is the gradient of a later result with respect to this Tensor, and
        has its shape. If the Tensor has a single element, you may leave it out; it is then 1.

        Raise ValueError if `grad` has another shape, or is missing for a Tensor with several elements. Raise
        RuntimeError if there is no graph, if an earlier call freed it, or if a value that it needs has changed.
        """
        if not self.requires_grad:
            raise RuntimeError("backward: this Tensor needs no gradient, or its operations were not recorded")
        if grad is not None:
            gradient = as_real(grad._data if isinstance(grad, Tensor) else grad, self.dtype, "backward")
            if gradient.shape != self.shape:
                raise ValueError(f"backward on a Tensor of shape {self.shape} got a gradient of shape {gradient.shape}")
        elif self.size == 1:
            gradient = kernels.full(self.shape, 1, self.dtype)
        else:
            raise ValueError(f"backward without a gradient needs a single element, this Tensor has shape {self.shape}")

        propagate({self: gradient})

    def _raise_if_changed(self, t: Tensor, count: list[int]) -> None:
        """Raise RuntimeError for a changed Tensor t, unless the Function that made this one has not kept t's values."""
        is_parameter = t is not self and not any(t is x for x in self.inputs)
        has_moved = t._version is not count  # t has another array now, so we can't tell what the Function kept
        if is_parameter or has_moved or _may_hold(self.function, t._data):
            raise RuntimeError(
                f"{t._description()}, which {self.function!r} needs for its backward, "
                "has been changed since its forward"
            )


set_tensor_class(Tensor)


def add_methods(*functions: Callable[..., Any], **named: Callable[..., Any]) -> None:
    """Make functions of a Tensor its methods, under their own names or the given ones."""
    methods = {function.__name__: function for function in functions} | named
    for name, function in methods.items():
        setattr(Tensor, name, function)


# The attributes of a leaf that pickle saves.
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


def _may_hold(function: Any, data: np.ndarray) -> bool:
    """Return whether an applied Function may have kept this array. For a user's Function the answer is always yes."""
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


def make_parameter(name: str, shape: int | tuple[int, ...], *, sparse: bool = False) -> Tensor:
    """Return a new parameter of this shape, without values yet, in the dtype of `init_dtype()`."""
    tensor = Tensor._from_array(empty_array(shape, init_dtype()))
    tensor.name, tensor._owns_data, tensor.requires_grad = name, True, True
    if sparse:
        tensor._used_rows, tensor._is_sparse = _empty_row_list(len(tensor)), True
    return tensor


def _empty_row_list(rows: int) -> np.ndarray:
    """Return an empty list of rows, with space for this many; see the kernel `use_rows`."""
    return np.broadcast_to(np.int64(0), 1 + 2 * rows) if meta_init.is_on else np.zeros(1 + 2 * rows, np.int64)


def empty_array(shape: int | tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """Return a new array with values not yet set. Inside `meta_init()` it takes no memory."""
    return np.broadcast_to(np.zeros((), dtype), shape) if meta_init.is_on else np.empty(shape, dtype)


def _unwrap(x: Any) -> Any:
    """Return arguments for a NumPy function, with arrays instead of Tensors."""
    if isinstance(x, list | tuple):
        return type(x)([_unwrap(item) for item in x])
    if isinstance(x, dict):
        return {name: _unwrap(item) for name, item in x.items()}
    return x.data if isinstance(x, Tensor) else x
