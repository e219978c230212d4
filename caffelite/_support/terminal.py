"""Printing that never fails because an encoding, such as ASCII or Windows-1252, lacks a character."""

from __future__ import annotations

import sys
from typing import Any

ASCII = {"…": "...", "×": "x", "→": "->", "−": "-", "–": "-", "·": "*", "±": "+/-", "²": "^2", "µ": "u", "⁻": "^-"}


def make_writable(text: str, stream: Any = None) -> str:
    """Return the text in characters that a stream, by default the standard output, can write.

    Other characters become ASCII: `...` for an ellipsis, `->` for an arrow. A character without such a form becomes a
    code, such as `\\xfc`.
    """
    encoding = getattr(sys.stdout if stream is None else stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
        return text
    except UnicodeEncodeError:
        return "".join([_replace_character(character, encoding) for character in text])


def _replace_character(character: str, encoding: str) -> str:
    try:
        character.encode(encoding)
        return character
    except UnicodeEncodeError:
        return ASCII.get(character) or character.encode("ascii", "backslashreplace").decode()


def echo(text: Any = "", stream: Any = None, *, flush: bool = False) -> None:
    """Print a text to a stream, by default the standard output, in characters that it can write.

    Raise OSError with the stream's name, such as `<stdout>`, if writing fails: the reader is gone, or a disk is full.
    """
    stream = sys.stdout if stream is None else stream
    write(make_writable(str(text), stream) + "\n", stream, flush=flush)


def write(content: str | bytes, stream: Any, *, flush: bool = True) -> None:
    """Write content unchanged to a stream; raises as `echo` does. Do nothing if the stream is None, that is, closed."""
    if stream is None:
        return
    try:
        (stream.buffer if isinstance(content, bytes) else stream).write(content)
        if flush:
            stream.flush()
    except OSError as error:
        error.filename = getattr(stream, "name", None)
        raise


def is_terminal(stream: Any) -> bool:
    """Return whether a stream goes to a terminal. The stream is None if it was closed before Python started."""
    return stream is not None and not stream.closed and stream.isatty()
