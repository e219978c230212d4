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
def signature_of(kind: type) -> inspect.Signature:
    """The parameters that `kind(…)` takes."""
    init = kind.__init__  # type: ignore[misc]
    return inspect.Signature() if init is object.__init__ else inspect.signature(types.MethodType(init, kind))


def attributes_of(instance: Any, given: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """The attributes named like `__init__`'s parameters, without `seed`; see `Function.arguments`.

    `given` has the arguments that no attribute holds; see `given_to`.
    """
    found = {}
    kind: Any = type(instance)
    for name, taken in signature_of(kind).parameters.items():
        if name == "seed":
            continue
        if name in given:
            found[name] = given[name]
            continue
        if not hasattr(instance, name):
            raise TypeError(
                f"{kind.__name__}.__init__ takes {name}, and there is no such attribute: "
                f"{kind.__name__} needs `arguments()`"
            )
        found[name] = _held(instance, taken)
    return found


def given_to(instance: Any, arguments: tuple, options: dict[str, Any]) -> dict[str, Any]:
    """The arguments that `__init__` got and put into no attribute of their names, as far as a file can hold them."""
    kind: Any = type(instance)
    signature = signature_of(kind)
    bound = signature.bind(*arguments, **options)
    bound.apply_defaults()
    return {
        name: value
        for name, value in bound.arguments.items()
        if name != "seed" and _is_plain(value) and not _are_same(_held(instance, signature.parameters[name]), value)
    }


def _held(instance: Any, parameter: inspect.Parameter) -> Any:
    """The attribute named like a parameter of `__init__`. For a flag it is whether the attribute is something."""
    value = getattr(instance, parameter.name, _MISSING)
    is_flag = isinstance(parameter.default, bool) and value is not _MISSING
    return value is not None and value is not False if is_flag else value


def _are_same(a: Any, b: Any) -> bool:
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_are_same, a, b))
    return a is b or (type(a) is type(b) and isinstance(a, int | float | str) and a == b)


def _is_plain(value: Any) -> bool:
    """Whether a value consists of numbers, texts and Functions."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    is_function = hasattr(value, "arguments") and not isinstance(value, type)
    return is_function or value is None or isinstance(value, bool | int | float | str | np.generic)


def as_code(instance: Any, *arguments: Any, **options: Any) -> str:
    """The call that makes an instance, as code, with these arguments and all options that are not the default."""
    written = [_text(value) for value in arguments]
    written += [f"{name}={_text(x)}" for name, x in options.items() if _short(x) != _default(type(instance), name)]
    return f"{type(instance).__name__}({', '.join(written)})"


def _default(kind: type, name: str) -> Any:
    """The default of an option, from the first class in order of inheritance that takes it."""
    taken = [signature_of(base).parameters.get(name) for base in kind.__mro__]
    return next((parameter.default for parameter in taken if parameter is not None), None)


def _short(value: Any) -> Any:
    """A value in short form: a tuple of equal numbers becomes one number."""
    return value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value


def _text(value: Any) -> str:
    """A value as code. A function or a class is written as its name."""
    return getattr(value, "__name__", None) or repr(_short(value))
