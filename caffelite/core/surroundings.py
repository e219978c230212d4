"""The values that a user's Python reads while a step is recorded: attributes, globals, closures, random streams.

A replay runs no Python, so it repeats the decisions that were made when the step was recorded. `Surroundings` finds
out whether that is right. It collects the names in the code that runs (`call` of a model, a loss that is a function,
…). Then it looks at the values of these names: module-level variables, variables of enclosing functions, attributes of
objects and classes, elements of lists, dicts and sets. If a value has changed by the end of the step, the step itself
changes it, and a replay would not (`changed`). If a value changes later, the step has to be recorded again (`watch`).
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
from caffelite.core.arrays import base_of
from caffelite.core.autograd import Node

_LIBRARIES = (
    PACKAGE,
    *{os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "purelib", "platlib")},
)
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, property, staticmethod, classmethod)
_CODE_OR_NAMES = (*_CODE, type, types.ModuleType)
_BOUND = (types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType)
_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.ndarray, np.generic, kernels.Recorded, Node)
_ARRAYS = (np.ndarray, Node)
_STREAMS = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
_MOST = 1000  # look at no more objects than this
_SMALL = 64  # elements; compare the values of arrays that are not larger
_MAKING = {"__init__", "__new__", "__post_init__", "__init_subclass__", "__prepare__", "__set_name__", "__del__"}


class Surroundings:
    """The values that some code of the user reads, as they were when the code was added."""

    def __init__(self, also_replayed: bool = False) -> None:
        self.also_replayed = also_replayed  # whether to look at Functions that a replay calls again, too
        self.codes: list[types.CodeType] = []
        self.names: set[str] = set()  # the names that the code reads …
        self.missing: set[str] = set()  # … and sets, or has as strings, so they may not exist yet
        self.seen: dict[int, Any] = {}  # by id
        self.watched: set[tuple[int, str]] = set()  # the ids of owners, and names
        self.streams: list[tuple[str, Any, Any]] = []  # random streams: name, stream, state
        self.iterator: str | None = None  # an iterator's name: its position can't be read
        self.replaced: list[Any] = []  # Tensors and arrays that the step has replaced by its own
        self.arrays: dict[int, str] = {}  # the names of small arrays, by id
        self.watch = kernels.Surroundings()
        self.note_stream("random", random._inst)
        self.note_stream("numpy.random", np.random.mtrand._rand)

    def add(self, decider: Any) -> None:
        """Watch what this function, method, partial or object with a `__call__` reads."""
        if (code := getattr(decider, "__code__", None)) is not None:  # a method has the code of its function
            self.note_names(code)
        names = -1
        while names < len(self.names):  # code that is found last may have names that lead to more
            names = len(self.names)
            self.seen.clear()
            self.visit(decider, "the function")

    # ---- finding ------------------------------------------------------------------------------------------------

    def visit(self, value: Any, name: str) -> None:
        """Look at a value with this name, and at everything that the names in the code reach from it."""
        if isinstance(value, np.ndarray) and value.size <= _SMALL and self.is_new(value, ""):
            self.arrays[id(value)] = name
            self.watch.add_array(value)
        if isinstance(value, _PLAIN) or id(value) in self.seen or len(self.seen) >= _MOST:
            return
        self.seen[id(value)] = value
        if isinstance(value, functools.partial):
            for part in (value.func, *value.args, *value.keywords.values()):
                self.visit(part, name)
        elif isinstance(value, _BOUND):  # the __self__ of a built-in function is its module
            self.visit(value.__self__, name)
            self.visit(getattr(value, "__func__", None), name)
        elif isinstance(value, types.FunctionType):
            self.visit_function(value)
        elif isinstance(value, property | staticmethod | classmethod):
            self.visit(getattr(value, "__func__", None) or getattr(value, "fget", None), name)
        elif isinstance(value, type):
            self.visit_class(value)
        elif isinstance(value, types.ModuleType):
            if _is_of_user(value.__name__, getattr(value, "__file__", None)):
                self.visit_names(None, vars(value), ())
        elif isinstance(value, _STREAMS):
            self.note_stream(name, value)
        elif isinstance(value, collections.UserDict | collections.UserList):
            self.visit(value.data, name)
        elif isinstance(value, collections.ChainMap):
            self.visit(value.maps, name)
        elif isinstance(value, _CONTAINERS):
            if self.is_new(value, ""):
                self.watch.add_contents(value, name)
            for item in value.values() if isinstance(value, dict) else value:
                self.visit(item, name)
            if type(value) not in _CONTAINERS:  # a user's subclass may have attributes
                self.visit_object(value)
        elif hasattr(type(value), "__next__"):
            self.iterator = name
        elif not isinstance(value, _CODE):
            self.visit_object(value)

    def note_names(self, code: types.CodeType) -> None:
        if code not in self.codes:
            self.codes.append(code)
            self.names |= names_in(code).loaded
            self.missing |= names_in(code).missing

    def visit_function(self, function: types.FunctionType) -> None:
        code = function.__code__
        if not _is_of_user(function.__module__ or "", code.co_filename):
            self.visit(vars(function).get("__wrapped__"), "the function")  # a library's decorator around the user's
            return
        self.note_names(code)
        self.visit_names(None, function.__globals__, ())
        self.visit_attributes(function)
        for module in names_in(code).imported:
            if self.is_new(sys.modules, module):
                self.watch.add_item(None, sys.modules, module)
            self.visit(sys.modules.get(module), module)
        for i, name in enumerate(code.co_freevars):
            try:
                content = function.__closure__[i].cell_contents  # type: ignore[index]
            except ValueError:  # the variable has no value yet
                continue
            if self.is_new(function.__closure__[i], name):  # type: ignore[index]
                self.watch.add_cell(function, i, name)
            self.visit(content, name)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.visit(default, "a default")

    def is_new(self, owner: Any, name: str) -> bool:
        """Whether this name of this owner is not watched yet. From now on it is."""
        if (id(owner), name) in self.watched:
            return False
        self.watched.add((id(owner), name))
        return True

    def visit_names(self, owner: Any, values: dict[str, Any], not_recorded: Iterable[str]) -> None:
        """Look at the globals, or at the attributes of the object `owner`, whose names are in the code."""
        for name in self.names & values.keys():
            value = values[name]
            if name in not_recorded:
                continue
            if not isinstance(value, _CODE_OR_NAMES) and self.is_new(values, name):
                self.watch.add_item(owner, values, name)
            self.visit(value, name)

    def visit_class(self, kind: type) -> None:
        """Look at the attributes and methods of a user's class whose names are in the code."""
        for base in bases_of_user(kind):
            for name in self.names & vars(base).keys():
                value = vars(base)[name]
                is_descriptor = hasattr(type(value), "__get__")
                if not is_descriptor and not isinstance(value, type) and self.is_new(kind, name):
                    self.watch.add_attribute(kind, name)
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
        if hasattr(kind, "runs_in_python") and value.runs_in_python and not self.also_replayed:  # a Function
            return
        self.visit_attributes(value, getattr(kind, "not_recorded", ()))
        for base in bases_of_user(kind):
            for name in self.names & vars(base).keys():
                if isinstance(vars(base)[name], types.MemberDescriptorType):  # one of the __slots__
                    if self.is_new(value, name):
                        self.watch.add_attribute(value, name)
                    self.visit(getattr(value, name, None), name)
        self.visit_class(kind)

    def visit_attributes(self, owner: Any, not_recorded: Iterable[str] = ()) -> None:
        """Look at the attributes of an object or a function. Watch also for attributes that are set later."""
        own = getattr(owner, "__dict__", None)
        kind: type = type(owner)
        if isinstance(own, dict):
            if isinstance(owner, dict):
                owner = None  # otherwise the watch takes the dict's content for its attributes
            self.visit_names(owner, own, not_recorded)
            of_class = [vars(base).keys() for base in bases_of_user(kind)]  # a later attribute hides these
            for name in self.names & self.missing.union(*of_class) - own.keys():
                if self.is_new(own, name):
                    self.watch.add_item(owner, own, name)

    # ---- random streams -----------------------------------------------------------------------------------------

    def note_stream(self, name: str, stream: Any) -> None:
        if not any(stream is noted for _, noted, _ in self.streams):
            self.streams.append((name, stream, _state_of(stream)))

    # ---- at the end of the step ---------------------------------------------------------------------------------

    def changed(self, written: Callable[[], set[int]]) -> tuple[str, Line | None] | None:
        """Why a replay would be wrong: the step changes a value that it reads. With the line; None if it is right.

        `written` returns the ids of the arrays that kernels wrote into. A replay writes these too.
        """
        if arrays := self.watch.changed_arrays():
            of_kernels = written()
            for array in arrays:
                if id(base_of(array)) not in of_kernels:
                    name = self.arrays[id(array)]
                    return f"it changes {name} in place in Python, and a replay would not", self.line_of(name)
            self.watch.leave_out_arrays(arrays)
        for name, stream, state in self.streams:
            if not _are_equal(_state_of(stream), state):
                reason = (
                    f"it draws random numbers in Python, from {name}, and a replay would not; Dropout draws in kernels"
                )
                return reason, self.line_of(*name.split("."), "random")
        if self.iterator is not None:
            return f"it reads the iterator {self.iterator} in Python, and a replay would not", self.line_of(
                self.iterator
            )
        results = False
        for name, before, now in self.watch.changes():
            before = before() if type(before) is weakref.ref else before
            if not isinstance(now, _ARRAYS) or isinstance(before, bool | int | float | str):
                return f"it changes {name} and reads it in Python, and a replay would not", self.line_of(name)
            self.replaced += [before] if isinstance(before, _ARRAYS) else []
            results = True
        if results:  # the step only stores its results, which a replay can do
            self.watch.leave_out_changed()
        return None

    def restore(self) -> None:
        """Give everything but iterators the value that it had."""
        self.watch.restore()
        for _, stream, state in self.streams:
            _set_state(stream, state)

    def line_of(self, *names: str) -> Line | None:
        """The user's line that sets one of these names, or a line that reads one, or the first line."""
        places = [(step, Line(code.co_filename, line)) for code in self.codes for step, line in _lines(code)]
        places = [(step, line) for step, line in places if step.argval in names]
        places.sort(key=lambda place: not place[0].opname.startswith("STORE"))
        if places:
            return places[0][1]
        return Line(self.codes[0].co_filename, self.codes[0].co_firstlineno) if self.codes else None


