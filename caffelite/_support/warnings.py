"""The warnings of caffelite. Each names the user's line, not the line inside the package."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import warnings
from contextvars import ContextVar
from types import FrameType

PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")  # caffelite's folder
_INTERNAL_FILES = (PACKAGE, contextlib.__file__, functools.__file__, threading.__file__)


class TrainingWarning(UserWarning):
    """The training goes on, but probably does not do what you want."""


class NotRecorded(UserWarning):
    """A step cannot be recorded. It runs in Python instead: correct, but slower."""


class Line:
    """A line of the user's code: a file and a number."""

    def __init__(self, file: str, number: int) -> None:
        self.file, self.number = file, number

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


#: The user's line that started this thread, if caffelite made the thread.
thread_origin: ContextVar[Line | None] = ContextVar("thread_origin", default=None)


def user_line(max_depth: int = sys.maxsize) -> Line | None:
    """Return the user's line that is running; None if more than `max_depth` frames of the package are inside it."""
    frame, _ = _user_frame(max_depth)
    return None if frame is None else Line(frame.f_code.co_filename, frame.f_lineno)


def _user_frame(max_depth: int = sys.maxsize) -> tuple[FrameType | None, int]:
    """Return the innermost frame of the user's code, and how many frames of the package are inside it.

    The frame is None if there are more than `max_depth`, or if only the package runs, as in its command line.
    """
    frame: FrameType | None = sys._getframe(1)
    depth = 0
    while frame is not None and frame.f_code.co_filename.startswith(_INTERNAL_FILES):
        if depth == max_depth:
            return None, depth
        frame, depth = frame.f_back, depth + 1
    return frame, depth


def warn(message: str, category: type[Warning] = TrainingWarning, line: Line | None = None) -> None:
    """Warn with a line of the user's code, by default the one that is running."""
    frame, depth = _user_frame()
    if line is None and frame is None:
        line = thread_origin.get()
    if line is None:
        warnings.warn(message, category, stacklevel=depth + 1)
    else:
        warnings.warn_explicit(message, category, line.file, line.number)
