"""What caffelite prints. Printing never fails because an encoding lacks a character, such as ASCII or Windows-1252."""

from __future__ import annotations

import sys
from typing import Any

ASCII = {"…": "...", "×": "x", "→": "->", "−": "-", "–": "-", "·": "*", "±": "+/-", "²": "^2", "µ": "u", "⁻": "^-"}


def writable(text: str, stream: Any = None) -> str:
    """The text in characters that a stream, by default the standard output, can write.

    Other characters become ASCII: `...` for an ellipsis, `->` for an arrow, and `\\xfc` or its like for what has no
    ASCII of its own.
    """
    encoding = getattr(sys.stdout if stream is None else stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
        return text
    except UnicodeEncodeError:
        return "".join([_writable(character, encoding) for character in text])


def _writable(character: str, encoding: str) -> str:
    try:
        character.encode(encoding)
        return character
    except UnicodeEncodeError:
        return ASCII.get(character) or character.encode("ascii", "backslashreplace").decode()


def say(text: Any = "", stream: Any = None, *, flush: bool = False) -> None:
    """Print a text to a stream, by default the standard output, in characters that it can write.

    OSError names the stream, such as `<stdout>`, if it takes no more: nobody reads it any more, or a disk is full.
    """
    stream = sys.stdout if stream is None else stream
    write(writable(str(text), stream) + "\n", stream, flush=flush)


def write(content: str | bytes, stream: Any, *, flush: bool = True) -> None:
    """Write to a stream as it is; raises as `say` does. None, which Python has for a closed stream, gets nothing."""
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
    """Whether a stream goes to a terminal. Python has None for a stream that was closed before it began."""
    return stream is not None and not stream.closed and stream.isatty()
