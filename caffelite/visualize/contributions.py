"""Pictures of an Explanation: how columns contribute, in one row, in all rows, and over a column's values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from caffelite._support.colours import FAINT, INK, PALETTE, style
from caffelite._support.text_table import escape_tex, shorten
from caffelite.visualize.axes import make_axes, style_axes

MAX_COLUMNS = 12  # in a picture; the others are added up or left out
MAX_WORDS = 20  # on an axis
MAX_POINTS = 2000  # rows in a picture
RISE, FALL = PALETTE[4], PALETTE[0]  # contributions above and below 0
LOW, MIDDLE, HIGH = PALETTE[0], "#BBBBBB", PALETTE[4]
UNKNOWN = "#888888"  # words, dates and missing values


@style()
def waterfall(
    labels: Sequence[str],
    values: np.ndarray,
    errors: np.ndarray,
    base: float,
    output: float,
    what: str,
    axes: Any = None,
) -> Any:
    """Draw bars from the base, at the bottom, to the output. The columns with the largest contributions are at the top.

    labels, values and errors are (columns,). `what` names the output.
    """
    order = np.argsort(-np.abs(values), kind="stable")
    if len(order) > MAX_COLUMNS:
        shown, rest = order[: MAX_COLUMNS - 1], order[MAX_COLUMNS - 1 :]
        labels = [*(labels[i] for i in shown), f"{len(rest)} other columns"]
        values, errors = np.append(values[shown], values[rest].sum()), np.append(errors[shown], 0.0)
    else:
        labels, values, errors = [labels[i] for i in order], values[order], errors[order]
    axes = make_axes(7, 1.3 + 0.36 * len(labels)) if axes is None else axes
    ends = output - np.concatenate([[0.0], np.cumsum(values)[:-1]])  # for each bar, from the top
    starts = ends - values
    places = np.arange(len(values))[::-1]
    colours = [RISE if value > 0 else FALL for value in values]
    axes.barh(places, values, left=starts, height=0.62, color=colours)
    has_error = errors > 0
    axes.errorbar(ends[has_error], places[has_error], xerr=2 * errors[has_error], fmt="none", ecolor=INK, elinewidth=1)
    for place, start in zip(places[:-1], starts[:-1], strict=True):  # the next bar ends here
        axes.plot([start, start], [place - 1.31, place + 0.31], color=UNKNOWN, linewidth=0.8)
    low, high = min(starts.min(), ends.min()), max(starts.max(), ends.max())
    span = (high - low) or 1.0
    digits = max(0, 2 - math.floor(math.log10(span)))
    for place, start, end, value, error in zip(places, starts, ends, values, errors, strict=True):
        right = max(start, end, end + 2 * error) + 0.015 * span
        axes.text(right, place, _format_change(value, digits), va="center")
    axes.axvline(base, color=UNKNOWN, linewidth=0.8, linestyle=":", zorder=0)
    axes.set_yticks(places, [escape_tex(shorten(label, 36)) for label in labels])
    axes.set(xlim=(low - 0.06 * span, high + 0.17 * span), ylim=(-0.7, len(values) - 0.3), xlabel=escape_tex(what))
    style_axes(axes, escape_tex(f"{what}: {output:,.{digits}f}; on average {base:,.{digits}f}"), grid="x")
    return axes.figure


def _format_change(value: float, digits: int) -> str:
    """Return a number with its sign, or 0 without one."""
    return f"{value:+,.{digits}f}".replace("-", "−") if round(value, digits) else "0"


@style()
def beeswarm(names: Sequence[Any], values: np.ndarray, ranks: np.ndarray, what: str, axes: Any = None) -> Any:
    """Draw a line of points for each column. Points that would overlap are moved up or down.

    values and ranks are (n, columns). A rank in 0 … 1 gives the colour, and NaN is grey.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap

    order = np.argsort(-np.abs(values).mean(axis=0), kind="stable")[:MAX_COLUMNS]
    axes = make_axes(7, 1.3 + 0.36 * len(order)) if axes is None else axes
    colours = LinearSegmentedColormap.from_list("values", [LOW, MIDDLE, HIGH]).with_extremes(bad=UNKNOWN)
    rows = np.linspace(0, len(values) - 1, min(len(values), MAX_POINTS)).astype(int)
    span = np.ptp(values[:, order]) or 1.0
    axes.axvline(0, color=UNKNOWN, linewidth=0.8, zorder=0)
    for place, column in zip(range(len(order))[::-1], order, strict=True):
        x = values[rows, column]
        y = place + spread_points(x, 0.012 * span, 0.38)
        axes.scatter(x, y, c=colours(ranks[rows, column]), s=9, linewidths=0)
    axes.set_yticks(range(len(order))[::-1], [escape_tex(shorten(str(names[i]), 32)) for i in order])
    axes.set(ylim=(-0.7, len(order) - 0.3), xlabel=escape_tex(f"contribution to {what}"))
    if not np.isnan(ranks[:, order]).all():
        bar = axes.figure.colorbar(ScalarMappable(cmap=colours), ax=axes, ticks=[0, 1], aspect=30, pad=0.02)
        bar.ax.set_yticklabels(["low", "high"])
        bar.set_label("value", labelpad=-12)
        bar.outline.set_visible(False)
    has_words = np.isnan(ranks[:, order]).all(axis=0).any()
    style_axes(axes, f"{len(values):,} rows, a point each{'; words are grey' if has_words else ''}", grid="x")
    return axes.figure


