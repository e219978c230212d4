"""How a Function is made: the arguments of its class, the arguments of this Function, and the call as code."""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any


@functools.lru_cache(maxsize=1024)
def signature_of(kind: type) -> inspect.Signature:
    """The parameters that `kind(…)` takes."""
    init = kind.__init__  # type: ignore[misc]
    return inspect.Signature() if init is object.__init__ else inspect.signature(types.MethodType(init, kind))


def attributes_of(instance: Any) -> dict[str, Any]:
    """The attributes named like `__init__`'s parameters, without `seed`; see `Function.arguments`."""
    found = {}
    kind: Any = type(instance)
    for name, taken in signature_of(kind).parameters.items():
        if name == "seed":
            continue
        if not hasattr(instance, name):
            raise TypeError(
                f"{kind.__name__}.__init__ takes {name}, and there is no such attribute: "
                f"{kind.__name__} needs `arguments()`"
            )
        value = getattr(instance, name)
        found[name] = value is not None and value is not False if isinstance(taken.default, bool) else value
    return found


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
