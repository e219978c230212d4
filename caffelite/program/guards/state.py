"""The values that a user's Python reads while a step is recorded: attributes, globals, closures, random streams.

A replay runs no Python, so it repeats the decisions that were made when the step was recorded. `StateGuards` finds
out whether that is right. It collects the names in the code that runs (`call` of a model, a loss that is a function,
…). Then it looks at the values of these names: module-level variables, variables of enclosing functions, attributes of
objects and classes, elements of lists, dicts and sets. If a value has changed by the end of the step, the step itself
changes it, and a replay would not (`find_change`). If a value changes later, the step must be recorded again (`table`).
"""

from __future__ import annotations

import builtins
import collections
import functools
import random
import sys
import types
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._kernels.guards import resolve_reference
from caffelite._support.warnings import Line
from caffelite.core.autograd import Node
from caffelite.program.guards.code import (
    add_user_package,
    code_names,
    instructions,
    is_user_code,
    special_methods,
    user_bases,
)
from caffelite.program.guards.random_streams import STREAMS, are_equal, get_state
from caffelite.program.ir import get_owner

_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, property, staticmethod, classmethod)
_BOUND_METHODS = (types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType)
_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
_PLAIN = (type(None), bool, int, float, complex, str, bytes, range, slice, np.dtype, np.ndarray, np.generic, Node)
_ARRAYS = (np.ndarray, Node)
_ARRAY_TYPES = (kernels.RecordedArray, np.memmap, np.recarray)
_MAX_OBJECTS = 1000  # look at no more objects than this
_MAX_ELEMENTS = 64  # elements; compare the values of arrays that are not larger, also if kernels read them
_MAX_NBYTES = 1 << 20  # bytes; compare the values of arrays that are not larger, if kernels do not read them
_IS_KNOWN_PYTHON = sys.version_info < (3, 15)  # names in bytecode are read as in these versions
# The packages whose functions depend on their arguments only, or on random streams that are watched.
_PURE_PACKAGES = {
    *("caffelite", "abc", "argparse", "bisect", "builtins", "cmath", "collections", "contextlib", "copy"),
    *("dataclasses", "enum", "fractions", "functools", "heapq", "inspect", "itertools", "logging"),
    *("math", "numbers", "numpy", "operator", "random", "re", "reprlib", "scipy", "statistics", "string", "threading"),
    *("types", "typing", "warnings", "_abc", "_bisect", "_collections", "_functools", "_heapq", "_operator"),
    *("_random", "_statistics", "_thread"),
    *("pytest", "_pytest"),  # an `assert` reads them, if pytest runs it
}
# The packages of objects that do not change, or have all their values in attributes.
_OPEN_PACKAGES = {"datetime", "decimal", "pathlib", "uuid", "zoneinfo"} | _PURE_PACKAGES - {
    "numpy",
    "operator",
    "scipy",
}
_BUFFERS = (bytearray, memoryview)
_WRAPPERS = (  # containers around `data`
    *(collections.UserDict, collections.UserList),
    *(weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet),
)
# Functions of Python that read or set attributes whose names the code may compute.
_ATTRIBUTE_FUNCTIONS = ("getattr", "setattr", "delattr", "vars", "eval", "exec")


# After a reason, this says what to write instead.
REMEDY = ". Do this in the `forward` of a Function of your own, which each replay calls, or before the step"


