"""The warnings that caffelite gives. Each points at the user's line, however deep inside the package it is given."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import warnings
from types import FrameType

_NOT_THE_USERS = (os.path.dirname(os.path.abspath(__file__)) + os.sep, contextlib.__file__, functools.__file__)


class TrainingWarning(UserWarning):
    """The training goes on, but probably does not do what was meant."""


class NotRecorded(UserWarning):
    """A step cannot be recorded: it is trained on in Python, correctly but more slowly."""


def users_frame() -> tuple[FrameType | None, int]:
    """The innermost frame that runs the user's code, and how many frames of the package are above it.

    None, if only the package runs, as in its command line.
    """
    frame: FrameType | None = sys._getframe(1)
    above = 0
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame, above = frame.f_back, above + 1
    return frame, above


def warn(message: str, category: type[Warning] = TrainingWarning) -> None:
    """Give a warning that names the line of the user's that is running."""
    warnings.warn(message, category, stacklevel=users_frame()[1] + 1)
