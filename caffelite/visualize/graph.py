"""A drawing of the graph that made a Tensor, as SVG text.

The boxes are in rows: the Tensor itself in the lowest, the inputs of a box above it. If an input is used further down,
a line runs through the rows in between, and has a place in each of them, like a box.

`graph` writes two lines of text into a box. `trace` (`worked_example.py`) draws the same boxes with more lines. The
boxes in a row are aligned at the bottom.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.migration_hints import hint_arguments
from caffelite._support.text_table import FIT_STYLE, shorten
from caffelite.core.autograd import topological_order
from caffelite.core.modes import mode, record_graph
from caffelite.core.tensor import Tensor

LETTER, MAX_LABEL = 8.5, 48  # the width of a letter 14 pixels high; the most letters in a label
MIN_HEIGHT, LINE_HEIGHT = 50, 18  # pixels: of a box for two lines, the smallest, and of a line
GAP, MARGIN = 34, 8  # between rows, and around the drawing
COLUMN_GAP, PORT_GAP = 16, 14  # between boxes in a row, and between arrows that end at one box

# Dark letters on light boxes, and grey arrows, are readable on light and on dark backgrounds.
STYLES = {
    "function": 'fill="#e6f1fa" stroke="#0072b2"',
    "requires_grad": 'rx="12" fill="#fff3dc" stroke="#c98500"',
    "leaf": 'rx="12" fill="#f2f2f2" stroke="#808080"',
    "constant": 'rx="12" fill="#f2f2f2" stroke="#808080" stroke-dasharray="4 3"',
}


class SVG(str):
    """SVG text, which notebooks show as a picture. Its `repr` gives the size."""

    def save(self, path: str | os.PathLike) -> None:
        """Write the picture to a file, such as `graph.svg`, for a browser. Raise OSError if that fails."""
        Path(path).write_text(self, encoding="utf-8")

    def __repr__(self) -> str:
        width, height = re.findall(r'(?:width|height)="([\d.]+)"', self)[:2]
        return f'SVG({width} × {height}; a notebook draws it, .save("graph.svg") writes it)'

    def _repr_svg_(self) -> str:
        return str(self)


Piece = tuple[str, str]  # a text, and its colour ("" for the default)


class Box:
    """A box with lines of text or, without text, the place of a line that runs through a row.

    A line is a text, or pieces of it with colours. `function` is the Function that the box stands for, None for a leaf.
    `tensors` are its used outputs, or the leaf; `tensor_inputs` are the Tensors it was applied to.
    """

    def __init__(self, kind: str, lines: list[str], inputs: list[Box], row: int = 0) -> None:
        self.kind, self.inputs = kind, inputs
        self.row, self.x = row, 0.0  # the row, counted from the lowest, and the box's middle
        self.function: Any = None
        self.tensors: list[Tensor] = []
        self.tensor_inputs: tuple[Tensor | None, ...] = ()
        self.write([[(_label(line), "")] for line in lines])

    def write(self, lines: list[list[Piece]]) -> None:
        """Set the lines of text, and so the size of the box."""
        self.lines = lines
        lengths = [sum([len(text) for text, _ in line]) for line in lines]
        self.width = 24 + LETTER * max(lengths) if lines else 4
        self.height = max(MIN_HEIGHT, LINE_HEIGHT * len(lines) + 14) if lines else 0


@hint_arguments
def graph(tensor: Tensor) -> SVG:
    """Draw the graph that made a Tensor: its Functions and leaves.

    A leaf shows its name, its shape, and whether it requires a gradient. A Function shows its `repr` and the shape of
    its output. The arrows run from inputs to outputs. A parameter is an input of its Function. Inputs that were not
    Tensors, such as labels or numbers, are not kept, and are drawn as a `constant`.

    Return SVG text, a `str`: `cl.graph(loss).save("graph.svg")`. A notebook shows it as a picture. Raise TypeError for
    anything but a Tensor, and RuntimeError if `backward` has freed the graph.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"graph takes a Tensor, such as model(x), got {tensor!r}")
    try:
        return draw_boxes(build_boxes(tensor))
    except RuntimeError:
        raise RuntimeError("graph: backward has freed the graph; draw it before `backward`") from None


