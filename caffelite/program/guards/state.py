"""The values that a user's Python reads while a step is recorded: attributes, globals, closures, random streams.

A replay runs no Python, so it repeats the decisions that were made when the step was recorded. `StateGuards` finds
out whether that is right. It collects the names in the code that runs (`call` of a model, a loss that is a function,
…). Then it looks at the values of these names: module-level variables, variables of enclosing functions, attributes of
objects and classes, elements of lists, dicts and sets. If a value has changed by the end of the step, the step itself
changes it, and a replay would not (`find_change`). If a value changes later, the step must be recorded again (`table`).
"""

from __future__ import annotations

import collections
import functools
import random
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._kernels.guards import resolve_reference
from caffelite._support.warnings import Line
from caffelite.core.autograd import Node
from caffelite.program.guards.code import code_names, instructions, is_user_code, special_methods, user_bases
from caffelite.program.guards.random_streams import STREAMS, are_equal, get_state
from caffelite.program.ir import get_owner

_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, property, staticmethod, classmethod)
_BOUND_METHODS = (types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType)
_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.ndarray, np.generic, kernels.RecordedArray, Node)
_ARRAYS = (np.ndarray, Node)
_MAX_OBJECTS = 1000  # look at no more objects than this
_MAX_ELEMENTS = 64  # elements; compare the values of arrays that are not larger


