"""Tables as text; notebooks show them as HTML. Also helpers for texts in tables and pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from caffelite._support.terminal import make_writable

WIDTH = 120  # characters of a line
MIN_WIDTH = 16  # characters; a column is never cut below this
FIT_STYLE = "max-width:100%;height:auto"  # the style of a picture that fits the page


class Text(str):
    """A text that a notebook and the prompt of Python show as it is, line by line."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class TextTable(Text):
    """Lines of text in columns; in a notebook, the same cells as an HTML table.

    The text has only characters that the standard output can write: "..." instead of "…" if that is ASCII.
    """

    cells: list[Sequence[str]]  # the head and the rows
    alignment: str

    def _repr_html_(self) -> str:
        from html import escape

        sides = ["left" if side == "<" else "right" for side in self.alignment]
        lines = []
        for line, tag in zip(self.cells, ["th", *["td"] * (len(self.cells) - 1)], strict=True):
            cells = [
                f'<{tag} style="text-align:{side};white-space:pre">{escape(cell)}</{tag}>'
                for cell, side in zip(line, sides, strict=True)
            ]
            lines.append(f"<tr>{''.join(cells)}</tr>")
        head, *rows = lines  # no colours: the notebook's own, light or dark, apply
        return "\n".join(["<table>", f"<thead>{head}</thead>", "<tbody>", *rows, "</tbody>", "</table>"])


def text_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], alignment: str, *, cut: int | None = None
) -> TextTable:
    """Return a table of the head, a rule and the rows. `alignment` has a letter for each column, "<" left or ">" right.

    If lines would be longer than 120 characters, the cells of the column `cut` are shortened.
    """
    cells: list[Sequence[str]] = [head, *rows]
    lines: list[Sequence[str]] = [[make_writable(cell) for cell in line] for line in cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    if cut is not None and (excess := sum(widths) + 2 * len(widths) - 2 - WIDTH) > 0:
        widths[cut] = max_length = max(min(MIN_WIDTH, widths[cut]), widths[cut] - excess)
        cells = [[*line[:cut], shorten(line[cut], max_length), *line[cut + 1 :]] for line in cells]
        lines = [[*line[:cut], make_writable(shorten(line[cut], max_length)), *line[cut + 1 :]] for line in lines]
    formats = [f"{side}{width}" for side, width in zip(alignment, widths, strict=True)]
    first, *rest = ["  ".join(map(format, line, formats)).rstrip() for line in lines]
    result = TextTable("\n".join([first, "-" * max(map(len, [first, *rest])), *rest]))
    result.cells, result.alignment = cells, alignment
    return result


def shorten(text: str, max_length: int) -> str:
    """Return a text in one line, cut after `max_length` characters."""
    text = " ".join(text.split())
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


def number_text(number: float, digits: int = 6) -> str:
    """Return a number as text: "0.25", "2015", "1,250,000". It is rounded to `digits`, but not before its point."""
    if not 1e4 <= abs(number) < 1e15:
        return f"{number:.{digits}g}"
    decimals = max(0, digits - len(f"{abs(number):.0f}"))
    text = f"{number:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def format_bytes(count: float) -> str:
    """Return a number of bytes, in the unit that makes it less than 1,000: `640 B`, `10.4 kB`, `1.2 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.95 or unit == "GB":
            break
        count /= 1000
    return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"


def escape_tex(text: str) -> str:
    """Return a text that matplotlib draws unchanged. (It takes text between two dollar signs for TeX.)"""
    return text.replace("$", r"\$")


def plural(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
