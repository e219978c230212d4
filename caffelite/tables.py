"""Tables as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]], alignment: str) -> str:
    """Lines of text in columns, the head above a rule; `alignment` has a letter a column, "<" left or ">" right."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    formats = [f"{side}{width}" for side, width in zip(alignment, widths, strict=True)]
    head, *rows = ["  ".join(map(format, line, formats)).rstrip() for line in lines]
    return "\n".join([head, "-" * max(map(len, [head, *rows])), *rows])