class StateGuards:
    """The values that some code of the user reads, as they were when the code was added."""

    def __init__(self) -> None:
        self.codes: list[types.CodeType] = []
        self.global_names: set[str] = set()  # the names of module-level variables that the code reads …
        self.names: set[str] = set()  # … these and the names of attributes …
        self.missing: set[str] = set()  # … and sets, or has as strings, so they may not exist yet
        self.seen: dict[int, Any] = {}  # by id
        self.guarded: set[tuple[int, str]] = set()  # the ids of owners, and names
        self.streams: list[tuple[str, Any, Any]] = []  # random streams: name, stream, state
        self.has_too_many = False  # whether there are objects that were not looked at
        self.hidden: str | None = None  # the name of something from a library, whose changes can't be seen
        self.large_arrays: dict[int, str] = {}  # by their owners' ids, the names of arrays too large to compare
        self.reads_kernel_arrays = False  # whether the code may read arrays, not small, that kernels read, too
        self.iterator: str | None = None  # an iterator's name: its position can't be read
        self.replaced_values: list[Any] = []  # Tensors and arrays that the step has replaced by its own
        self.arrays: dict[int, str] = {}  # the names of arrays, by id
        self.table = kernels.GuardTable()
        self.add_stream("random", random._inst)
        self.add_stream("numpy.random", np.random.mtrand._rand)

    def add(self, code: Any) -> None:
        """Watch what this function, method, partial or object with a `__call__` reads."""
        kinds = type(getattr(code, "__self__", code)).__mro__
        for module in (getattr(code, "__module__", None), *[kind.__module__ for kind in kinds]):
            add_user_package(str(module))
        if (code_object := getattr(code, "__code__", None)) is not None:  # a method has the code of its function
            self.add_names(code_object)
            self.names.add(code_object.co_name)  # in a class, another method may take its place
        names = -1
        while names < len(self.names):  # code that is found last may have names that lead to more
            names = len(self.names)
            self.seen.clear()
            self.visit(code, "the function")

    # ---- finding ------------------------------------------------------------------------------------------------

    def visit(self, value: Any, name: str) -> None:
        """Look at a value with this name, and at everything that the names in the code reach from it."""
        if isinstance(value, np.ndarray) and self.is_first_visit(value, ""):
            self.watch_array(value, name)
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
            self.visit_function(value, name)
        elif isinstance(value, property | staticmethod | classmethod):
            self.visit(getattr(value, "__func__", None) or getattr(value, "fget", None), name)
        elif isinstance(value, type):
            self.visit_class(value)
        elif isinstance(value, types.ModuleType):
            self.visit_module(value, name)
        elif isinstance(value, STREAMS):
            self.add_stream(name, value)
        elif isinstance(value, _WRAPPERS):
            self.visit(getattr(value, "data", None), name)
        elif isinstance(value, collections.ChainMap):
            self.visit(value.maps, name)
        elif isinstance(value, _CONTAINERS):
            self.visit_container(value, name)
        elif isinstance(value, _BUFFERS) or type(value).__module__ == "array":
            if len(value) * getattr(value, "itemsize", 1) > _MAX_NBYTES:
                self.hide(name)
            elif self.is_first_visit(value, ""):
                self.table.add_buffer(value, name)
        elif hasattr(type(value), "__next__"):
            self.iterator = name
        elif isinstance(value, weakref.ref):
            self.visit(value(), name)
        elif not isinstance(value, _CODE):
            self.visit_object(value, name)

    def watch_array(self, value: np.ndarray, name: str) -> None:
        array = value.view(np.ndarray)  # while a step is recorded, only this one can be read
        self.arrays[id(array)] = name
        is_plain = type(value) is np.ndarray or isinstance(value, _ARRAY_TYPES)  # an array with a mask is not
        if array.dtype.hasobject or not is_plain:
            self.hide(name)
        if array.nbytes <= _MAX_NBYTES:
            self.table.add_array(array)
        else:
            self.large_arrays[id(get_owner(array))] = name

    def visit_container(self, value: Any, name: str) -> None:
        if self.is_first_visit(value, ""):
            self.table.add_contents(value, name)
        for item in value.values() if isinstance(value, dict) else value:
            self.visit(item, name)
        if type(value) not in _CONTAINERS:  # a user's subclass may have attributes
            self.visit_object(value, name)

    def visit_module(self, module: types.ModuleType, name: str) -> None:
        if is_user_code(module.__name__, getattr(module, "__file__", None)):
            self.visit_names(None, vars(module), ())
        else:
            self.visit_library(module.__name__, name)
            self.watch_items(vars(module), self.names)

    def add_names(self, code: types.CodeType) -> None:
        if code not in self.codes:
            self.codes.append(code)
            self.global_names |= code_names(code).global_names
            self.names |= code_names(code).loaded | code_names(code).missing
            self.missing |= code_names(code).missing
            if not self.names.isdisjoint(("seed", "setstate", "set_state")):  # a step may leave a stream as it was
                self.hide("a stream that it seeds")

    def watch_items(self, values: dict[str, Any], names: set[str]) -> None:
        """Watch these variables of a module of a library, without a look at their values."""
        for name in names & values.keys():
            if self.is_first_visit(values, name):
                self.table.add_item(None, values, name)

    def hide(self, name: str) -> None:
        """Note that the code reads this, whose changes can't be seen. The first is named in messages."""
        self.hidden = self.hidden or name

    def visit_library(self, module: Any, name: str) -> None:
        """Note what is used of a library's module, unless it depends on its arguments only."""
        if isinstance(module, str) and module.partition(".")[0] not in _PURE_PACKAGES:  # some types have another
            self.hide(name)

    def visit_function(self, function: types.FunctionType, name: str) -> None:
        code = function.__code__
        if not is_user_code(function.__module__ or "", code.co_filename):
            self.visit_library(function.__globals__.get("__name__"), name)  # `wraps` gives it the user's module
            if hasattr(function, "registry"):  # `singledispatch` chooses by it
                self.hide(name)
            self.visit(vars(function).get("__wrapped__"), "the function")  # a library's decorator around the user's
            return
        self.add_names(code)
        if self.is_first_visit(function, "__code__"):
            self.table.add_function(function)
        self.visit_names(None, function.__globals__, (), self.global_names)
        self.watch_items(vars(builtins), self.global_names - function.__globals__.keys())
        if not code_names(code).global_names.isdisjoint(("open", "input")):
            self.hide("a file")
        self.visit_attributes(function)
        for module in code_names(code).imported:
            if self.is_first_visit(sys.modules, module):
                self.table.add_item(None, sys.modules, module)
            self.visit(sys.modules.get(module), module)
        for i, variable in enumerate(code.co_freevars):
            try:
                content = function.__closure__[i].cell_contents  # type: ignore[index]
            except ValueError:  # the variable has no value yet
                continue
            if self.is_first_visit(function.__closure__[i], variable):  # type: ignore[index]
                self.table.add_cell(function, i, variable)
            self.visit(content, variable)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.visit(default, "a default")

    def is_first_visit(self, owner: Any, name: str) -> bool:
        """Return whether this name of this owner is not watched yet. From now on it is."""
        if (id(owner), name) in self.guarded:
            return False
        self.guarded.add((id(owner), name))
        return True

    def visit_names(
        self, owner: Any, values: dict[str, Any], not_recorded: Iterable[str], names: set[str] | None = None
    ) -> None:
        """Look at the globals, or at the attributes of the object `owner`, whose names are in the code."""
        for name in (self.names if names is None else names) & values.keys():
            value = values[name]
            if name in not_recorded:
                continue
            if not isinstance(value, types.ModuleType) and self.is_first_visit(values, name):
                self.table.add_item(owner, values, name)
            self.visit(value, name)

    def visit_class(self, kind: type) -> None:
        """Look at the attributes and methods of a user's class whose names are in the code."""
        bases = user_bases(kind)
        if not bases:
            self.visit_library(kind.__module__, kind.__name__)
        names = self.names & {name for base in bases for name in vars(base)}
        for base in bases:  # a name that a class does not have may later hide its base's
            for name in names.union(special_methods(base)):
                if self.is_first_visit(base, name):
                    self.table.add_class_item(base, name)
                if name in vars(base):
                    self.visit(vars(base)[name], name)
        if type(kind) is not type:
            self.visit_class(type(kind))

    def visit_object(self, value: Any, name: str) -> None:
        if isinstance(value, functools._lru_cache_wrapper):
            self.visit(value.__wrapped__, "the function")
            return
        kind: type = type(value)
        package = str(kind.__module__).partition(".")[0]
        if package not in _OPEN_PACKAGES and not user_bases(kind):
            self.hide(name)
        if hasattr(kind, "runs_in_python") and value.runs_in_python:  # a Function
            return
        self.visit_attributes(value, getattr(kind, "not_recorded", ()))
        if user_bases(kind):
            self.table.add_kind(value)
        elif package == "caffelite":
            self.watch_properties(value)
        for base in user_bases(kind):
            for slot in self.names & vars(base).keys():
                if isinstance(vars(base)[slot], types.MemberDescriptorType):  # one of the __slots__
                    if self.is_first_visit(value, slot):
                        self.table.add_attribute(value, slot)
                    self.visit(getattr(value, slot, None), slot)
        self.visit_class(kind)

    def watch_properties(self, value: Any) -> None:
        """Watch the properties of an object of caffelite that have numbers, such as an optimizer's `lr`."""
        for name in self.names:
            if isinstance(getattr(type(value), name, None), property) and self.is_first_visit(value, name):
                self.table.add_attribute(value, name)

    def visit_attributes(self, owner: Any, not_recorded: Iterable[str] = ()) -> None:
        """Look at the attributes of an object or a function. Watch also for attributes that are set later."""
        attributes = getattr(owner, "__dict__", None)
        kind: type = type(owner)
        if isinstance(attributes, dict):
            names = self.names
            if not self.global_names.isdisjoint(_ATTRIBUTE_FUNCTIONS) and user_bases(kind):
                is_function = hasattr(kind, "runs_in_python")  # a Function of caffelite has attributes of its own
                names = names.union([name for name in attributes if not (is_function and name.startswith("_"))])
            if isinstance(owner, dict):
                owner = None  # otherwise the watch takes the dict's content for its attributes
            self.visit_names(owner, attributes, not_recorded, names)
            class_names = [vars(base).keys() for base in user_bases(kind)]  # a later attribute hides these
            for name in names & self.missing.union(*class_names) - attributes.keys():
                if self.is_first_visit(attributes, name):
                    self.table.add_item(owner, attributes, name)

    def exclude_kernel_reads(self, owners: Iterable[int]) -> None:
        """Do not compare arrays, except small ones, whose owners have these ids: kernels read them in each replay."""
        arrays = [array for array in self.table.watched_arrays() if array.size > _MAX_ELEMENTS]
        arrays = [array for array in arrays if id(get_owner(array)) in owners]
        self.table.exclude_arrays(arrays)
        self.reads_kernel_arrays = bool(arrays) or not self.large_arrays.keys().isdisjoint(owners)
        self.large_arrays = {owner: name for owner, name in self.large_arrays.items() if owner not in owners}

    @property
    def has_hidden_state(self) -> bool:
        """Return whether the code may read an object whose changes can't be seen."""
        return self.hidden_name is not None or self.reads_kernel_arrays

    @property
    def hidden_name(self) -> str | None:
        """Return the name of an object whose changes can't be seen; None if there is none, except what kernels read."""
        return self.hidden or next(iter(self.large_arrays.values()), None)

    # ---- random streams -----------------------------------------------------------------------------------------

    def add_stream(self, name: str, stream: Any) -> None:
        if not any(stream is known for _, known, _ in self.streams):
            self.streams.append((name, stream, get_state(stream)))

    # ---- at the end of the step ---------------------------------------------------------------------------------

    def find_change(self, kernel_writes: set[int]) -> tuple[str, Line | None] | None:
        """Why a replay would be wrong: the step changes a value that it reads. With the line; None if it is right.

        `kernel_writes` has the ids of the arrays that kernels wrote into. A replay writes these too.
        """
        if not _IS_KNOWN_PYTHON:
            return "this version of Python is not known", self.find_line()
        if self.has_too_many:
            return f"it may read more than {_MAX_OBJECTS:,} objects, too many to watch", self.find_line()
        if arrays := self.table.changed_arrays():
            for array in arrays:
                if id(get_owner(array)) not in kernel_writes:
                    name = self.arrays[id(array)]
                    return f"it changes {name} in place in Python, and a replay would not{REMEDY}", self.find_line(name)
            self.table.exclude_arrays(arrays)
        for name, stream, state in self.streams:
            if not are_equal(get_state(stream), state):
                reason = (
                    f"it draws random numbers in Python, from {name}, and a replay would not; Dropout draws in kernels"
                )
                return reason, self.find_line(*name.split("."), "random")
        if self.iterator is not None:
            reason = f"it reads the iterator {self.iterator} in Python, and a replay would not{REMEDY}"
            return reason, self.find_line(self.iterator)
        has_results = False
        for name, reference, now in self.table.changes():
            is_result = isinstance(now, _ARRAYS) and id(get_owner(_as_array(now))) in kernel_writes
            if not is_result or isinstance(reference, bool | int | float | str | None):
                reason = f"it changes {name} and reads it in Python, and a replay would not{REMEDY}"
                return reason, self.find_line(name)
            before = resolve_reference(reference)
            self.replaced_values += [before] if isinstance(before, _ARRAYS) else []
            has_results = True
        if has_results:  # the step only stores its results, which a replay can do
            self.table.exclude_changed()
        return None

    def find_line(self, *names: str) -> Line | None:
        """Return the user's line that sets one of these names, or a line that reads one, or the first line."""
        if not names:
            return self.first_line()
        candidates = [(step, Line(code.co_filename, line)) for code in self.codes for step, line in instructions(code)]
        candidates = [(step, line) for step, line in candidates if step.argval in names]
        candidates.sort(key=lambda candidate: not candidate[0].opname.startswith("STORE"))
        if candidates:
            return candidates[0][1]
        return self.first_line()

    def first_line(self) -> Line | None:
        """Return the first line of the code; None if it has no lines."""
        return Line(self.codes[0].co_filename, self.codes[0].co_firstlineno) if self.codes else None


def _as_array(value: Any) -> np.ndarray:
    return value._data if isinstance(value, Node) else value
