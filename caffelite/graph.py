"""A drawing of the graph that made a Tensor, as SVG text.

Boxes stand in rows: what is drawn in the lowest is the Tensor itself, what goes into it stands above. An arrow that
passes through rows has a Bend in each, so that its way is kept free like the place of a box.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from itertools import pairwise

from caffelite.function import Function
from caffelite.model import Model
from caffelite.tensor import Tensor

LETTER = 7.3  # the width of a letter of the monospaced font, in pixels; its size is 12
LONGEST = 48  # letters; longer labels are cut
HEIGHT, GAP, MARGIN = 42, 34, 8  # of a box, between rows, and around the drawing
BESIDE = 16  # between boxes in a row
HEAD = 7  # the length of an arrow's head
PORTS = 14  # between arrows that end at one box

# Dark letters on light boxes and grey arrows: they can be read on light and on dark backgrounds.
INK, ARROW = "#222222", "#808080"
STYLES = {
    "function": 'fill="#e6f1fa" stroke="#0072b2"',
    "requires_grad": 'rx="12" fill="#fff3dc" stroke="#c98500"',
    "leaf": 'rx="12" fill="#f2f2f2" stroke="#808080"',
    "constant": 'rx="12" fill="#f2f2f2" stroke="#808080" stroke-dasharray="4 3"',
}
ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class SVG(str):
    """SVG text, which notebooks show as the picture."""

    def _repr_svg_(self) -> str:
        return str(self)


def graph(tensor: Tensor) -> SVG:
    """Draw the graph that made a Tensor: the Functions, and the leaves that they were applied to.

    A leaf has its name, its shape, and whether it requires a gradient; a Function its `repr` and the shape of what it
    returned; the arrows run from inputs to outputs. A parameter is an input of its Function. A Model is drawn as its
    Functions. What was not a Tensor, such as an array of labels or a number, was not kept: it is a `constant`.

    Returns SVG text, a `str`: `Path("graph.svg").write_text(cl.graph(loss))`. In a notebook it shows the picture.
    Raises TypeError for what is no Tensor, and RuntimeError where `backward` has freed the graph.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"graph takes a Tensor, got {tensor!r}")
    boxes = _boxes(tensor)
    rows = _ordered(_rows(boxes))
    _place(rows)
    return _svg(rows, boxes)


class Bend:
    """Where an arrow passes through a row."""

    width = 4.0

    def __init__(self, row: int = 0) -> None:
        self.row = row  # counted from the lowest
        self.above: list[Bend] = []  # what arrows come from, in the row above …
        self.below: list[Bend] = []  # … and what they go to, in the row below
        self.x = 0.0  # the middle


class Box(Bend):
    """A leaf, a constant or a Function, with one or two lines of text."""

    def __init__(self, kind: str, *lines: str, inputs: Sequence[Box] = ()) -> None:
        super().__init__()
        self.kind, self.inputs = kind, inputs
        self.lines = [_label(line) for line in lines if line]
        self.width = 24 + LETTER * max(map(len, self.lines))


def _label(text: str) -> str:
    """In one line, of limited length, of letters that XML allows."""
    line = " ".join(text.split())
    line = line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line)


# ---- what is drawn --------------------------------------------------------------------------------------------------


def _boxes(result: Tensor) -> list[Box]:
    """The boxes of a graph, each after its inputs."""
    boxes: list[Box] = []
    of: dict[Tensor, Box] = {}

    def add(box: Box) -> Box:
        boxes.append(box)
        return box

    def leaf(tensor: Tensor) -> Box:
        if tensor not in of:
            kind = "requires_grad" if tensor.requires_grad else "leaf"
            notes = " requires_grad" if tensor.requires_grad else ""
            of[tensor] = add(Box(kind, tensor.name or "Tensor", f"{tensor.shape}{notes}"))
        return of[tensor]

    def function_box(function: Function, note: str, inputs: list[Box]) -> Box:
        parameters = [leaf(p) for p in function.parameters()]
        return add(Box("function", repr(function), note, inputs=[*inputs, *parameters]))

    for tensor in _inputs_first(result):
        if tensor.function is None:
            leaf(tensor)
            continue
        inputs = [add(Box("constant", "constant")) if x is None else of[x] for x in tensor.inputs]
        shapes = [None if x is None else x.shape for x in tensor.inputs]
        functions = _in_sequence(tensor.function)
        for function in functions[:-1]:
            shapes = [Model._shape_after([function], *shapes)]
            inputs = [function_box(function, "" if shapes[0] is None else str(shapes[0]).replace("None", "n"), inputs)]
        name = f"{tensor.name} " if tensor.name else ""
        of[tensor] = function_box(functions[-1], f"{name}{tensor.shape}", inputs)
    return boxes


