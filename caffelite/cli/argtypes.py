"""The values of arguments: each function turns a text into one, or raises ArgumentTypeError saying what it expected."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from caffelite.files.atomic import check_writable

FORMATS = (".png", ".jpg", ".svg", ".pdf")  # of pictures


def _integer(text: str, min_value: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = min_value - 1
    if value < min_value:
        raise argparse.ArgumentTypeError(f"expected an integer, {min_value} or more, got {text!r}")
    return value


def positive(text: str) -> int:
    return _integer(text, 1)


def natural(text: str) -> int:
    return _integer(text, 0)


def sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple([_integer(size, 1) for size in text.split(",")])
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"expected integers, 1 or more, such as 64,64, got {text!r}") from None


def _number(text: str, max_value: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < max_value:
        raise argparse.ArgumentTypeError(f"expected a number above 0 and below {max_value:g}, got {text!r}")
    return value


def share(text: str) -> float:
    return _number(text, 1.0)


def rate(text: str) -> float:
    return _number(text, 1e6)


def seconds(text: str) -> float:
    return _number(text, 1e9)


def delimiter(text: str) -> str:
    text = "\t" if text in ("\\t", "tab") else text
    if len(text) != 1 or text in '"\r\n':
        raise argparse.ArgumentTypeError(f"expected one character, or tab, got {text!r}")
    return text


def model(text: str) -> Path:
    """Return the path of a model to write, checked as a picture's is."""
    return file(text, (".safetensors",))


def picture(text: str) -> Path:
    """Return the path of a picture to write. It is checked now, before training spends time."""
    return file(text, FORMATS)


def file(text: str, formats: Sequence[str] = ("",)) -> Path:
    """Return the path of a file to write; an error if it can't be written, or has none of these endings."""
    path = Path(text)
    if not any(format in ("", path.suffix.lower()) for format in formats):
        raise argparse.ArgumentTypeError(f"expected a file that ends in {' or '.join(formats)}, got {text!r}")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    try:
        check_writable(path)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot write {text!r}: {error.strerror}") from None
    return path