@contextmanager
def undisturbed(functions: Iterable[Any]) -> Iterator[None]:
    """Apply these Functions inside to see what they do. Random streams and counters get their old values afterwards.

    (Iterators do not: their position can't be read.)
    """
    surroundings = Surroundings(also_replayed=True)
    for function in functions:
        decider = function.decider()
        surroundings.add(types.MethodType(inspect.unwrap(decider.__func__), function))
    try:
        yield
    finally:
        surroundings.restore()


class Names(NamedTuple):
    """The names in some code: globals and attributes that it reads, those that may be missing, imported modules."""

    loaded: frozenset[str]
    missing: frozenset[str]
    imported: frozenset[str]


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> Names:
    """The names in code and in the functions within it. A string may be the name of an attribute, too."""
    loaded, missing, imported = set(), set(), set()
    for step, _ in _lines(code):
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
    return Names(frozenset(loaded), frozenset(missing), frozenset(imported))


def _lines(code: types.CodeType) -> Iterator[tuple[dis.Instruction, int]]:
    """The instructions of code and of the functions within it, with their lines."""
    line = code.co_firstlineno
    starts = {offset: number for offset, number in dis.findlinestarts(code) if number is not None}
    for instruction in dis.get_instructions(code):
        line = starts.get(instruction.offset, line)
        yield instruction, line
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _lines(constant)


