"""What `autograd.pyx` offers, for type checkers."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from caffelite.tensor import Tensor

class Mode:
    records_graph: bool
    training: bool

class no_grad:
    def __enter__(self) -> None: ...
    def __exit__(self, *exception: object) -> None: ...
    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]: ...

class inference(no_grad): ...

class Node:
    _data: np.ndarray
    _version: list[int]
    name: str | None
    function: Any
    inputs: tuple[Tensor | None, ...]
    requires_grad: bool
    _requires_grad: bool
    _retains_grad: bool
    _owns_data: bool
    _gradient: np.ndarray | None
    _has_gradient: bool
    _used_rows: np.ndarray | None
    _is_sparse: bool
    _versions: Sequence[Any]
    _version_made: int
    _serial_number: int
    _place: tuple[int, int] | None
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def dtype(self) -> np.dtype: ...

def results_are(tensor_class: type) -> None: ...
def is_childless(attributes: dict[str, Any], leaves: frozenset[type]) -> bool: ...
def call(function: Any, *inputs: Any, **named: Any) -> Any: ...
def applied_to(function: Any, *inputs: Any, parameters: Sequence[Tensor] = ()) -> Any: ...
def holds_tensors(value: list | tuple) -> bool: ...
def binary_operator(
    function: type, symbol: str, operand: Callable[[Any, Tensor, str], Any], swapped: bool = False
) -> Callable[[Tensor, Any], Tensor]: ...
def results_so_far() -> int: ...
def propagate(gradients: dict[Tensor, np.ndarray]) -> None: ...
def inputs_first(*results: Tensor) -> list[Tensor]: ...