def spread_points(x: np.ndarray, width: float, height: float) -> np.ndarray:
    """Return offsets (n,) within ±height for points at x, so that points closer than a width do not overlap."""
    bins = np.floor(x / width).astype(np.int64)
    order = np.argsort(bins, kind="stable")
    _, starts, counts = np.unique(bins[order], return_index=True, return_counts=True)
    index = np.empty(len(x), np.int64)
    index[order] = np.arange(len(x)) - np.repeat(starts, counts)
    levels = (index + 1) // 2 * np.where(index % 2, 1, -1)  # 0, 1, −1, 2, −2 …
    return levels * min(0.06, height / max(1, int(np.abs(levels).max(initial=0))))


@style()
def class_bars(names: Sequence[Any], means: np.ndarray, classes: Sequence[Any], axes: Any = None) -> Any:
    """Draw the mean size of the contributions to each class, one bar per column. means (columns, classes)."""
    order = np.argsort(-means.sum(axis=1), kind="stable")[:MAX_COLUMNS]
    axes = make_axes(7, 1.3 + 0.36 * len(order)) if axes is None else axes
    places, left = np.arange(len(order))[::-1], np.zeros(len(order))
    shown = range(min(len(classes), len(PALETTE) - 1))
    for i in shown:
        widths = means[order, i]
        axes.barh(
            places, widths, left=left, height=0.62, color=PALETTE[i], label=escape_tex(shorten(str(classes[i]), 24))
        )
        left += widths
    if len(classes) > len(shown):
        rest = means[order, len(shown) :].sum(axis=1)
        label = f"{len(classes) - len(shown)} other classes"
        axes.barh(places, rest, left=left, height=0.62, color=FAINT, label=label)
    axes.set_yticks(places, [escape_tex(shorten(str(names[i]), 32)) for i in order])
    axes.legend(loc="lower right")
    axes.set(xlabel="mean size of the contributions to the probability of each class")
    style_axes(axes, "what matters, by class", grid="x")
    return axes.figure


@style()
def dependence(data: np.ndarray, values: np.ndarray, name: str, what: str, axes: Any = None) -> Any:
    """Draw contributions (n,) over the values of a column, (n,) numbers, dates or words. None and NaN are missing."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    axes = make_axes(5.5, 3.8) if axes is None else axes
    axes.axhline(0, color=UNKNOWN, linewidth=0.8, zorder=0)
    if data.dtype == object:
        words, counts = np.unique([x for x in data if x is not None], return_counts=True)
        words = words[np.argsort(-counts, kind="stable")[:MAX_WORDS]].tolist()
        ticks = [*words, *([None] if any(x is None for x in data) else [])]
        for place, word in enumerate(ticks):
            y = values[[x == word if word is not None else x is None for x in data]]
            axes.scatter(
                place + spread_points(y, 0.012 * (np.ptp(values) or 1.0), 0.32), y, s=9, color=FALL, linewidths=0
            )
        labels = ["missing" if word is None else escape_tex(shorten(str(word), 14)) for word in ticks]
        axes.set_xticks(range(len(ticks)), labels, rotation=90 if len(ticks) > 5 else 0)
    else:
        is_missing = np.isnat(data) if data.dtype.kind == "M" else np.isnan(data)
        if data.dtype.kind == "M":
            locator = AutoDateLocator(minticks=3, maxticks=6)
            axes.xaxis.set_major_locator(locator)
            axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
        axes.scatter(data[~is_missing], values[~is_missing], s=9, color=FALL, linewidths=0)
        if is_missing.any():  # at the right edge, because their position is unknown
            edge = {"transform": axes.get_yaxis_transform()}
            axes.scatter(np.full(is_missing.sum(), 0.985), values[is_missing], s=9, color=RISE, linewidths=0, **edge)
            axes.set_title("missing", fontsize=9, color=RISE, loc="right")
    axes.set(xlabel=escape_tex(name), ylabel=escape_tex(f"contribution to {what}"))
    style_axes(axes, escape_tex(f"{len(values):,} rows"), grid="both")
    return axes.figure
