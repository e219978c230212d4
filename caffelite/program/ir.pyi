"""The types of `ir.pyx`, for type checkers."""

import weakref
from typing import Any, NamedTuple

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.python_callback import PythonCallback

class Buffer:
    number: int
    owner: weakref.ref[np.ndarray]
    address: int | None
    nbytes: int
    written: bool | np.ndarray
    early_read: tuple[str, Any] | None
    is_temporary: bool

class Operand:
    buffer: Buffer
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype
    nbytes: int
    def __init__(self, buffer: Buffer, array: np.ndarray) -> None: ...
    def as_matrix(self) -> Operand | None: ...

class Instruction:
    call: kernels.RecordedCall
    operands: list[Operand | None]
    reads: list[Buffer]
    writes: list[Buffer]
    def __init__(
        self, call: kernels.RecordedCall, operands: list[Operand | None], reads: list[Buffer], writes: list[Buffer]
    ) -> None: ...
    def assign_addresses(self) -> kernels.RecordedCall: ...
    def find_difference(self, other: Instruction) -> str | None: ...

class RecordedStep(NamedTuple):
    instructions: list[Instruction | PythonCallback]
    memory: list[Any]
    def operands(self) -> list[tuple[int, Operand]]: ...

def lower_entries(entries: list[Any]) -> tuple[RecordedStep, list[Buffer]]: ...
def written_ids(entries: list[Any]) -> set[int]: ...
def get_owner(array: np.ndarray) -> np.ndarray: ...
