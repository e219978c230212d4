"""The values that a user's Python reads while a step is recorded: attributes, globals, closures, random streams.

A replay runs no Python, so it repeats the decisions that were made when the step was recorded. `StateGuards` finds
out whether that is right. It collects the names in the code that runs (`call` of a model, a loss that is a function,
…). Then it looks at the values of these names: module-level variables, variables of enclosing functions, attributes of
objects and classes, elements of lists, dicts and sets. If a value has changed by the end of the step, the step itself
changes it, and a replay would not (`find_change`). If a value changes later, the step must be recorded again (`table`).
"""

from __future__ import annotations

import _random
import collections
import ctypes
import dis
import functools
import inspect
import os
import random
import sys
import sysconfig
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.warnings import PACKAGE, Line
from caffelite.core.arrays import memory_owner
from caffelite.core.autograd import Node

_LIBRARIES = (
    PACKAGE,
    *{os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "purelib", "platlib")},
)
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, property, staticmethod, classmethod)
_CODE_OR_NAMES = (*_CODE, type, types.ModuleType)
_BOUND_METHODS = (types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType)
_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.ndarray, np.generic, kernels.RecordedArray, Node)
_ARRAYS = (np.ndarray, Node)
_STREAMS = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
_MAX_OBJECTS = 1000  # look at no more objects than this
_MAX_ELEMENTS = 64  # elements; compare the values of arrays that are not larger
_CONSTRUCTORS = {"__init__", "__new__", "__post_init__", "__init_subclass__", "__prepare__", "__set_name__", "__del__"}


class StateGuards:
    """The values that some code of the user reads, as they were when the code was added."""

    def __init__(self, include_callbacks: bool = False) -> None:
        self.include_callbacks = include_callbacks  # whether to look at Functions that a replay calls again, too
        self.codes: list[types.CodeType] = []
        self.names: set[str] = set()  # the names that the code reads …
        self.missing: set[str] = set()  # … and sets, or has as strings, so they may not exist yet
        self.seen: dict[int, Any] = {}  # by id
        self.guarded: set[tuple[int, str]] = set()  # the ids of owners, and names
        self.streams: list[tuple[str, Any, Any]] = []  # random streams: name, stream, state
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
        if isinstance(value, _PLAIN) or id(value) in self.seen or len(self.seen) >= _MAX_OBJECTS:
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
            if _is_user_code(value.__name__, getattr(value, "__file__", None)):
                self.visit_names(None, vars(value), ())
        elif isinstance(value, _STREAMS):
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
        if not _is_user_code(function.__module__ or "", code.co_filename):
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
        """Whether this name of this owner is not watched yet. From now on it is."""
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
            if not isinstance(value, _CODE_OR_NAMES) and self.is_first_visit(values, name):
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
        if hasattr(kind, "runs_in_python") and value.runs_in_python and not self.include_callbacks:  # a Function
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
            self.streams.append((name, stream, _get_state(stream)))

    # ---- at the end of the step ---------------------------------------------------------------------------------

    def find_change(self, written_ids: Callable[[], set[int]]) -> tuple[str, Line | None] | None:
        """Why a replay would be wrong: the step changes a value that it reads. With the line; None if it is right.

        `written_ids` returns the ids of the arrays that kernels wrote into. A replay writes these too.
        """
        if arrays := self.table.changed_arrays():
            kernel_writes = written_ids()
            for array in arrays:
                if id(memory_owner(array)) not in kernel_writes:
                    name = self.arrays[id(array)]
                    return f"it changes {name} in place in Python, and a replay would not", self.find_line(name)
            self.table.exclude_arrays(arrays)
        for name, stream, state in self.streams:
            if not _are_equal(_get_state(stream), state):
                reason = (
                    f"it draws random numbers in Python, from {name}, and a replay would not; Dropout draws in kernels"
                )
                return reason, self.find_line(*name.split("."), "random")
        if self.iterator is not None:
            return f"it reads the iterator {self.iterator} in Python, and a replay would not", self.find_line(
                self.iterator
            )
        has_results = False
        for name, before, now in self.table.changes():
            before = before() if type(before) is weakref.ref else before
            if not isinstance(now, _ARRAYS) or isinstance(before, bool | int | float | str):
                return f"it changes {name} and reads it in Python, and a replay would not", self.find_line(name)
            self.replaced_values += [before] if isinstance(before, _ARRAYS) else []
            has_results = True
        if has_results:  # the step only stores its results, which a replay can do
            self.table.exclude_changed()
        return None

    def restore(self) -> None:
        """Give everything but iterators the value that it had."""
        self.table.restore()
        for _, stream, state in self.streams:
            _set_state(stream, state)

    def find_line(self, *names: str) -> Line | None:
        """Return the user's line that sets one of these names, or a line that reads one, or the first line."""
        candidates = [(step, Line(code.co_filename, line)) for code in self.codes for step, line in _instructions(code)]
        candidates = [(step, line) for step, line in candidates if step.argval in names]
        candidates.sort(key=lambda candidate: not candidate[0].opname.startswith("STORE"))
        if candidates:
            return candidates[0][1]
        return Line(self.codes[0].co_filename, self.codes[0].co_firstlineno) if self.codes else None


