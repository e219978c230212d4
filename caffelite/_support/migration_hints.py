"""Errors for names and arguments of Keras and PyTorch: they say what caffelite has instead. `hints` has the tables."""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

from caffelite._support.tracebacks import hide_inner_frames

Kind = TypeVar("Kind", bound=type)

HINTED_METHODS = ("__init__", "fit", "evaluate")  # not `predict`: for one row, it would take 5 % longer


# ---- attributes ------------------------------------------------------------------------------------------------------


class ForeignAttribute:
    """An attribute that other frameworks have. Reading it raises AttributeError with what caffelite has instead.

    An instance or a subclass may have its own attribute of this name. (A `__getattr__` would make all other attributes
    slower.)
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.__doc__ = "A name of other frameworks: an AttributeError says what caffelite has instead."  # for `help`

    def __get__(self, instance: Any, owner: type) -> NoReturn:
        raise attribute_error(owner, self.name)


class ForeignSetting(ForeignAttribute):
    """An attribute that would change the training in Keras. Setting it raises AttributeError, too.

    Only a subclass may have its own attribute of this name.
    """

    def __set__(self, instance: Any, value: Any) -> None:
        raise attribute_error(type(instance), self.name)


class DefaultProperty:
    """A property that an instance or a subclass may replace by an attribute of its own."""

    def __init__(self, getter: Callable[[Any], Any]) -> None:
        self.getter, self.__doc__ = getter, getter.__doc__

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else self.getter(instance)


def foreign_attributes(names: str) -> Callable[[Kind], Kind]:
    """Decorate a class that does not have these attributes of other frameworks. The names have blanks between them."""

    def declare(kind: Kind) -> Kind:
        for name in names.split():
            setattr(kind, name, ForeignAttribute(name))
        kind.__dir__ = list_own_names  # type: ignore[assignment]
        return kind

    return declare


def list_own_names(instance: Any) -> list[str]:
    """Return the attributes of an object, for `dir`. Names of other frameworks are left out."""
    names = object.__dir__(instance)
    return [name for name in names if not isinstance(inspect.getattr_static(instance, name, 0), ForeignAttribute)]


def attribute_error(kind: type, name: str) -> AttributeError:
    """Return the error for a missing attribute of this class."""
    from caffelite._support import hints  # tables that only errors need

    return hints.attribute_error(f"{kind.__name__!r} object", name, hints.attribute_hint(name))


# ---- names of modules ------------------------------------------------------------------------------------------------


def add_name_hints(*modules: types.ModuleType) -> None:
    """Let errors about missing names of these modules, which users find under `cl`, give hints."""
    for module in modules:
        module.__getattr__ = functools.partial(_raise_name_error, module)  # type: ignore[method-assign]


def _raise_name_error(module: types.ModuleType, name: str) -> NoReturn:
    from caffelite._support import hints

    path = module.__name__.rpartition(".")[2]
    hint = "" if name.startswith("__") else hints.name_hint(name, module.__all__, f"cl.{path}")
    raise hints.missing_name_error(f"caffelite.{path}", name, hint)


# ---- arguments -------------------------------------------------------------------------------------------------------


def check_call(kind: Any) -> None:
    """Raise TypeError if the `call` of a model class has an option `training`, which would keep its default."""
    training = inspect.signature(kind.call).parameters.get("training")
    if training is not None and training.default is not training.empty:
        raise TypeError(
            f"{kind.__name__}.call takes training, which caffelite does not give: leave it out and ask "
            "cl.is_training(), which is False in predict and evaluate"
        )


def add_argument_hints(*targets: types.ModuleType | type, methods: Iterable[str] = HINTED_METHODS) -> None:
    """Let errors about unknown or missing arguments of these classes, or of all in these modules, give hints."""
    for target in targets:
        kinds = [target] if isinstance(target, type) else vars(target).values()
        for kind in kinds:
            if isinstance(kind, type) and (kind is target or kind.__module__.startswith(target.__name__)):
                for name in vars(kind).keys() & set(methods):
                    setattr(kind, name, hint_arguments(vars(kind)[name]))


def hint_arguments(method: Any) -> Any:
    """Decorate a function or a method, whose errors about unknown or missing arguments then give hints."""

    @functools.wraps(method)
    def wrapper(*arguments: Any, **options: Any) -> Any:
        try:
            return method(*arguments, **options)
        except Exception as error:
            if getattr(error.__traceback__, "tb_next", None) is not None:  # it is from inside
                hide_inner_frames(error)
                raise
            message = message_with_hint(error, method)
            for cls in type(arguments[0]).__mro__ if arguments else ():
                if getattr(cls, method.__name__, None) is wrapper:
                    message = message.replace(method.__qualname__, f"{cls.__name__}.{method.__name__}")
                    break
            if message == str(error):
                raise
            raise TypeError(message) from None

    return wrapper


def message_with_hint(error: Exception, function: Callable[..., Any]) -> str:
    """Return the message of an error about the arguments of a function, with a hint if there is one."""
    from caffelite._support import hints

    message = str(error)
    if unknown := re.match(r".*got an unexpected keyword argument '(\w+)'", message):
        hint = hints.argument_hint(unknown[1], inspect.signature(function).parameters)
        return unknown[0] + hint if hint else message  # Python 3.13 adds a guess of its own, which the hint replaces
    if "positional argument" in message and "given" in message:
        parameters = inspect.signature(function).parameters
        names = [f"{name}=…" for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]
        return message + (f"; give {', '.join(names[:3])} by name" if names else hints.required_hint(parameters))
    if re.search(r"missing \d+ required", message):
        return message + hints.required_hint(re.findall(r"'(\w+)'", message))
    return message
