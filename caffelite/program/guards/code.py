"""Facts about code that guards need: the names that it reads, and whether the user wrote it."""

from __future__ import annotations

import dis
import functools
import os
import re
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from caffelite._support.warnings import PACKAGE

_FOLDERS = {os.path.dirname(np.__file__), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))}
_LIBRARIES = (PACKAGE, *(os.path.join(folder, "") for folder in _FOLDERS))
_NOT_OF_USERS = {"caffelite", "numpy", "scipy", "torch"}
_user_packages: set[str] = set()  # installed packages that use caffelite
_KEYWORD_CALLS = {"CALL_KW", "CALL_FUNCTION_KW"}  # they follow a constant with the names of keyword arguments
_CONSTRUCTORS = {"__init__", "__new__", "__post_init__", "__init_subclass__", "__prepare__", "__set_name__", "__del__"}


ITEM_ASSIGNMENT = "[]="  # stands for it among the names in code


class CodeNames(NamedTuple):
    """The names in some code: globals that it reads, these and attributes, names that may be missing, and modules."""

    global_names: frozenset[str]
    loaded: frozenset[str]
    missing: frozenset[str]
    imported: frozenset[str]


@functools.lru_cache(maxsize=4096)
def code_names(code: types.CodeType) -> CodeNames:
    """Return the names in code and in the functions within it. A string may be the name of an attribute, too."""
    global_names, loaded, missing, imported = set(), set(), set(), set()
    steps = [step for step, _ in instructions(code)]
    for step, next_step in zip(steps, [*steps[1:], None], strict=True):
        if step.opname.startswith(("LOAD_GLOBAL", "LOAD_NAME")):
            global_names.add(step.argval)
        elif step.opname.startswith(("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_F")):
            loaded.add(step.argval)
        elif step.opname.startswith(("STORE_ATTR", "STORE_GLOBAL", "DELETE_ATTR")):
            missing.add(step.argval)
        elif step.opname == "IMPORT_NAME":
            imported.add(step.argval)
        elif step.opname.startswith(("STORE_SUBSCR", "STORE_SLICE")):
            loaded.add(ITEM_ASSIGNMENT)
        elif step.opname == "LOAD_CONST" and getattr(next_step, "opname", "") not in _KEYWORD_CALLS:
            texts = step.argval if isinstance(step.argval, tuple) else (step.argval,)  # `match` has names in a tuple
            names = {name for text in texts if isinstance(text, str) for name in text.split(".") if name.isidentifier()}
            global_names |= names
            missing |= names
    return CodeNames(frozenset(global_names), frozenset(loaded | global_names), frozenset(missing), frozenset(imported))


def instructions(code: types.CodeType) -> Iterator[tuple[dis.Instruction, int]]:
    """Yield the instructions of code and of the functions within it, with their lines."""
    line = code.co_firstlineno
    starts = {offset: number for offset, number in dis.findlinestarts(code) if number is not None}
    for instruction in dis.get_instructions(code):
        line = starts.get(instruction.offset, line)
        yield instruction, line
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from instructions(constant)


@functools.lru_cache(maxsize=1024)
def user_bases(kind: type) -> tuple[type, ...]:
    """Return the class and its bases that the user wrote, without the bases from caffelite and libraries."""
    # (Some compiled types have no name as their module.)
    bases = [base for base in kind.__mro__ if isinstance(base.__module__, str)]
    return tuple([base for base in bases if _is_user_class(base)])


def _is_user_class(kind: type) -> bool:
    """Return whether the user wrote a class. One that `type(…)` made has the module `abc`, and methods of the user."""
    if is_user_code(kind.__module__, getattr(sys.modules.get(kind.__module__), "__file__", "")):
        return True
    methods = [value for value in vars(kind).values() if isinstance(value, types.FunctionType)]
    return kind.__module__ == "abc" and any(is_user_code(f.__module__ or "", f.__code__.co_filename) for f in methods)


@functools.lru_cache(maxsize=1024)
def special_methods(kind: type) -> tuple[str, ...]:
    """Return the special methods of a class, such as `__add__`, except those that make an object.

    Python calls these without their name in the code.
    """
    methods = [name for name, value in vars(kind).items() if isinstance(value, types.FunctionType)]
    return tuple([name for name in methods if name[:2] == name[-2:] == "__" and name not in _CONSTRUCTORS])


def is_user_code(module: str, file: str | None) -> bool:
    """Return whether the user wrote this code, and it belongs neither to caffelite nor to a library."""
    package = module.partition(".")[0]
    if package == "caffelite" or package in sys.builtin_module_names or file is None:
        return False
    is_installed = "site-packages" in file or "dist-packages" in file or file.startswith(_installed_path(package))
    if package in _user_packages and is_installed:
        return True
    return not is_installed and not file.startswith((*_LIBRARIES, "<frozen "))


@functools.lru_cache(maxsize=1024)
def _installed_path(package: str) -> str | tuple[()]:
    """Return where all files of a package lie that `pip install --target` put into a folder; () for other packages."""
    file = Path(getattr(sys.modules.get(package), "__file__", None) or "")
    is_folder = file.stem == "__init__"
    path = file.parent if is_folder else file
    for record in path.parent.glob("*.dist-info/RECORD"):  # a line for each file, which begins with its path
        if re.search(rf"^{re.escape(path.name)}[/,]", record.read_text(encoding="utf-8"), re.MULTILINE):
            return str(path) + os.sep * is_folder
    return ()


def add_user_package(module: str) -> None:
    """From now on, take an installed package for a user's: it has a model, a loss or the like."""
    package = module.partition(".")[0]
    if package not in _user_packages and package not in sys.stdlib_module_names and package not in _NOT_OF_USERS:
        _user_packages.add(package)
        user_bases.cache_clear()
