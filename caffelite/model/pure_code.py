"""Pure code: users' Python that only reads and computes, so one more run of it changes nothing.

`predict` may then try whether the rows of a large x can be computed in blocks. Pure code stores nothing in objects. It
uses only names that are known to change nothing: caffelite's functions, methods of a Tensor, and attributes and
variables with numbers, arrays or Functions. The same holds for the user's functions that it calls. If there is any
other name, such as `append` or `next`, the code counts as impure.
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
FILLING = "append", "extend"
KNOWN = """
abs bool dict enumerate float int isinstance len list max min range reversed sorted sum super tuple zip
arange eye float32 float64 full inf int64 newaxis ones pi sqrt zeros Tensor no_grad
astype call forward functions items keys values
"""  # Python's functions, NumPy's, caffelite's, and methods
EFFECTS = {"add_grad", "backward", "retain_grad", "zero_grad"}  # methods of a Tensor that change something
KNOWN_NAMES = frozenset([*FILLING, *KNOWN.split(), *functions.__all__, *dir(Tensor)]) - EFFECTS


def is_pure(model: BaseModel) -> bool:
    """Return whether the user's code in the model is known to change nothing."""
    functions = [f for f in (model, *model.all_functions()) if runs_user_code(f)]
    code = UserCode({id(f) for f in (model, *model.all_functions())})
    # The first pass finds out whether the code changes arrays or lists in place.
    return all(code.is_pure(f) for _ in range(2) for f in functions if isinstance(f, BaseModel) or not f.is_rowwise())


class UserCode:
    """The user's code in the Functions of a model, whose ids are `owned`: `call` or `forward`, and what they call."""

    def __init__(self, owned: set[int]) -> None:
        self.owned = owned
        self.works_in_place = False  # whether it has an operator such as `+=`, or fills lists

    def is_pure(self, function: Function) -> bool:
        """Return whether the code of this Function is known to change nothing."""
        kind: Any = type(function)
        self.owner, self.seen = function, set[int]()
        entries = (function.python_code(), kind.forward, kind.__call__)
        return all(is_internal(entry) or self._is_pure_function(entry) for entry in entries)

    def _is_pure_function(self, function: Any) -> bool:
        function = inspect.unwrap(getattr(function, "__func__", function))
        if not isinstance(function, types.FunctionType):
            return False
        if is_internal(function) or id(function) in self.seen:
            return True
        self.seen.add(id(function))
        codes = list(_nested_codes(function.__code__))
        names = sorted({name for code in codes for name in code.co_names})
        self.works_in_place |= any(name in FILLING for name in names) or any(map(_has_augmented_assignment, codes))
        try:
            values = [cell.cell_contents for cell in function.__closure__ or ()]
        except ValueError:  # a variable without a value
            return False
        values += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        are_harmless = [self._is_harmless_name(name, function.__globals__) for name in names]
        return all(are_harmless) and all(map(self._is_harmless, values)) and not any(map(_stores, codes))

    def _is_harmless_name(self, name: str, variables: dict[str, Any]) -> bool:
        """Return whether everything with this name, in the Function or among the variables, changes nothing."""
        classes = [base for base in type(self.owner).__mro__ if not is_internal(base) and base is not object]
        holders = [vars(self.owner), *map(vars, classes), variables]
        values = [holder[name] for holder in holders if name in holder]
        return all(map(self._is_harmless, values)) if values else name in KNOWN_NAMES

    def _is_harmless(self, value: Any) -> bool:
        if isinstance(value, Function):
            return id(value) in self.owned or not runs_user_code(value)
        if isinstance(value, PLAIN):
            return True
        if isinstance(value, types.ModuleType):
            return value.__name__.partition(".")[0] in MODULES
        if type(value) in (list, tuple, dict):
            items = list(value.values() if type(value) is dict else value)
            is_fixed = type(value) is tuple or not self.works_in_place or (items and isinstance(items[0], Function))
            return bool(is_fixed) and all(map(self._is_harmless, items))
        if isinstance(value, type):
            return is_internal(value) or value in (np.float32, np.float64, np.int64)
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if type(value) is np.ndarray:
            return not self.works_in_place
        return self._is_pure_function(function)


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