@contextmanager
def observe_graph(training: bool) -> Iterator[None]:
    """Inside, Functions record a graph, behave as in training or inference, and don't warn. No Program records them."""
    before, mode.training = mode.training, training
    try:
        with record_graph(), kernels.pause_recording(), np.errstate(all="ignore"):
            yield
    finally:
        mode.training = before


def draw_boxes(boxes: list[Box], legend: Sequence[Piece] = ()) -> SVG:
    """Draw boxes, with a legend below them: texts with their colours."""
    return _render(_place(_rows(boxes)), legend)


def build_boxes(*results: Tensor) -> list[Box]:
    """Return the boxes of a graph, each after its inputs. RuntimeError if `backward` has freed the graph."""
    boxes: dict[int, Box] = {}  # by the id of a Function, which may have several outputs, or of a leaf

    def find_box(x: Tensor | None) -> Box:
        if x is None:
            node = Box("constant", ["constant"], [])
            return boxes.setdefault(id(node), node)
        key = id(x.function) if id(x.function) in boxes else id(x)
        if key not in boxes:
            grad = "requires_grad" if x.requires_grad else ""
            boxes[key] = Box(grad or "leaf", [x.name or "Tensor", f"{x.shape} {grad}"], [])
            boxes[key].tensors = [x]
        return boxes[key]

    tensors = topological_order(*results)
    outputs: dict[int, dict[int, Tensor]] = {}  # the used outputs of each Function
    for x in (*[x for tensor in tensors for x in tensor.inputs if x is not None], *results):
        outputs.setdefault(id(x.function), {})[id(x)] = x
    for tensor in tensors:
        if (function := tensor.function) is not None and id(function) not in boxes:
            inputs = [find_box(x) for x in (*tensor.inputs, *function.parameters())]
            used = list(outputs[id(function)].values())
            shapes = ", ".join([f"{x.name or ''} {x.shape}" for x in used])
            box = boxes[id(function)] = Box("function", [repr(function), shapes], inputs)
            box.function, box.tensors, box.tensor_inputs = function, used, tensor.inputs
    for result in results:
        find_box(result)
    return list(boxes.values())


def _rows(boxes: list[Box]) -> list[list[Box]]:
    """Return the rows, the lowest first. A box is in the row just above the highest box that uses it."""
    for box in reversed(boxes):
        for x in box.inputs:
            x.row = max(x.row, box.row + 1)
    rows: list[list[Box]] = [[] for _ in range(1 + max(box.row for box in boxes))]
    lines: dict[Box, Box] = {}  # how far down the line from a box has been drawn
    for box in sorted(boxes, key=lambda box: -box.row):
        rows[box.row].append(box)
        for i, x in enumerate(box.inputs):
            line = lines.get(x, x)
            while line.row > box.row + 1:
                line = Box("", [], [line], line.row - 1)
                rows[line.row].append(line)
            lines[x] = box.inputs[i] = line
    return rows


def _place(rows: list[list[Box]]) -> list[list[Box]]:
    """Set x, from the lowest row up: as near to the mean of the ends of a box's arrows as its neighbours allow.

    The first input of the first input … of the result is straight above it, and the others to the left and right.
    """
    spine = rows[0][0]
    ends: dict[Box, list[float]] = {node: [0.0] for node in rows[0]}
    for row in rows:
        mean = {node: sum(ends[node]) / len(ends[node]) for node in row}
        order = sorted(row, key=mean.__getitem__)
        i = order.index(spine) if spine in order else 0
        for side, nodes, edge in ((1, order[i:], -inf), (-1, order[:i][::-1], spine.width / 2 + COLUMN_GAP)):
            for node in nodes:
                node.x = 0.0 if node is spine else side * max(side * mean[node], edge + node.width / 2)
                edge = side * node.x + node.width / 2 + COLUMN_GAP
        for node in row:
            for port, x in enumerate(node.inputs):
                ends.setdefault(x, []).append(node.x + (-port if port % 2 else port) * PORT_GAP)
        spine = spine.inputs[0] if spine.inputs else spine
    return rows


