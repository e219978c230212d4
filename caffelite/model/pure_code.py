"""Pure code: users' Python that only reads and computes, so one more run of it changes nothing.

`predict` may then try whether the rows of a large x can be computed in blocks. The code of `call` and of the user's
functions that it calls must store nothing in objects, and may use only names that are known to change nothing:
caffelite's functions, methods of a Tensor, and attributes and variables that hold numbers, arrays or Functions. Any
other name, such as `append` or `next`, is a doubt, and the code then counts as impure.
"""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

from caffelite import functions
from caffelite.core.function import Function
from caffelite.core.tensor import Tensor
from caffelite.files.state import BaseModel
from caffelite.model.shapes import runs_user_code
from caffelite.program.recording import is_internal

STORES = ("STORE_ATTR", "STORE_GLOBAL", "STORE_SUBSCR", "STORE_SLICE", "DELETE_", "IMPORT_")
MODULES = ("caffelite", "numpy", "math")
PLAIN = (type(None), bool, int, float, str, np.generic, np.dtype, Tensor)
BUILTINS = "abs bool dict enumerate float int isinstance len list max min range reversed sorted sum super tuple zip"
NUMPY = "arange eye float32 float64 full inf int64 newaxis ones pi sqrt zeros"
METHODS = "astype call forward functions items keys values"
KNOWN_NAMES = frozenset(
    [*BUILTINS.split(), *NUMPY.split(), *METHODS.split(), *functions.__all__, *dir(Tensor), "Tensor", "no_grad"]
) - {"add_grad", "backward", "retain_grad", "zero_grad"}


def is_pure(model: BaseModel) -> bool:
    """Return whether the user's code in the model is known to change nothing."""
    owned = {id(f) for f in model.all_functions()}
    users = [f for f in (model, *model.all_functions()) if runs_user_code(f)]
    return all(_Code(f, owned).is_pure() for f in users if isinstance(f, BaseModel) or not f.is_rowwise())


class _Code:
    """The user's code in a Function: its `call` or `forward`, and the functions that this calls."""

    def __init__(self, owner: Function, owned: set[int]) -> None:
        self.owner, self.owned = owner, owned  # the Function, and the ids of all Functions in the model
        self.seen: set[int] = set()
        self.works_in_place = False  # whether it has an operator such as `+=`, which may change an array

    def is_pure(self) -> bool:
        kind: Any = type(self.owner)
        entries = (self.owner.python_code(), kind.forward, kind.__call__)
        return all(is_internal(entry) or self._is_pure_function(entry) for entry in entries)

    def _is_pure_function(self, function: Any) -> bool:
        function = inspect.unwrap(getattr(function, "__func__", function))
        if not isinstance(function, types.FunctionType):
            return False
        if is_internal(function) or id(function) in self.seen:
            return True
        self.seen.add(id(function))
        codes = list(_nested_codes(function.__code__))
        if any(_stores(code) for code in codes):
            return False
        try:
            cells = [cell.cell_contents for cell in function.__closure__ or ()]
        except ValueError:  # a variable without a value
            return False
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        self.works_in_place |= any(map(_has_augmented_assignment, codes))
        names = {name for code in codes for name in code.co_names}
        return all(map(self._is_harmless, (*cells, *defaults))) and all(
            self._is_harmless_name(name, function.__globals__) for name in names
        )

    def _is_harmless_name(self, name: str, variables: dict[str, Any]) -> bool:
        """Return whether everything with this name, in the Function or among the variables, changes nothing."""
        classes = [base for base in type(self.owner).__mro__ if not is_internal(base) and base is not object]
        holders = [vars(self.owner), *map(vars, classes), variables]
        values = [holder[name] for holder in holders if name in holder]
        return all(map(self._is_harmless, values)) if values else name in KNOWN_NAMES

    def _is_harmless(self, value: Any) -> bool:
        if isinstance(value, Function):
            return id(value) in self.owned or value is self.owner or not runs_user_code(value)
        if type(value) is np.ndarray:
            return not self.works_in_place
        if isinstance(value, PLAIN):
            return True
        if isinstance(value, types.ModuleType):
            return value.__name__.partition(".")[0] in MODULES
        if type(value) in (list, tuple):
            return all(map(self._is_harmless, value))
        if type(value) is dict:
            return all(map(self._is_harmless, value.values()))
        if isinstance(value, type):
            return is_internal(value) or value in (np.float32, np.float64, np.int64)
        if isinstance(value, property):
            return self._is_pure_function(value.fget)
        return self._is_pure_function(getattr(value, "__func__", value))


def _nested_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield code, and the code of the functions and comprehensions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested_codes(constant)


def _stores(code: types.CodeType) -> bool:
    """Return whether code stores into objects, or into variables of enclosing functions."""
    return any(
        step.opname.startswith(STORES) or (step.opname == "STORE_DEREF" and step.argval in code.co_freevars)
        for step in dis.get_instructions(code)
    )


def _has_augmented_assignment(code: types.CodeType) -> bool:
    return any(step.opname == "BINARY_OP" and step.argrepr.endswith("=") for step in dis.get_instructions(code))