@contextmanager
def preserve_state(functions: Iterable[Any]) -> Iterator[None]:
    """Apply these Functions inside to see what they do. Random streams and counters get their old values afterwards.

    (Iterators do not: their position can't be read.)
    """
    guards = StateGuards(include_callbacks=True)
    for function in functions:
        code = function.python_code()
        guards.add(types.MethodType(inspect.unwrap(code.__func__), function))
    try:
        yield
    finally:
        guards.restore()


class CodeNames(NamedTuple):
    """The names in some code: globals and attributes that it reads, those that may be missing, imported modules."""

    loaded: frozenset[str]
    missing: frozenset[str]
    imported: frozenset[str]


@functools.lru_cache(maxsize=4096)
def code_names(code: types.CodeType) -> CodeNames:
    """Return the names in code and in the functions within it. A string may be the name of an attribute, too."""
    loaded, missing, imported = set(), set(), set()
    for step, _ in _instructions(code):
        if step.opname.startswith(
            ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_F")
        ):
            loaded.add(step.argval)
        elif step.opname.startswith(("STORE_ATTR", "STORE_GLOBAL", "DELETE_ATTR")):
            missing.add(step.argval)
        elif step.opname == "IMPORT_NAME":
            imported.add(step.argval)
        elif step.opname == "LOAD_CONST" and isinstance(step.argval, str) and step.argval.isidentifier():
            loaded.add(step.argval)
            missing.add(step.argval)
    return CodeNames(frozenset(loaded), frozenset(missing), frozenset(imported))


def _instructions(code: types.CodeType) -> Iterator[tuple[dis.Instruction, int]]:
    """Yield the instructions of code and of the functions within it, with their lines."""
    line = code.co_firstlineno
    starts = {offset: number for offset, number in dis.findlinestarts(code) if number is not None}
    for instruction in dis.get_instructions(code):
        line = starts.get(instruction.offset, line)
        yield instruction, line
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _instructions(constant)


@functools.lru_cache(maxsize=1024)
def user_bases(kind: type) -> tuple[type, ...]:
    """Return the class and its bases that the user wrote, without the bases from caffelite and libraries."""
    bases = [
        base for base in kind.__mro__ if isinstance(base.__module__, str)
    ]  # some compiled types have no name as their module
    files = [getattr(sys.modules.get(base.__module__), "__file__", "") for base in bases]
    return tuple([base for base, file in zip(bases, files, strict=True) if _is_user_code(base.__module__, file)])


@functools.lru_cache(maxsize=1024)
def special_methods(kind: type) -> tuple[str, ...]:
    """Return the special methods of a class, such as `__add__`, except those that make an object.

    Python calls these without their name in the code.
    """
    methods = [name for name, value in vars(kind).items() if isinstance(value, types.FunctionType)]
    return tuple([name for name in methods if name[:2] == name[-2:] == "__" and name not in _CONSTRUCTORS])


def _is_user_code(module: str, file: str | None) -> bool:
    """Whether the user wrote this code, and it belongs neither to caffelite nor to a library."""
    if module.partition(".")[0] in ("caffelite", "builtins") or file is None:
        return False
    return "site-packages" not in file and not file.startswith(_LIBRARIES)


def _get_state(stream: Any) -> Any:
    """Return the state of a random stream, to compare and to set."""
    memory = _state_memory(stream)
    return _bit_generator(stream).state if memory is None else ctypes.string_at(*memory)


def _set_state(stream: Any, state: Any) -> None:
    memory = _state_memory(stream)
    if memory is None:
        _bit_generator(stream).state = state
    else:
        ctypes.memmove(memory[0], state, memory[1])


def _state_memory(stream: Any) -> tuple[int, int] | None:
    """Return the address and the size of a Mersenne Twister's state. Reading it in Python takes forty times as long."""
    if isinstance(stream, random.Random):  # the index and the words follow the head that every object has
        return id(stream) + object.__basicsize__, _random.Random.__basicsize__ - object.__basicsize__
    bits = _bit_generator(stream)
    return (bits.ctypes.state_address, 625 * 4) if type(bits) is np.random.MT19937 else None


def _bit_generator(stream: Any) -> Any:
    return getattr(stream, "_bit_generator", None) or getattr(stream, "bit_generator", stream)


def _are_equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_are_equal(a[key], b[key]) for key in a)
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else a == b