def _inputs_first(result: Tensor) -> list[Tensor]:
    """The Tensors of a graph, each after the ones it was made from. Without recursion: graphs may be deep."""
    order: dict[Tensor, None] = {}
    seen: set[Tensor] = set()
    stack = [result]
    while stack:
        tensor = stack[-1]
        if tensor.function is not None and not isinstance(tensor.function, Function):
            raise RuntimeError("graph: backward has freed the graph; draw it before")
        if tensor in seen:
            order.setdefault(stack.pop())
        else:
            seen.add(tensor)
            stack.extend(x for x in reversed(tensor.inputs) if x is not None and x not in seen)
    return list(order)


def _in_sequence(function: Function) -> list[Function]:
    """The Functions that a Model applied, those of Models in it included; any other Function alone."""
    if not isinstance(function, Model) or type(function).forward is not Model.forward:
        return [function]
    return [f for applied in function._applied for f in _in_sequence(applied)] or [function]


# ---- where it is drawn ----------------------------------------------------------------------------------------------


def _rows(boxes: list[Box]) -> list[list[Bend]]:
    """The boxes and bends of each row, the lowest first; a box stands right above the highest that it goes into."""
    for box in reversed(boxes):
        for x in box.inputs:
            x.row = max(x.row, box.row + 1)
    rows: list[list[Bend]] = [[] for _ in range(1 + max(box.row for box in boxes))]
    for box in boxes:
        for x in box.inputs:
            upper: Bend = x
            for row in range(x.row - 1, box.row, -1):
                bend = Bend(row)
                rows[row].append(bend)
                _connect(upper, bend)
                upper = bend
            _connect(upper, box)
        rows[box.row].append(box)
    return rows


def _connect(upper: Bend, lower: Bend) -> None:
    upper.below.append(lower)
    lower.above.append(upper)


def _ordered(rows: list[list[Bend]]) -> list[list[Bend]]:
    """The rows in an order with few crossings: each sorted by the mean place of its neighbours, up and down in turn.

    As they come, inputs from left to right, the arrows of a tree do not cross.

    K. Sugiyama, S. Tagawa and M. Toda, "Methods for visual understanding of hierarchical system structures", 1981.
    """
    best, fewest = rows, _crossings(rows)
    for sweep in range(8):
        if fewest == 0:
            break
        upwards = sweep % 2 == 0
        rows = rows if upwards else rows[::-1]
        swept = rows[:1]
        for row in rows[1:]:
            place = {item: float(i) for i, item in enumerate(swept[-1])}
            middle = {}
            for i, item in enumerate(row):
                near = [place[x] for x in (item.below if upwards else item.above)]
                middle[item] = sum(near) / len(near) if near else float(i)
            swept.append(sorted(row, key=middle.__getitem__))
        rows = swept if upwards else swept[::-1]
        if _crossings(rows) < fewest:
            best, fewest = rows, _crossings(rows)
    return best


def _crossings(rows: list[list[Bend]]) -> int:
    count = 0
    for row, above in pairwise(rows):
        place = {item: i for i, item in enumerate(above)}
        before: list[int] = []
        for _, start in sorted((i, place[x]) for i, item in enumerate(row) for x in item.above):
            count += len(before) - bisect_right(before, start)
            insort(before, start)
    return count


