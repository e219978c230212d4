"""How a Function is made: the arguments of its class, the arguments of this Function, and the call as code."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

_MISSING = object()


@functools.lru_cache(maxsize=1024)
def init_signature(kind: type) -> inspect.Signature:
    """Return the parameters that `kind(…)` takes."""
    init = kind.__init__  # type: ignore[misc]
    return inspect.Signature() if init is object.__init__ else inspect.signature(types.MethodType(init, kind))


def init_arguments(instance: Any, unstored: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Return the attributes named like `__init__`'s parameters, without `seed`; see `Function.arguments`.

    `unstored` has the arguments that no attribute holds; see `unstored_arguments`.
    """
    arguments = {}
    kind: Any = type(instance)
    for name, parameter in init_signature(kind).parameters.items():
        if name in unstored:
            arguments[name] = unstored[name]
        elif name != "seed":
            if not hasattr(instance, name):
                message = f"{kind.__name__}.__init__ takes {name}, and there is no such attribute"
                raise TypeError(f"{message}: {kind.__name__} needs `arguments()`")
            arguments[name] = _attribute_value(instance, parameter)
    return arguments


def unstored_arguments(instance: Any, arguments: tuple, options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that `__init__` got and put into no attribute of their names, if a file can hold them."""
    kind: Any = type(instance)
    signature = init_signature(kind)
    bound = signature.bind(*arguments, **options)
    bound.apply_defaults()
    return {
        name: value
        for name, value in bound.arguments.items()
        if name != "seed"
        and _is_storable(value)
        and not _are_same(_attribute_value(instance, signature.parameters[name]), value)
    }


def _attribute_value(instance: Any, parameter: inspect.Parameter) -> Any:
    """Return the attribute named like a parameter of `__init__`. For a flag it is whether it is something."""
    value = getattr(instance, parameter.name, _MISSING)
    is_flag = isinstance(parameter.default, bool) and value is not _MISSING
    return value is not None and value is not False if is_flag else value


def _are_same(a: Any, b: Any) -> bool:
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_are_same, a, b))
    return a is b or (type(a) is type(b) and isinstance(a, int | float | str) and a == b)


def _is_storable(value: Any) -> bool:
    """Return whether a value consists of numbers, texts and Functions."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        return all(map(_is_storable, value))
    is_function = hasattr(value, "arguments") and not isinstance(value, type)
    return is_function or value is None or isinstance(value, bool | int | float | str | np.generic)


def as_code(instance: Any, *arguments: Any, **options: Any) -> str:
    """Return the call that makes an instance, as code, with these arguments and all options other than the default."""
    parts = [_to_code(value) for value in arguments]
    parts += [f"{name}={_to_code(x)}" for name, x in options.items() if _shorten(x) != _default(type(instance), name)]
    return f"{type(instance).__name__}({', '.join(parts)})"


def repr_with_arguments(function: Any) -> str:
    """Return the call that makes a Function, as code: a `__repr__` for a class with its arguments in attributes."""
    kind = next(base for base in type(function).__mro__ if "__repr__" in vars(base))  # a subclass may take others
    parameters = init_signature(kind).parameters.values()
    required = [_attribute_value(function, p) for p in parameters if p.default is p.empty]
    options = {p.name: _attribute_value(function, p) for p in parameters if p.default is not p.empty}
    return as_code(function, *required, **options)


def _default(kind: type, name: str) -> Any:
    """Return the default of an option, from the first class in order of inheritance that takes it."""
    parameters = [init_signature(base).parameters.get(name) for base in kind.__mro__]
    return next((parameter.default for parameter in parameters if parameter is not None), None)


def _shorten(value: Any) -> Any:
    """Return a value in short form: a tuple of equal numbers becomes one number."""
    return value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value


def _to_code(value: Any) -> str:
    """Return a value as code. A function or a class is written as its name."""
    return getattr(value, "__name__", None) or repr(_shorten(value))
