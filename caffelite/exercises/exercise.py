"""The class of an exercise, and the tools that find a mistake and describe it."""

from __future__ import annotations

import inspect
import re
import sysconfig
import textwrap
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from caffelite.core.function import Function
from caffelite.core.gradcheck import check_gradients
from caffelite.core.tensor import Tensor

#: Folders with code that is not part of an answer: caffelite, Python's library and installed packages.
LIBRARIES = (str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "<frozen")
ERRORS = (Exception, SystemExit)  # of an answer; sys.exit() would end the program that judges it


class Wrong(Exception):
    """An answer is wrong. The message says why."""


class Verdict:
    """The result of `check`. It is true if the answer is right, and its text says why not."""

    def __init__(self, name: str, message: str, passed: bool) -> None:
        self.name, self.message, self.passed = name, message, passed

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        text = textwrap.fill(f"{self.name}: {'right' if self.passed else 'not yet'}. {self.message}".rstrip(), 88)
        return text if self.passed else f"{text}\nA hint: cl.exercises.hint({self.name!r})"


class Exercise:
    """A task, its hints, and the function that judges an answer. `takeaway` is the message after a right answer.

    `difficulty` is "easy", "medium" or "hard". `minutes` is how long a student takes who has read the lesson.
    """

    def __init__(
        self, name: str, check: Callable[[Any], Any], hints: Sequence[str], takeaway: str, difficulty: str, minutes: int
    ) -> None:
        self.name, self.hints, self.takeaway, self._check = name, hints, takeaway, check
        self.difficulty, self.minutes = difficulty, minutes
        self.task = inspect.cleandoc(check.__doc__ or "")
        self.title = " ".join(self.task.partition("\n\n")[0].split()).removeprefix("Write ").replace("`", "")
        match = re.search(r"`(?:class )?(\w+)", self.task)
        self.answer = match[1] if match else name  # the name of the function, class or dict that the task asks for
        self.effort = f"{difficulty}, {minutes} minutes"

    def judge(self, answer: Any) -> Verdict:
        try:
            message = self._check(answer)
        except Wrong as wrong:
            return Verdict(self.name, str(wrong), False)
        except ERRORS as error:
            if not locate_error(error):
                raise
            return Verdict(self.name, f"{self.answer} {describe_error(error)}.", False)
        return Verdict(self.name, message or self.takeaway, True)

    def __repr__(self) -> str:
        return f"<exercise {self.name}: {self.title}>"


def exercise(
    difficulty: str, minutes: int, *hints: str, takeaway: str = ""
) -> Callable[[Callable[[Any], Any]], Exercise]:
    """Make an exercise of a function `check(answer)`, which raises Wrong. Its docstring is the task."""

    def decorate(check: Callable[[Any], Any]) -> Exercise:
        return Exercise(check.__name__, check, hints, takeaway, difficulty, minutes)

    return decorate


def describe(value: Any) -> str:
    """Return a value in a few words."""
    if isinstance(value, np.ndarray) and value.size > 6:
        return f"an array of shape {value.shape}"
    return " ".join(repr(value).split())


def locate_error(error: BaseException) -> str:
    """Return the last line of the answer that an error passed, in words. Empty if the error passed none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(LIBRARIES) and "site-packages" not in frame.filename:
            return f", in line {frame.lineno} of {frame.name}" if frame.line else f", in {frame.name}"
    return ""


def describe_error(error: BaseException) -> str:
    """Which error was raised, and where in the answer. NumPy's errors of shapes get advice."""
    message = str(error).rstrip(" .")
    if sizes := re.search(r"gufunc signature.*\(size (\d+) is different from (\d+)\)", message):
        message = (
            f"a matrix with {sizes[2]} columns times one with {sizes[1]} rows. Either a .T is missing, or the two are "
            "swapped, or they are stacks, whose axes .T reverses: np.swapaxes(a, -1, -2)"
        )
    elif re.search(r"shapes \((\d+),\d+\) \(\1,\)", message):
        message += ". If that is a sum or a max along axis=1, it has lost this axis; keepdims=True keeps it"
    elif "truth value of an array" in message:
        message = (
            "`if`, `and`, `or` and `max` need one number, but this is an array. maximum and where work on all of it"
        )
    elif re.search(r"bitwise_xor|for \^:", message):
        message = "in Python, the power is **, not ^"
    return f"raised {type(error).__name__}{locate_error(error)}: {message}"


def call_answer(what: str, function: Any, *arguments: Any) -> Any:
    """Call a part of an answer. Raise Wrong if it cannot be called, raises an error, or returns None.

    The answer gets copies of arrays. So the judge's own keep their values if the answer writes into them.
    """
    if not callable(function):
        raise Wrong(f"{what.partition('(')[0]} has to be a function or a class, and is {describe(function)}.")
    try:
        result = function(*copy_arrays(arguments))
    except Wrong:
        raise
    except ERRORS as error:
        called_with = f" It was called with ({', '.join(map(describe, arguments))})." if arguments else ""
        raise Wrong(f"{what} {describe_error(error)}.{called_with}") from error
    if result is None:
        raise Wrong(f"{what} returned None. Is a `return` missing?")
    if isinstance(result, Tensor) and result.requires_grad:
        raise Wrong(
            f"{what} returned a Tensor. Use arrays: self.W.data and not self.W, model.predict(x) and not model(x)."
        )
    return result