def _place(rows: list[list[Bend]]) -> None:
    """Set x: the first input of a Function straight above it, the others beside that, as near as they can be.

    Each row by isotonic regression (pool adjacent violators), weighted: the least squares of the distances from where
    its items should be, among all places in this order without overlap.
    """
    for row in rows:
        blocks: list[tuple[float, float, int]] = []  # weight, mean, number of items; what may not be nearer is pooled
        offsets, edge = [], 0.0
        for item in row:
            offsets.append(edge + item.width / 2)
            edge += item.width + BESIDE
            first = [lower for lower in item.below if lower.above[0] is item]
            near = [lower.x for lower in first or item.below]
            weight, count = 1e6 if first and isinstance(item, Box) else 1.0, 1
            mean = (sum(near) / len(near) if near else 0.0) - offsets[-1]
            while blocks and blocks[-1][1] > mean:
                other, its_mean, its_count = blocks.pop()
                mean = (weight * mean + other * its_mean) / (weight + other)
                weight, count = weight + other, count + its_count
            blocks.append((weight, mean, count))
        starts = [mean for _, mean, count in blocks for _ in range(count)]
        for item, offset, start in zip(row, offsets, starts, strict=True):
            item.x = start + offset


# ---- the drawing ----------------------------------------------------------------------------------------------------


def _svg(rows: list[list[Bend]], boxes: list[Box]) -> SVG:
    left = min(item.x - item.width / 2 for row in rows for item in row) - MARGIN
    width = max(item.x + item.width / 2 for row in rows for item in row) + MARGIN - left
    height = len(rows) * (HEIGHT + GAP) - GAP + 2 * MARGIN
    for row in rows:
        for item in row:
            item.x -= left
    place = {item: i for row in rows for i, item in enumerate(row)}

    def top(item: Bend) -> int:
        return MARGIN + (len(rows) - 1 - item.row) * (HEIGHT + GAP)

    def arrow(upper: Bend, box: Box, x: float) -> str:
        """From a box above, through bends, down to the upper border of a box, at x."""
        end = top(box) - HEAD
        head = f'<path d="M {x - 4:.1f} {end} h 8 l -4 {HEAD} z" fill="{ARROW}"/>'
        path = ""
        while True:
            start = top(upper) + HEIGHT
            half = (start + end) / 2
            path = f"C {upper.x:.1f} {half:.1f} {x:.1f} {half:.1f} {x:.1f} {end}{path}"
            if isinstance(upper, Box):
                return f'<path d="M {upper.x:.1f} {start} {path}"/>{head}'
            path, x, end = f" V {start} {path}", upper.x, top(upper)
            upper = upper.above[0]

    arrows, drawn = [], []
    for box in boxes:
        order = sorted(range(len(box.above)), key=lambda i: place[box.above[i]])
        apart = min(PORTS, (box.width / 2 - 8) / max(1, len(order) - 1))
        for port, i in enumerate(order):
            arrows.append(arrow(box.above[i], box, box.x + (port - order.index(0)) * apart))
        rectangle = f'x="{box.x - box.width / 2:.1f}" y="{top(box)}" width="{box.width:.1f}" height="{HEIGHT}"'
        drawn.append(f"<rect {rectangle} {STYLES[box.kind]}/>")
        middle = top(box) + HEIGHT / 2 + 4 - 8 * (len(box.lines) - 1)
        for i, line in enumerate(box.lines):
            text = line.translate(ESCAPES)
            drawn.append(f'<text x="{box.x:.1f}" y="{middle + 16 * i:.0f}">{text}</text>')
    return SVG(
        "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
                f'viewBox="0 0 {width:.1f} {height}">',
                f'<g fill="none" stroke="{ARROW}" stroke-width="1.4" stroke-linejoin="round">',
                *arrows,
                "</g>",
                f'<g font-family="monospace" font-size="12" text-anchor="middle" fill="{INK}">',
                *drawn,
                "</g>",
                "</svg>",
                "",
            ]
        )
    )
