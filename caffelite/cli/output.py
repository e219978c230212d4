"""Helpers of all commands: report usage errors, write files, and say how it went."""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from caffelite._support.extras import install_command
from caffelite._support.terminal import echo
from caffelite.files.atomic import replace_file
from caffelite.optimizers import TrainingDiverged


class UsageError(Exception):
    """The arguments or their files can't be used, as the message says."""


@contextmanager
def raise_usage_errors() -> Iterator[None]:
    """Inside, an error in the arguments or their files becomes `UsageError`."""
    try:
        yield
    except OSError as error:
        if is_stdout_error(error):
            raise
        raise UsageError(f"{error.filename}: {error.strerror}" if error.filename else error) from None
    except (ValueError, TypeError, ImportError, TrainingDiverged, argparse.ArgumentTypeError) as error:
        raise UsageError(error) from None


def is_stdout_error(error: OSError) -> bool:
    """Return whether the error comes from the standard output."""
    return error.filename is not None and error.filename == getattr(sys.stdout, "name", None)


def draw(picture: Callable[[], Any], output: Path, stream: Any = None) -> int:
    """Make a figure and write it; return the exit status. Without matplotlib, say that there is no picture.

    The messages go to `stream`, by default the standard output.
    """

    def write() -> None:
        content = io.BytesIO()
        picture().savefig(content, format=output.suffix[1:], dpi="figure")
        replace_file(output, [content.getvalue()])

    try:
        status = write_file(output, write)
    except ImportError:
        echo(f"picture skipped: it needs matplotlib ({install_command('plot')})", stream)
        return 0
    if not status:
        echo(f"picture in {output}", stream)
    return status


def as_csv(lines: Iterable[Iterable[Any]]) -> str:
    """Return lines of cells as comma-separated values."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def write_file(output: Path, write: Callable[[], Any]) -> int:
    """Write a file; return the exit status. If it fails, say why, because the computation may have taken long."""
    try:
        write()
    except ImportError:
        raise
    except Exception as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        echo(f"caffelite: could not write {output}: {reason}", sys.stderr)
        return 1
    return 0
