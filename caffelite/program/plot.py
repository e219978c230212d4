"""A picture of a Program: its kernels in time over the memory of its temporaries, before and after each pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from caffelite._support.colours import INK, PALETTE, style
from caffelite._support.text_table import escape_tex, format_bytes, shorten
from caffelite.program.ir import Buffer
from caffelite.program.timeline import Timeline

WIDTH, HEIGHT = 9.5, 2.9  # inches: of the picture, and of a panel of it
TINT = 0.45  # how much of its colour a bar has; the rest is white, because its text is dark
MIN_OUTLINED = 0.04  # of the height; lower bars have no outline, which would hide their colour
NEUTRAL = "#BBBBBB"  # kernels that write no temporary
MAX_NAME_LENGTH = 26  # of a kernel's name
NAME_ANGLE = 50  # degrees; of names
NAME_SPACING = 0.0165  # of the width; between names
MAX_NAMES = 50  # kernels that have their names
X_RANGE = 1.09  # how much wider the axes are than the longest stage; the last names need it


@style()
def plot_stages(stages: list[Timeline]) -> Any:
    """Draw the stages of a Program, one below the other, all on the same scales; returns a matplotlib figure."""
    from caffelite._support.figures import Figure

    figure = Figure(WIDTH, HEIGHT * len(stages) + 0.5)
    panels = figure.subplots(2 * len(stages), 1, height_ratios=[1.3, 1] * len(stages), squeeze=False)[:, 0]
    longest = max([stage.seconds.sum() for stage in stages]) * 1e6 or 1.0
    highest = max([stage.size for stage in stages]) or 1
    colours = _colours(stages)
    for stage, kernels, memory in zip(stages, panels[::2], panels[1::2], strict=True):
        _draw_kernels(kernels, stage, colours)
        _draw_memory(memory, stage, colours, highest)
        for axes in (kernels, memory):
            axes.set_xlim(0, X_RANGE * longest)
            axes.tick_params(labelsize=8)
        memory.tick_params(axis="x", pad=8, labelbottom=memory is panels[-1])
        memory.set_ylim(0, 1.04 * highest)
    panels[-1].set_xlabel("µs")
    _label(figure, stages, panels[1::2])
    return figure


def _colours(stages: list[Timeline]) -> dict[Buffer, str]:
    """Return a colour for each temporary, in the order in which they are made, the same in all stages."""
    from matplotlib.colors import to_hex, to_rgb

    buffers = dict.fromkeys([bar.buffer for stage in stages for bar in stage.bars])
    tints = [to_hex(tuple([1 - TINT * (1 - part) for part in to_rgb(colour)])) for colour in PALETTE[:7]]  # type: ignore[arg-type]
    return {buffer: tints[i % len(tints)] for i, buffer in enumerate(buffers)}


def _draw_kernels(axes: Any, stage: Timeline, colours: dict[Buffer, str]) -> None:
    """Draw a bar for each kernel, as wide as it takes, with its name above."""
    ends = np.cumsum(stage.seconds) * 1e6
    begins = ends - stage.seconds * 1e6
    fill_colours = [colours[b] if b is not None else NEUTRAL for b in stage.writes]
    axes.bar(begins, 1, ends - begins, align="edge", color=fill_colours, edgecolor="white", linewidth=0.6)
    axes.set(ylim=(0, 4.6), yticks=[], xticks=[])
    count, total = len(stage.calls), format_bytes(stage.size)
    kernels = f"{count:,} kernel{'s' * (count != 1)}"
    title = f"{stage.name}:  {kernels}, {ends[-1] if count else 0:.1f} µs, {total} of temporaries"
    axes.set_title(escape_tex(title), fontsize=10)


def _draw_memory(axes: Any, stage: Timeline, colours: dict[Buffer, str], highest: int) -> None:
    """Draw a bar for each temporary, from the first to the last kernel that uses it, at its place in memory."""
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import MaxNLocator

    ends = np.cumsum(stage.seconds) * 1e6
    begins = ends - stage.seconds * 1e6
    for bar in stage.bars:
        width = ends[bar.end] - begins[bar.begin]
        edge = 0.5 if bar.nbytes > MIN_OUTLINED * highest else 0
        options: Any = {"facecolor": colours[bar.buffer], "edgecolor": INK, "linewidth": edge}
        axes.add_patch(Rectangle((begins[bar.begin], bar.offset), width, bar.nbytes, **options))
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_formatter(lambda value, _: format_bytes(value).replace(".0 ", " "))


def _label(figure: Any, stages: list[Timeline], memories: Any) -> None:
    """Write names above kernels, and shapes into temporaries if there is room, when the sizes of all are known."""
    figure.draw_without_rendering()
    small = {"fontsize": 7, "color": INK, "in_layout": False}
    for stage, memory in zip(stages, memories, strict=True):
        kernels = figure.axes[figure.axes.index(memory) - 1]
        ends = np.cumsum(stage.seconds) * 1e6
        begins = ends - stage.seconds * 1e6
        middles = (begins + ends) / 2
        width = kernels.get_xlim()[1]
        labelled = np.sort(np.argsort(-stage.seconds, kind="stable")[:MAX_NAMES])
        for i, place in zip(
            labelled, spread_labels(middles[labelled], NAME_SPACING * width, width / 1.03), strict=True
        ):
            kernels.plot([middles[i], place], [1.02, 1.4], color=INK, linewidth=0.5)
            name = escape_tex(shorten(stage.calls[i], MAX_NAME_LENGTH))
            kernels.text(place, 1.5, name, rotation=NAME_ANGLE, rotation_mode="anchor", **small)
        for bar in stage.bars:
            x_left, x_right = begins[bar.begin], ends[bar.end]
            middle = (x_left + x_right) / 2, bar.offset + bar.nbytes / 2
            text = memory.text(*middle, escape_tex(bar.text), ha="center", va="center", **small)
            (x0, y0), (x1, y1) = memory.transData.transform([(x_left, 0), (x_right, bar.nbytes)])
            extent = text.get_window_extent()
            if extent.width + 4 > x1 - x0 or 1.3 * extent.height > y1 - y0:
                text.remove()


def spread_labels(places: np.ndarray, spacing: float, width: float) -> np.ndarray:
    """Places near the given ones, which are sorted, at least `spacing` from each other, or less if `width` has no room.

    Places that would be too near each other are moved apart, as a group, around their mean.
    """
    spacing = min(spacing, width / max(1, len(places)))
    groups: list[tuple[float, int]] = []  # the mean of place − i · apart, and how many
    for i, place in enumerate(places):
        mean, count = float(place) - i * spacing, 1
        while groups and groups[-1][0] > mean:
            left, n = groups.pop()
            mean, count = (left * n + mean * count) / (n + count), n + count
        groups.append((mean, count))
    positions = np.repeat([mean for mean, _ in groups], [count for _, count in groups]) if groups else np.empty(0)
    result: np.ndarray = np.clip(positions, 0, width - spacing * len(places)) + spacing * np.arange(len(places))
    return result
