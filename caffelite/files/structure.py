"""The structure of a Function as data: the Functions in it, and the arguments that make them again.

A structure is a list of entries. Each entry comes after those that it refers to. The last one is the entire Function:

    [{"name": "Linear", "arguments": {"in_features": 2, "out_features": 3, "bias": true, "initializer": null}},
     {"name": "ReLU", "arguments": {}},
     {"name": "Model", "arguments": {"functions": [{"#": 0}, {"#": 1}, {"#": 0}], "dtype": "float32"}}]

{"#": 0} is the object that entry 0 made, so a shared Function stays shared. An entry has a `name` from a fixed list of
caffelite's names, or a `custom` name, whose meaning the reader of the file defines. An entry without arguments is a
function: an initializer. Nothing is imported by name.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Mapping
from types import FunctionType
from typing import Any

import numpy as np

from caffelite import functions
from caffelite._support.reprs import init_arguments, init_signature
from caffelite.core import initializers
from caffelite.core.function import Function

#: The classes and functions of caffelite's own names. Subpackages that import this one `register` theirs.
NAMES: dict[str, Any] = {
    **{name: x for name, x in vars(functions).items() if isinstance(x, type) and issubclass(x, Function)},
    **{name: getattr(initializers, name) for name in ("he_normal", "he_uniform", "xavier_normal", "xavier_uniform")},
    **{name: getattr(initializers, name) for name in ("normal", "uniform", "orthogonal", "zeros")},
}

#: Arguments that older files do not have, and the classes that take them. A file has them only if they are not None.
LATER_ARGUMENTS = {
    "initializer": {"Embedding", "RNN", "GRU", "LSTM", "MultiHeadAttention", "TransformerBlock"},
    "axis": {"GlobalAvgPool", "GlobalMaxPool"},
    "key_dim": {"MultiHeadAttention"},
    "background": {"TableModel"},
    "regions": {"TableModel"},
}

MAX_FUNCTIONS = 10_000  # a Function in two places counts twice
MAX_DEPTH = 50  # levels of Functions in Functions


def register(kind: type) -> type:
    """Let files name a class of caffelite."""
    NAMES[kind.__name__] = kind
    return kind


class UnwritableError(TypeError):
    """A structure that can't be written as data."""


def describe(root: Function) -> list[dict[str, Any]]:
    """Return the structure of a Function. Raise `UnwritableError` with the part that can't be written."""
    try:
        entries = _entries(root)
        _check_entries(entries)
    except (ValueError, RecursionError) as error:
        raise UnwritableError(str(error)) from None
    return entries


def _entries(root: Function) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    indices: dict[int, int | None] = {}  # indices in `entries`, by id; None: the entry is not complete yet

    def add(x: Any) -> int:
        if id(x) not in indices:
            indices[id(x)] = None
            entries.append(entry(x))
            indices[id(x)] = len(entries) - 1
        index = indices[id(x)]
        if index is None:
            raise UnwritableError(f"{type(x).__name__} is among its own arguments")
        return index

    def entry(x: Any) -> dict[str, Any]:
        kind = x if isinstance(x, FunctionType) else type(x)
        name = {"name" if kind.__module__.partition(".")[0] == "caffelite" else "custom": kind.__name__}
        if kind is x:
            return name
        try:
            arguments = x.arguments() if hasattr(x, "arguments") else init_arguments(x)
        except TypeError as error:
            raise UnwritableError(str(error)) from None
        values = {
            key: value(argument, f"{kind.__name__}'s {key}")
            for key, argument in arguments.items()
            if argument is not None or name.get("name") not in LATER_ARGUMENTS.get(key, ())
        }
        return {**name, "arguments": values}

    def value(x: Any, where: str) -> Any:
        if isinstance(x, np.generic):
            x = x.item()
        if x is None or isinstance(x, bool | int | str) or (isinstance(x, float) and math.isfinite(x)):
            return x
        if isinstance(x, np.dtype):
            return x.name
        if isinstance(x, list | tuple):
            return [value(item, where) for item in x]
        if isinstance(x, dict) and all(isinstance(key, str) for key in x) and x.keys() != {"#"}:
            return {key: value(item, where) for key, item in x.items()}
        if hasattr(x, "arguments") or isinstance(x, FunctionType | initializers.normal | initializers.uniform):
            return {"#": add(x)}
        raise UnwritableError(f"{where}, {type(x).__name__}, is not a value of JSON")

    add(root)
    return entries


