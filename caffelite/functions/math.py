"""Elementary functions: a Function, a function and a Tensor method for each row with `y` in _kernels/operations.py.

_kernels/generate.py writes their types into math.pyi.
"""

from typing import Any

from caffelite import _kernels as kernels
from caffelite._kernels.operations import OPERATIONS, Operation
from caffelite.core.function import Function
from caffelite.core.tensor import Tensor, add_methods
from caffelite.functions.arithmetic import as_tensor
from caffelite.functions.elementwise import keep_input, keep_output


def make_class(row: Operation) -> type[Function]:
    keep = {"x": keep_input, "y": keep_output}[row.saves]
    forward, backward = keep(getattr(kernels, row.kernel), getattr(kernels, row.gradient))
    members = {"__doc__": row.class_text, "__module__": __name__, "forward": forward, "backward": backward}
    return type(Function)(row.function, (Function,), members, recordable=True, rowwise=True)


def make_call(row: Operation) -> Any:
    cls = FUNCTIONS[row.function]

    def call(x: Any) -> Tensor:
        return cls().apply_once(as_tensor(x))

    call.__name__ = call.__qualname__ = row.kernel
    call.__doc__ = row.function_text
    return call


ROWS = [row for row in OPERATIONS if row.y]
FUNCTIONS: dict[str, type[Function]] = {row.function: make_class(row) for row in ROWS}
CALLS = {row.kernel: make_call(row) for row in ROWS}
globals().update(FUNCTIONS | CALLS)
add_methods(*CALLS.values())
__all__ = sorted(CALLS)