@functools.lru_cache(maxsize=1024)
def bases_of_user(kind: type) -> tuple[type, ...]:
    """The class and its bases that the user wrote, without the bases from caffelite and libraries."""
    bases = [
        base for base in kind.__mro__ if isinstance(base.__module__, str)
    ]  # some compiled types have no name as their module
    files = [getattr(sys.modules.get(base.__module__), "__file__", "") for base in bases]
    return tuple([base for base, file in zip(bases, files, strict=True) if _is_of_user(base.__module__, file)])


@functools.lru_cache(maxsize=1024)
def special_methods(kind: type) -> tuple[str, ...]:
    """The special methods of a class, such as `__add__`, except those that make an object.

    Python calls these without their name in the code.
    """
    methods = [name for name, value in vars(kind).items() if isinstance(value, types.FunctionType)]
    return tuple([name for name in methods if name[:2] == name[-2:] == "__" and name not in _MAKING])


def _is_of_user(module: str, file: str | None) -> bool:
    """Whether the user wrote this code, and it belongs neither to caffelite nor to a library."""
    if module.partition(".")[0] in ("caffelite", "builtins") or file is None:
        return False
    return "site-packages" not in file and not file.startswith(_LIBRARIES)


def _state_of(stream: Any) -> Any:
    """The state of a random stream, to compare and to set."""
    place = _memory_of(stream)
    return _bits_of(stream).state if place is None else ctypes.string_at(*place)


def _set_state(stream: Any, state: Any) -> None:
    place = _memory_of(stream)
    if place is None:
        _bits_of(stream).state = state
    else:
        ctypes.memmove(place[0], state, place[1])


def _memory_of(stream: Any) -> tuple[int, int] | None:
    """The address and the size of a Mersenne Twister's state. Reading it in Python takes forty times as long."""
    if isinstance(stream, random.Random):  # the index and the words follow the head that every object has
        return id(stream) + object.__basicsize__, _random.Random.__basicsize__ - object.__basicsize__
    bits = _bits_of(stream)
    return (bits.ctypes.state_address, 625 * 4) if type(bits) is np.random.MT19937 else None


def _bits_of(stream: Any) -> Any:
    return getattr(stream, "_bit_generator", None) or getattr(stream, "bit_generator", stream)


def _are_equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_are_equal(a[key], b[key]) for key in a)
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else a == b