def _render(rows: list[list[Box]], legend: Sequence[Piece]) -> SVG:
    from html import escape  # takes a millisecond, so only if you draw

    def text(x: float, y: float, line: Sequence[Piece], attributes: str = "") -> str:
        pieces = [
            f'<tspan fill="{colour}">{escape(piece, quote=False)}</tspan>' if colour else escape(piece, quote=False)
            for piece, colour in line
        ]
        return f'<text x="{x:.1f}" y="{y:.0f}"{attributes}>{"".join(pieces)}</text>'

    heights = [max([node.height for node in row]) for row in rows]
    bottoms = [heights[0] - sum(heights[: i + 1]) - GAP * i + heights[i] for i in range(len(rows))]  # of the rows
    arrows, boxes = [], []
    for node in [node for row in reversed(rows) for node in row]:
        row_height, bottom = heights[node.row], bottoms[node.row]
        top, half, places = bottom - row_height, node.width / 2, [x.x for x in node.inputs]
        order = sorted(range(len(places)), key=places.__getitem__)
        apart = min(PORT_GAP, (half - 8) / max(1, len(order) - 1))
        down = row_height - node.height  # from the row's upper end to the box
        tip = f"{f'v {down} ' if down else ''}m -4 -6 l 4 6 l 4 -6" if node.lines else f"v {row_height}"
        for port, i in enumerate(order):
            start, end = places[i], node.x + (port - order.index(0)) * apart
            curve = f"{start:.1f} {top - GAP} C {start:.1f} {top - GAP / 2} {end:.1f} {top - GAP / 2} {end:.1f} {top}"
            arrows.append(f'<path d="M {curve} {tip}"/>')
        if node.lines:
            top = bottom - node.height
            rectangle = f'x="{node.x - half:.1f}" y="{top}" width="{2 * half:.1f}" height="{node.height}"'
            boxes.append(f"<rect {rectangle} {STYLES[node.kind]}/>")
        for i, line in enumerate(node.lines):
            y = top + node.height / 2 + 14 + LINE_HEIGHT * i - LINE_HEIGHT / 2 * len(node.lines)
            boxes.append(text(node.x, y, line, "" if i else ' font-weight="bold"'))
    nodes = [node for row in rows for node in row]
    left = min(node.x - node.width / 2 for node in nodes) - MARGIN
    width = max(node.x + node.width / 2 for node in nodes) + MARGIN - left
    upper = bottoms[-1] - heights[-1] - MARGIN
    height = bottoms[0] + MARGIN - upper
    if legend:
        lengths = [LETTER * len(line) + 16 for line, _ in legend]
        width = max(width, sum(lengths))
        for i, piece in enumerate(legend):
            boxes.append(text(left + 8 + sum(lengths[:i]), bottoms[0] + GAP - 8, [piece], ' text-anchor="start"'))
        height += GAP
    view = f"{left:.1f} {upper} {width:.1f} {height}"
    size = f'width="{width:.0f}" height="{height}" style="{FIT_STYLE}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="{view}">'
    grey = '<g fill="none" stroke="#808080" stroke-width="1.4" stroke-linejoin="round">'
    dark = '<g font-family="monospace" font-size="14" text-anchor="middle" fill="#222222">'
    return SVG("\n".join([head, grey, *arrows, "</g>", dark, *boxes, "</g>", "</svg>", ""]))


def _label(text: str) -> str:
    """Return the text in one line, of limited length, with only the characters that XML allows."""
    line = shorten(text, MAX_LABEL)
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line)