def to_json(entries: Any) -> str:
    """Return a structure as JSON. Half a surrogate pair, which UTF-8 can't have, is escaped."""
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":"))
    return re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text)


def build(entries: Any, custom: Mapping[str, Any]) -> Any:
    """Make the object of a structure, that is, of its last entry. The structure may be from an unknown file.

    Raise ValueError with the reason if it is not a structure, or if a name is neither in `NAMES` nor in `custom`.
    Inside `meta_init()`, the parameters take no memory.
    """
    _check_entries(entries)
    objects: list[Any] = []

    def value(x: Any, sequence: type) -> Any:
        if isinstance(x, dict):
            return objects[x["#"]] if x.keys() == {"#"} else {key: value(item, sequence) for key, item in x.items()}
        return sequence([value(item, sequence) for item in x]) if isinstance(x, list) else x

    for entry in entries:
        is_builtin = "name" in entry
        name, kinds = (entry["name"], NAMES) if is_builtin else (entry["custom"], custom)
        if name not in kinds:
            hint = "caffelite does not have" if is_builtin else f"you have to give: load(…, custom={{{name!r}: …}})"
            raise ValueError(f"there is a {name} in it, which {hint}")
        kind = kinds[name]
        if ("arguments" in entry) != isinstance(kind, type):
            what = "a class, but its entry has no" if isinstance(kind, type) else "a function, but its entry has"
            raise ValueError(f"{name} is {what} arguments")
        if isinstance(kind, type):
            arguments = {key: value(x, tuple if is_builtin else list) for key, x in entry["arguments"].items()}
            if is_builtin and arguments.get("dtype", "float32") not in ("float32", "float64"):
                raise ValueError(f"{name} has no dtype {arguments['dtype']!r}")
            objects.append(_construct(kind, arguments, is_builtin))
        else:
            objects.append(kind)
    try:
        rebuilt = to_json(_entries(objects[-1]))
    except UnwritableError as error:
        raise ValueError(f"the Function that its structure makes has no structure: {error}") from None
    if rebuilt != to_json(entries):
        raise ValueError("the Function that its structure makes has another structure")
    return objects[-1]


def _construct(kind: type, arguments: dict[str, Any], is_builtin: bool) -> Any:
    # caffelite's own constructors may raise any exception for arguments that caffelite did not write.
    expected = (Exception,) if is_builtin else (TypeError, ValueError)
    try:
        bound = inspect.BoundArguments(init_signature(kind), arguments)
        return kind(*bound.args, **bound.kwargs)
    except expected as error:
        raise ValueError(f"{kind.__name__} can't be made as its structure says: {error}") from error


def _check_entries(entries: Any) -> None:
    """Raise ValueError unless these entries refer to earlier ones, are all needed, and not too many or too deep."""
    if not isinstance(entries, list) or not entries:
        raise ValueError("a structure is a list of entries")
    sizes: list[int] = []  # the number of Functions in each entry; one in two places counts twice
    depths: list[int] = []
    used = {len(entries) - 1}
    for i, entry in enumerate(entries):
        if not isinstance(entry, dict) or len({"name", "custom"} & entry.keys()) != 1:
            raise ValueError(f"entry {i} of the structure has no name")
        if not entry.keys() <= {"name", "custom", "arguments"} or not isinstance(entry.get("arguments", {}), dict):
            raise ValueError(f"entry {i} of the structure has other keys than name and arguments")
        if not isinstance(entry.get("name", entry.get("custom")), str):
            raise ValueError(f"the name of entry {i} of the structure is not a text")
        references = list(_references(entry.get("arguments", {})))
        if not all(type(j) is int and 0 <= j < i for j in references):
            raise ValueError(f"entry {i} of the structure refers to an entry that does not come before it")
        sizes.append(1 + sum(sizes[j] for j in references))
        depths.append(1 + max([depths[j] for j in references], default=0))
        used.update(references)
        if sizes[i] > MAX_FUNCTIONS or depths[i] > MAX_DEPTH:
            limits = f"{MAX_FUNCTIONS:,} Functions, or Functions in Functions more than {MAX_DEPTH} deep"
            raise ValueError(f"more than {limits}")
    if len(used) < len(entries):
        raise ValueError("the structure has entries that no other entry refers to")


def _references(x: Any) -> Any:
    """Yield the numbers of the entries that a value refers to."""
    if isinstance(x, dict):
        if x.keys() == {"#"}:
            yield x["#"]
            return
        x = x.values()
    if not isinstance(x, str) and hasattr(x, "__iter__"):
        for item in x:
            yield from _references(item)