class StateGuards:
    """The values that some code of the user reads, as they were when the code was added."""

    def __init__(self) -> None:
        self.codes: list[types.CodeType] = []
        self.names: set[str] = set()  # the names that the code reads …
        self.missing: set[str] = set()  # … and sets, or has as strings, so they may not exist yet
        self.seen: dict[int, Any] = {}  # by id
        self.guarded: set[tuple[int, str]] = set()  # the ids of owners, and names
        self.streams: list[tuple[str, Any, Any]] = []  # random streams: name, stream, state
        self.has_too_many = False  # whether there are objects that were not looked at
        self.iterator: str | None = None  # an iterator's name: its position can't be read
        self.replaced_values: list[Any] = []  # Tensors and arrays that the step has replaced by its own
        self.arrays: dict[int, str] = {}  # the names of small arrays, by id
        self.table = kernels.GuardTable()
        self.add_stream("random", random._inst)
        self.add_stream("numpy.random", np.random.mtrand._rand)

    def add(self, code: Any) -> None:
        """Watch what this function, method, partial or object with a `__call__` reads."""
        if (code_object := getattr(code, "__code__", None)) is not None:  # a method has the code of its function
            self.add_names(code_object)
        names = -1
        while names < len(self.names):  # code that is found last may have names that lead to more
            names = len(self.names)
            self.seen.clear()
            self.visit(code, "the function")

    # ---- finding ------------------------------------------------------------------------------------------------

    def visit(self, value: Any, name: str) -> None:
        """Look at a value with this name, and at everything that the names in the code reach from it."""
        if isinstance(value, np.ndarray) and value.size <= _MAX_ELEMENTS and self.is_first_visit(value, ""):
            self.arrays[id(value)] = name
            self.table.add_array(value)
        if isinstance(value, _PLAIN) or id(value) in self.seen:
            return
        if len(self.seen) >= _MAX_OBJECTS:
            self.has_too_many = True
            return
        self.seen[id(value)] = value
        if isinstance(value, functools.partial):
            for part in (value.func, *value.args, *value.keywords.values()):
                self.visit(part, name)
        elif isinstance(value, _BOUND_METHODS):  # the __self__ of a built-in function is its module
            self.visit(value.__self__, name)
            self.visit(getattr(value, "__func__", None), name)
        elif isinstance(value, types.FunctionType):
            self.visit_function(value)
        elif isinstance(value, property | staticmethod | classmethod):
            self.visit(getattr(value, "__func__", None) or getattr(value, "fget", None), name)
        elif isinstance(value, type):
            self.visit_class(value)
        elif isinstance(value, types.ModuleType):
            if is_user_code(value.__name__, getattr(value, "__file__", None)):
                self.visit_names(None, vars(value), ())
        elif isinstance(value, STREAMS):
            self.add_stream(name, value)
        elif isinstance(value, collections.UserDict | collections.UserList):
            self.visit(value.data, name)
        elif isinstance(value, collections.ChainMap):
            self.visit(value.maps, name)
        elif isinstance(value, _CONTAINERS):
            if self.is_first_visit(value, ""):
                self.table.add_contents(value, name)
            for item in value.values() if isinstance(value, dict) else value:
                self.visit(item, name)
            if type(value) not in _CONTAINERS:  # a user's subclass may have attributes
                self.visit_object(value)
        elif hasattr(type(value), "__next__"):
            self.iterator = name
        elif not isinstance(value, _CODE):
            self.visit_object(value)

    def add_names(self, code: types.CodeType) -> None:
        if code not in self.codes:
            self.codes.append(code)
            self.names |= code_names(code).loaded
            self.missing |= code_names(code).missing

    def visit_function(self, function: types.FunctionType) -> None:
        code = function.__code__
        if not is_user_code(function.__module__ or "", code.co_filename):
            self.visit(vars(function).get("__wrapped__"), "the function")  # a library's decorator around the user's
            return
        self.add_names(code)
        self.visit_names(None, function.__globals__, ())
        self.visit_attributes(function)
        for module in code_names(code).imported:
            if self.is_first_visit(sys.modules, module):
                self.table.add_item(None, sys.modules, module)
            self.visit(sys.modules.get(module), module)
        for i, name in enumerate(code.co_freevars):
            try:
                content = function.__closure__[i].cell_contents  # type: ignore[index]
            except ValueError:  # the variable has no value yet
                continue
            if self.is_first_visit(function.__closure__[i], name):  # type: ignore[index]
                self.table.add_cell(function, i, name)
            self.visit(content, name)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.visit(default, "a default")

    def is_first_visit(self, owner: Any, name: str) -> bool:
        """Return whether this name of this owner is not watched yet. From now on it is."""
        if (id(owner), name) in self.guarded:
            return False
        self.guarded.add((id(owner), name))
        return True

    def visit_names(self, owner: Any, values: dict[str, Any], not_recorded: Iterable[str]) -> None:
        """Look at the globals, or at the attributes of the object `owner`, whose names are in the code."""
        for name in self.names & values.keys():
            value = values[name]
            if name in not_recorded:
                continue
            if not isinstance(value, types.ModuleType) and self.is_first_visit(values, name):
                self.table.add_item(owner, values, name)
            self.visit(value, name)

    def visit_class(self, kind: type) -> None:
        """Look at the attributes and methods of a user's class whose names are in the code."""
        for base in user_bases(kind):
            for name in self.names & vars(base).keys():
                value = vars(base)[name]
                is_descriptor = hasattr(type(value), "__get__")
                if not is_descriptor and not isinstance(value, type) and self.is_first_visit(kind, name):
                    self.table.add_attribute(kind, name)
                self.visit(value, name)
            for name in special_methods(base):
                self.visit(vars(base)[name], name)
        if type(kind) is not type:
            self.visit_class(type(kind))

    def visit_object(self, value: Any) -> None:
        if isinstance(value, functools._lru_cache_wrapper):
            self.visit(value.__wrapped__, "the function")
            return
        kind: type = type(value)
        if hasattr(kind, "runs_in_python") and value.runs_in_python:  # a Function
            return
        self.visit_attributes(value, getattr(kind, "not_recorded", ()))
        for base in user_bases(kind):
            for name in self.names & vars(base).keys():
                if isinstance(vars(base)[name], types.MemberDescriptorType):  # one of the __slots__
                    if self.is_first_visit(value, name):
                        self.table.add_attribute(value, name)
                    self.visit(getattr(value, name, None), name)
        self.visit_class(kind)

    def visit_attributes(self, owner: Any, not_recorded: Iterable[str] = ()) -> None:
        """Look at the attributes of an object or a function. Watch also for attributes that are set later."""
        attributes = getattr(owner, "__dict__", None)
        kind: type = type(owner)
        if isinstance(attributes, dict):
            if isinstance(owner, dict):
                owner = None  # otherwise the watch takes the dict's content for its attributes
            self.visit_names(owner, attributes, not_recorded)
            class_names = [vars(base).keys() for base in user_bases(kind)]  # a later attribute hides these
            for name in self.names & self.missing.union(*class_names) - attributes.keys():
                if self.is_first_visit(attributes, name):
                    self.table.add_item(owner, attributes, name)

    # ---- random streams -----------------------------------------------------------------------------------------

    def add_stream(self, name: str, stream: Any) -> None:
        if not any(stream is known for _, known, _ in self.streams):
            self.streams.append((name, stream, get_state(stream)))

    # ---- at the end of the step ---------------------------------------------------------------------------------

    def find_change(self, written_ids: Callable[[], set[int]]) -> tuple[str, Line | None] | None:
        """Why a replay would be wrong: the step changes a value that it reads. With the line; None if it is right.

        `written_ids` returns the ids of the arrays that kernels wrote into. A replay writes these too.
        """
        if self.has_too_many:
            return f"it may read more than {_MAX_OBJECTS:,} objects, too many to watch", self.find_line()
        kernel_writes = written_ids()
        if arrays := self.table.changed_arrays():
            for array in arrays:
                if id(get_owner(array)) not in kernel_writes:
                    name = self.arrays[id(array)]
                    return f"it changes {name} in place in Python, and a replay would not", self.find_line(name)
            self.table.exclude_arrays(arrays)
        for name, stream, state in self.streams:
            if not are_equal(get_state(stream), state):
                reason = (
                    f"it draws random numbers in Python, from {name}, and a replay would not; Dropout draws in kernels"
                )
                return reason, self.find_line(*name.split("."), "random")
        if self.iterator is not None:
            return f"it reads the iterator {self.iterator} in Python, and a replay would not", self.find_line(
                self.iterator
            )
        has_results = False
        for name, reference, now in self.table.changes():
            is_result = isinstance(now, _ARRAYS) and id(get_owner(_as_array(now))) in kernel_writes
            if not is_result or isinstance(reference, bool | int | float | str | None):
                return f"it changes {name} and reads it in Python, and a replay would not", self.find_line(name)
            before = resolve_reference(reference)
            self.replaced_values += [before] if isinstance(before, _ARRAYS) else []
            has_results = True
        if has_results:  # the step only stores its results, which a replay can do
            self.table.exclude_changed()
        return None

    def find_line(self, *names: str) -> Line | None:
        """Return the user's line that sets one of these names, or a line that reads one, or the first line."""
        candidates = [(step, Line(code.co_filename, line)) for code in self.codes for step, line in instructions(code)]
        candidates = [(step, line) for step, line in candidates if step.argval in names]
        candidates.sort(key=lambda candidate: not candidate[0].opname.startswith("STORE"))
        if candidates:
            return candidates[0][1]
        return Line(self.codes[0].co_filename, self.codes[0].co_firstlineno) if self.codes else None


def _as_array(value: Any) -> np.ndarray:
    return value._data if isinstance(value, Node) else value