def construct(answer: Any, base: type, what: str, *arguments: Any) -> Any:
    """Make an object of the class that is the answer. Raise Wrong if it is not a subclass of `base`."""
    if not isinstance(answer, type):
        raise Wrong(f"Give the class {what} itself, not {describe(answer)}.")
    if base is not object and not issubclass(answer, base):
        raise Wrong(f"{what} has to be a subclass of cl.{base.__name__}: class {what}(cl.{base.__name__}).")
    return call_answer(f"{what}({', '.join(map(describe, arguments))})", answer, *arguments)


def check_equal(
    what: str, got: Any, expected: Any, mistakes: Sequence[tuple[Any, str]] = (), rtol: float = 1e-6, atol: float = 1e-9
) -> None:
    """Compare a result with the right one. Raise Wrong with the first element that differs, or with a likely mistake.

    `mistakes` are pairs: the result of a typical mistake, and the message for it. None is any other result.
    """
    expected = np.asarray(expected)
    try:
        got = np.asarray(got, dtype=np.float64)
    except (TypeError, ValueError):
        raise Wrong(f"{what} has to be an array of numbers, and is {describe(got)}.") from None
    if _is_close(got, expected, rtol, atol):
        return
    for wrong, message in mistakes:
        if wrong is None or _is_close(got, wrong, rtol, atol):
            raise Wrong(f"{what} is not right: {message}")
    if got.shape != expected.shape:
        raise Wrong(f"{what} has the shape {got.shape}; it should have {expected.shape}.")
    for i in np.ndindex(expected.shape):
        if not np.allclose(got[i], expected[i], rtol, atol, equal_nan=True):
            place = f" at {i if len(i) > 1 else i[0]}" if i else ""
            factor = _factor(got, expected)
            raise Wrong(f"{what}{place} is {got[i]:.6g}; it should be {expected[i]:.6g}.{factor}")


def _is_close(a: Any, b: Any, rtol: float = 1e-6, atol: float = 1e-9) -> bool:
    return np.shape(a) == np.shape(b) and np.allclose(a, b, rtol, atol, equal_nan=True)


def _factor(got: np.ndarray, expected: np.ndarray) -> str:
    """Return a message if all numbers are wrong by the same factor, otherwise ""."""
    is_large = np.abs(expected) > 1e-9
    if np.count_nonzero(is_large) < 2:
        return ""
    factor = got[is_large][0] / expected[is_large][0]
    if not np.isfinite(factor) or factor in (0, 1) or not np.allclose(got, factor * expected, rtol=1e-6):
        return ""
    return f" All numbers are {factor:.6g} times what they should be."


def unpack(result: Any, expected: Sequence[Any], *names: str) -> Any:
    """Return the parts of a result. Raise Wrong unless it has a part of each name, or if they are swapped.

    `expected` are the right parts.
    """
    wanted = f"Return {', '.join(names)}, in this order"
    if not isinstance(result, tuple | list) or len(result) != len(names):
        kind = f"one thing, of type {type(result).__name__}"
        if isinstance(result, tuple | list):
            kind = f"a {type(result).__name__} of {len(result)}"
        elif isinstance(result, np.ndarray):
            kind = f"one array, of shape {result.shape}"
        raise Wrong(f"{wanted}. You returned {kind}.")
    for order in permutations(range(len(names))):
        with suppress(TypeError, ValueError):  # a part is not an array of numbers
            if all(_is_close(part, expected[i]) for part, i in zip(result, order, strict=True)):
                if list(order) == sorted(order):
                    break
                raise Wrong(f"{wanted}. You returned {', '.join(names[i] for i in order)}.")
    return result


def copy_arrays(arguments: Sequence[Any]) -> list[Any]:
    """Return the arguments, but copies of arrays."""
    return [x.copy() if isinstance(x, np.ndarray) else x for x in arguments]


def check_unchanged(what: str, function: Any, *arguments: Any) -> None:
    """Wrong if a part of an answer writes into an array that it gets. Calls it once more."""
    passed = copy_arrays(arguments)
    function(*passed)
    for before, after in zip(arguments, passed, strict=True):
        if isinstance(before, np.ndarray) and not np.array_equal(before, after):
            raise Wrong(
                f"{what} has changed its argument. Begin with x = x.copy(), or use np.where or x * 2, not x *= 2."
            )


def check_backward(function: Function, *inputs: Any) -> None:
    """Wrong if `check_gradients` finds an error in a Function."""
    try:
        check_gradients(function, *inputs)
    except (AssertionError, TypeError) as error:
        raise Wrong(f"The gradient is wrong. {error}.") from error
    except ERRORS as error:
        raise Wrong(f"check_gradients {describe_error(error)}.") from error
