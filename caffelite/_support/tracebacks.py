"""Exceptions of the user's code inside caffelite: add a note with the epoch and the batch, and shorten tracebacks."""

from __future__ import annotations

import os
from collections.abc import Callable
from traceback import walk_tb
from types import FrameType, TracebackType
from typing import Any

import numpy as np

from caffelite._support.warnings import PACKAGE

_LIBRARIES = tuple([os.path.join(os.path.dirname(path), "") for path in (os.__file__, os.path.dirname(np.__file__))])


class error_note:
    """Add the note `what()`, what caffelite was doing, to an exception that the user's code raises inside."""

    what: Callable[[], str]

    def __init__(self, what: Callable[[], str]) -> None:
        self.what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        if isinstance(error, Exception) and has_user_code(traceback):
            add_note(error, self.what())


def add_note(error: Any, text: str) -> None:
    """Add a note to an exception, also in Python 3.10."""
    error.__notes__ = [*getattr(error, "__notes__", ()), text]


class short_traceback:
    """Remove caffelite's own frames from a traceback that ends in the user's code, except frames of the file `shown`.

    Python 3.10 shows all frames.
    """

    def __init__(self, shown: str) -> None:
        self.shown = shown

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        if isinstance(error, Exception) and has_user_code(traceback):
            error.__traceback__ = _without_inner_frames(traceback, self.shown)


def hide_inner_frames(error: Exception) -> None:
    """Let IPython and pytest skip all frames of an error about arguments but the last, unless they run user code.

    Both skip frames with `__tracebackhide__` among their variables. Python itself shows all frames.
    """
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    is_users = any(_is_user_code(frame) and not frame.f_code.co_filename.endswith(".pxi") for frame in frames)
    if isinstance(error, ValueError | TypeError | IndexError | RuntimeError) and not is_users:
        for frame in frames:
            frame.f_locals["__tracebackhide__"] = True


def has_user_code(traceback: TracebackType | None) -> bool:
    """Return whether a traceback goes through the user's code."""
    return any(_is_user_code(frame) for frame, _ in walk_tb(traceback))


def _is_user_code(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return not file.startswith((PACKAGE, *_LIBRARIES)) and not file.endswith(".pyx")


def _without_inner_frames(traceback: TracebackType | None, shown: str) -> TracebackType | None:
    """Return the traceback without caffelite's frames before the user's last frame."""
    if traceback is None:
        return None
    file, following = traceback.tb_frame.f_code.co_filename, _without_inner_frames(traceback.tb_next, shown)
    is_own = file.startswith(PACKAGE) or file.endswith(".pyx")
    if is_own and file != shown and has_user_code(traceback.tb_next):
        return following
    return TracebackType(following, traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno)
