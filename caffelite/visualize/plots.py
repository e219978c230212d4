"""Pictures of data, models and their mistakes. This needs the extra `plot`.

Every function returns the matplotlib figure: `cl.plots.weights(model).savefig("weights.png")`. It draws on `axes` if
you pass them, otherwise on a new figure, made without pyplot. So no global state changes, and no window opens.
`confusion_matrix`, `calibration` and `residuals` use scikit-learn's displays, and so need `pip install scikit-learn`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from caffelite._support.colours import INK, PALETTE, style
from caffelite._support.extras import pip_command
from caffelite._support.text_table import escape_tex, shorten
from caffelite.core.function import Function
from caffelite.core.modes import no_grad
from caffelite.functions import Conv2d
from caffelite.model.model import History, Model
from caffelite.visualize.animation import film as film
from caffelite.visualize.axes import make_axes, make_figure, style_axes
from caffelite.visualize.regions import TINT as TINT
from caffelite.visualize.regions import Plane

MAX_CHARACTERS = 48 * 20  # of a text next to curves
PIXELS = 500  # along the longer side of the regions
# Below 0, 0 and above: the hue shows the sign, and so does the lightness, for prints without colour.
SIGNED_COLOURS = ("#2D0060", "#777777", "#FFCF7A")


@style()
def decision_regions(model: Model, x: Any, y: Any, *, axes: Any = None) -> Any:
    """Draw points in the plane over the decision regions of a classifier.

    Each region has the tint of its class, paler where the softmax of the model's outputs is less certain. A line shows
    where two classes tie. Points have the colour of their label, and a dark ring if the model's prediction differs.

    x (n, 2) are points, and y (n,) integer labels: the columns of the model's outputs (n, classes). Raise ValueError
    for other shapes.
    """
    x, y = np.asarray(x), np.asarray(y)
    if x.ndim != 2 or x.shape[1] != 2 or y.shape != x.shape[:1] or len(x) == 0:
        raise ValueError(f"decision_regions takes points (n, 2) and labels (n,), got shapes {x.shape} and {y.shape}")
    axes = make_axes(4, 4) if axes is None else axes
    plane = Plane(x, PIXELS)
    plane.draw(axes, model.predict(plane.points), x, y, model.predict(x))
    return axes.figure


@style()
def mistakes(images: Any, labels: Any, predictions: Any, *, axes: Any = None) -> Any:
    """Draw every wrongly predicted image in a grid, with "label → prediction" below.

    images (n, height, width), or in colour (n, 3, height, width); labels (n,) and predictions (n,), numbers or names.
    Raise ValueError for other shapes.
    """
    images, labels, predictions = np.asarray(images), np.asarray(labels), np.asarray(predictions)
    is_image = images.ndim == 3 or (images.ndim == 4 and images.shape[1] == 3)
    if not is_image or not labels.shape == predictions.shape == images.shape[:1]:
        raise ValueError(
            "mistakes takes images (n, height, width) or (n, 3, height, width), labels (n,) and predictions (n,), "
            f"got shapes {images.shape}, {labels.shape} and {predictions.shape}"
        )
    axes = make_axes(4, 3.5) if axes is None else axes
    axes.set_axis_off()
    wrong = np.flatnonzero(predictions != labels)
    if len(wrong) == 0:
        axes.text(0.5, 0.5, "none", ha="center", va="center", color=INK, transform=axes.transAxes)
        return axes.figure
    # An image is one unit wide; its cell leaves a gap beside it and space for the caption below.
    height = images.shape[-2] / images.shape[-1]
    cell_width, cell_height = 1.2, height + 0.42

    box = axes.get_window_extent()

    def scale(columns: int) -> float:
        return max(columns * cell_width / box.width, math.ceil(len(wrong) / columns) * cell_height / box.height)

    columns = min(range(1, len(wrong) + 1), key=scale)  # the grid that makes the images largest
    rows = math.ceil(len(wrong) / columns)
    for cell, i in enumerate(wrong):
        left, top = cell % columns * cell_width, -(cell // columns) * cell_height
        extent = (left, left + 1, top - height, top)
        _draw_image(axes, images[i], extent)
        caption = escape_tex(f"{labels[i]} → {predictions[i]}")
        place = (left + 0.5, top - height - 0.06)
        axes.text(*place, caption, ha="center", va="top", fontsize=min(12, 46 / rows), color=INK)
    axes.set(xlim=(-0.1, columns * cell_width - 0.1), ylim=(-rows * cell_height, 0.1), aspect="equal", anchor="N")
    return axes.figure


@style()
def filters(convolution: Conv2d, image: Any, *, axes: Any = None) -> Any:
    """Draw an image next to a convolution's filters and their outputs for it.

    This is W[o, 0] above y[o]. Colours go from dark purple, for the largest magnitude below 0, through grey for 0 to
    orange.

    image (height, width). Raise ValueError for other shapes and for a convolution with several channels.
    """
    image = np.asarray(image)
    if image.ndim != 2 or convolution.in_channels != 1:
        raise ValueError(
            "filters takes an image (height, width) and a Conv2d of one channel, "
            f"got shape {image.shape} and {convolution!r}"
        )
    axes = make_axes(1.2 + 0.45 * convolution.out_channels, 1.2) if axes is None else axes
    with no_grad():
        outputs = convolution(image.astype(convolution.weight.dtype)[None, None]).numpy()[0]
    axes.set_axis_off()
    _draw_image(axes, image, (-1.6, -0.6, -1.6, -0.6))
    for column, weight_and_output in enumerate(zip(convolution.weight.data[:, 0], outputs, strict=True)):
        for row, values in enumerate(weight_and_output):
            left, top = 1.12 * column, -1.12 * row
            _draw_signed(axes, values, extent=(left, left + 1, top - 1, top))
    axes.set(xlim=(-1.7, 1.12 * len(outputs)), ylim=(-2.2, 0.1), aspect="equal")
    return axes.figure


@style()
def weights(function: Function) -> Any:
    """Draw the weights of a model, or any Function: its parameters with two or more axes, each in a panel.

    A matrix is drawn as it is. The weights of a convolution form a table of filters, input channels by output channels,
    or a square if there is one channel. Colours go from dark purple, for the largest magnitude below 0, through grey
    for 0 to orange. The title gives the largest magnitude.

    Raise ValueError if there are no such parameters.
    """
    matrices = {name: p.data for name, p in function.named_parameters().items() if p.ndim > 1}
    if not matrices:
        raise ValueError(f"weights: {function!r} has no parameters of two or more axes")
    columns = min(len(matrices), 4)
    rows = math.ceil(len(matrices) / columns)
    figure = make_figure(2.6 * columns, 2.6 * rows)
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes in panels.flat:
        axes.set_axis_off()
    for axes, (name, values) in zip(panels.flat, matrices.items(), strict=False):
        table = values if values.ndim == 2 else _tile_filters(values)
        _draw_signed(axes, table, aspect="auto" if values.ndim == 2 else "equal")
        axes.set_title(f"{escape_tex(name)} {values.shape}\n±{np.abs(values).max():.2g}", fontsize=9, color=INK)
    return figure


@style()
def confusion_matrix(labels: Any, predictions: Any, *, axes: Any = None) -> Any:
    """Draw how many rows of each label were predicted as each class.

    The picture is scikit-learn's ConfusionMatrixDisplay. labels (n,), and predictions (n,) such as
    `scores.argmax(axis=1)`. Raise ValueError for other shapes, ImportError without scikit-learn.
    """
    labels, predictions = _check_columns("confusion_matrix", "labels", labels, "predictions", predictions)
    display = _import_display("confusion_matrix", "metrics", "ConfusionMatrixDisplay")
    names = np.union1d(labels, predictions)
    classes = len(names)
    axes = make_axes(*(2 * [min(8, max(3, 0.4 * classes))])) if axes is None else axes
    display.from_predictions(
        labels,
        predictions,
        display_labels=[escape_tex(str(name)) for name in names],
        ax=axes,
        cmap="Blues",
        colorbar=False,
        include_values=classes <= 30,  # more can't be read
        text_kw={"fontsize": min(10, 150 / classes)},
        xticks_rotation="horizontal" if classes <= 20 else "vertical",
    )
    axes.grid(visible=False)
    return axes.figure


@style()
def calibration(labels: Any, probabilities: Any, *, axes: Any = None) -> Any:
    """Draw how often a classifier is right, over its probabilities.

    labels are (n,), and probabilities are (n,) for class 1 or (n, classes), such as `loss.link(scores)`. With (n,
    classes), the picture shows the probability of the predicted class (C. Guo et al., "On calibration of modern neural
    networks", ICML 2017). There are ten bins of equal width, drawn by scikit-learn's CalibrationDisplay.

    Raise ValueError for other shapes and for numbers outside 0 … 1, ImportError without scikit-learn.
    """
    labels, probabilities = np.asarray(labels), np.asarray(probabilities)
    if labels.ndim != 1 or probabilities.ndim not in (1, 2) or len(probabilities) != len(labels) or len(labels) == 0:
        raise ValueError(
            "calibration takes labels (n,) and probabilities (n,) or (n, classes), "
            f"got shapes {labels.shape} and {probabilities.shape}"
        )
    if not ((probabilities >= 0) & (probabilities <= 1)).all():
        raise ValueError("calibration takes probabilities in 0 … 1; loss.link(scores) makes them of scores")
    display = _import_display("calibration", "calibration", "CalibrationDisplay")
    axes = make_axes(4, 3.5) if axes is None else axes
    is_multiclass = probabilities.ndim == 2
    is_right = probabilities.argmax(axis=1) == labels if is_multiclass else labels
    confidence = probabilities.max(axis=1) if is_multiclass else probabilities
    display.from_predictions(is_right, confidence, n_bins=10, ax=axes, name="model", color=PALETTE[0], pos_label=1)
    axes.legend(loc="best")
    event = "the class decided for" if is_multiclass else "class 1"
    axes.set(xlabel=f"mean probability of {event}", ylabel=f"share of rows of {event}")
    return axes.figure


@style()
def residuals(targets: Any, predictions: Any, *, axes: Any = None) -> Any:
    """Draw target minus prediction over the prediction, for at most 1,000 points.

    targets and predictions are (n,) or (n, 1). The picture is scikit-learn's PredictionErrorDisplay. Raise ValueError
    for other shapes, ImportError without scikit-learn.
    """
    targets, predictions = (np.asarray(a) for a in (targets, predictions))
    targets, predictions = (a[:, 0] if a.shape[1:] == (1,) else a for a in (targets, predictions))
    targets, predictions = _check_columns("residuals", "targets", targets, "predictions", predictions)
    display = _import_display("residuals", "metrics", "PredictionErrorDisplay")
    axes = make_axes(4, 3.5) if axes is None else axes
    display.from_predictions(
        targets,
        predictions,
        kind="residual_vs_predicted",
        ax=axes,
        random_state=0,
        scatter_kwargs={"s": 12, "alpha": 0.6, "color": PALETTE[0]},
    )
    axes.set(xlabel="prediction", ylabel="target − prediction")
    return axes.figure


@style()
def text(characters: str, probabilities: Any, *, columns: int = 48, axes: Any = None) -> Any:
    """Draw a text in lines of `columns` characters, darker where it was less probable.

    The background of a character with probability p shows −log₂ p bits: white for 0 bits and darkest for 8 or more. `↵`
    is the end of a line, and `□` a character missing from the font. probabilities (n,) for n characters. Raise
    ValueError for other shapes.
    """
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.font_manager import findfont, get_font

    probabilities = np.asarray(probabilities)
    if probabilities.shape != (len(characters),) or len(characters) == 0:
        raise ValueError(
            f"plots.text takes probabilities of {len(characters)} characters, got shape {probabilities.shape}"
        )
    rows = math.ceil(len(characters) / columns)
    axes = make_axes(0.1 * columns, 0.2 * rows) if axes is None else axes
    bits = np.zeros(rows * columns)
    bits[: len(characters)] = -np.log2(np.maximum(probabilities, 2.0**-8))
    colours = LinearSegmentedColormap.from_list("bits", ["#FFFFFF", PALETTE[1]])
    ground = axes.imshow(
        bits.reshape(-1, columns), cmap=colours, vmin=0, vmax=8, aspect="auto", interpolation="nearest"
    )
    ground.set_gid("ground")  # in an SVG file: the letters are on it
    font = get_font(findfont("monospace"))
    box = axes.get_window_extent()
    size = 72 / axes.figure.dpi * min(1.5 * box.width / columns, 0.8 * box.height / rows)  # points
    for i, character in enumerate(characters):
        glyph = "↵" if character == "\n" else character if font.get_char_index(ord(character)) else "□"
        row, column = divmod(i, columns)
        axes.text(column, row, glyph, fontsize=size, family="monospace", ha="center", va="center", color=INK,
                  parse_math=False)  # fmt: skip
    axes.set_axis_off()
    return axes.figure


@style()
def spiral_picture(model: Model, history: History, x: Any, y: Any) -> Any:
    """Return a matplotlib Figure: `decision_regions`, and next to them the loss and the accuracy over the epochs.

    x (n, 2), y (n,) integer labels.
    """
    share = np.mean(model.predict(x).argmax(axis=1) == y)
    figure = make_figure(dpi=160)
    axes = _draw_curves_right(figure, history, f"{share:.1%} of {len(x):,} points right, the rest ringed")
    decision_regions(model, x, y, axes=axes)
    return figure


@style()
def digits_picture(history: History, images: Any, labels: Any, predictions: Any, convolution: Conv2d) -> Any:
    """Return a matplotlib Figure: `mistakes`, the loss and the accuracy over the epochs, and below them `filters`.

    images (n, height, width), labels (n,), predictions (n,); the convolution, which has one channel, is shown with the
    first wrong image, or the very first if none is wrong.
    """
    wrong = np.flatnonzero(np.asarray(predictions) != labels)
    title = f"{len(wrong):,} of {len(images):,} held-out images wrong (label → prediction)"
    figure = make_figure(dpi=160)
    above, below = figure.subfigures(2, 1, height_ratios=[1.9, 1])
    mistakes(images, labels, predictions, axes=_draw_curves_right(above, history, title))
    axes = below.subplots()
    axes.set_title("the filters of the first layer, and what they make of the image")
    filters(convolution, images[wrong[0] if len(wrong) else 0], axes=axes)
    return figure


@style()
def text_picture(history: History, characters: str, probabilities: Any) -> Any:
    """Return a matplotlib Figure: as much of `text` as fits, and next to it loss and accuracy over the epochs."""
    figure = make_figure(dpi=160)
    axes = _draw_curves_right(figure, history, "held-out text, the darker the less expected")
    text(characters[:MAX_CHARACTERS], probabilities[:MAX_CHARACTERS], axes=axes)
    return figure


@style()
def table_picture(
    history: History, truth: Any, predictions: Any, classes: Sequence[str] | None, importances: Mapping[str, float]
) -> Any:
    """Return a matplotlib Figure: predictions for held-out rows, curves over the epochs, and importances of columns.

    With classes, truth (n,) and predictions (n,) are labels, and the figure shows how many rows of each class were
    predicted as each class. Without classes they are values, and it plots one over the other. `importances` maps column
    names to numbers.
    """
    truth, predictions = _check_columns("table_picture", "truth", truth, "predictions", predictions)
    figure = make_figure(dpi=160)
    left, middle, right = figure.subfigures(1, 3, width_ratios=[1, 0.85, 0.85], wspace=0.03)
    axes = left.subplots()
    if classes is None:
        _draw_predictions(axes, truth, predictions)
    else:
        _draw_confusion(axes, truth, predictions, classes)
    _draw_curves(middle, history, "validation")
    _draw_importances(right.subplots(), importances, "R² lost" if classes is None else "log loss added")
    return figure


def _draw_confusion(axes: Any, labels: np.ndarray, predictions: np.ndarray, classes: Sequence[str]) -> None:
    """Draw how many rows of each class were predicted as each class, darker for a larger share of the row."""
    count = len(classes)
    counts = np.zeros((count, count), np.int64)
    np.add.at(counts, (labels, predictions), 1)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    for i, j in np.ndindex(counts.shape) if count <= 20 else ():  # more can't be read
        colour = "white" if shares[i, j] > 0.5 else INK
        axes.text(j, i, f"{counts[i, j]:,}", ha="center", va="center", fontsize=min(11, 90 / count), color=colour)
    names = [escape_tex(shorten(name, 18)) for name in classes]
    places = range(0, count, math.ceil(count / 20))
    are_long = count * max(map(len, names)) > 30  # together they are wider than the picture
    axes.set_xticks(places, [names[i] for i in places], rotation=90 if are_long else 0)
    axes.set_yticks(places, [names[i] for i in places])
    axes.set(xlabel="predicted", ylabel="true")
    right = (labels == predictions).mean()
    style_axes(axes, f"{right:.1%} of {len(labels):,} held-out rows right")


def _draw_predictions(axes: Any, truth: np.ndarray, predictions: np.ndarray) -> None:
    """Draw predictions over true values, one point per row. Points on the line are right."""
    shown_rows = np.linspace(0, len(truth) - 1, min(len(truth), 5000)).astype(int)
    all_values = np.concatenate([truth, predictions])
    ends = all_values.min(), all_values.max()
    axes.plot(ends, ends, color=INK, linewidth=1, zorder=1)
    axes.scatter(truth[shown_rows], predictions[shown_rows], s=12, alpha=0.6, color=PALETTE[0], linewidths=0)
    axes.set(xlabel="true", ylabel="predicted")
    style_axes(axes, f"{len(truth):,} held-out rows", grid="both")


def _draw_importances(axes: Any, importances: Mapping[str, float], what: str) -> None:
    """Draw bars for the columns that matter most."""
    top = sorted(importances.items(), key=lambda item: item[1])[-10:]
    axes.barh(range(len(top)), [x for _, x in top], color=PALETTE[0], height=0.6)
    axes.set_yticks(range(len(top)), [escape_tex(shorten(name, 18)) for name, _ in top])
    style_axes(axes, f"{what} if shuffled", grid="x", loc="right")  # above the names: it may be wider than the bars


def _draw_curves_right(figure: Any, history: History, title: str) -> Any:
    """Draw the loss and the accuracy on the right of a figure. Return the empty axes on its left, with a title."""
    left, right = figure.subfigures(1, 2, width_ratios=[0.8, 1], wspace=0.04)
    main = left.subplots()
    main.set_title(title)
    _draw_curves(right, history)
    return main


def _draw_curves(figure: Any, history: History, validation_label: str = "held out") -> None:
    """Draw the loss, and below it the first metric, over the epochs."""
    from matplotlib.ticker import LogLocator, NullLocator

    loss, metric = figure.subplots(2, 1, sharex=True)
    name = next(name for name in history if name != "loss")
    history.draw(loss, "loss")
    history.draw(metric, name)
    metric.margins(x=0.01)
    loss.set(xlabel="", yscale="log")
    low, high = loss.get_ylim()
    loss.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))  # more would overlap
    loss.yaxis.set_major_formatter("{x:g}")
    loss.yaxis.set_minor_locator(NullLocator())
    if "val_loss" in history:
        loss.legend(["training", validation_label])
    if name == "accuracy":
        metric.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")


def _import_display(what: str, module: str, name: str) -> Any:
    """Return a display class of scikit-learn."""
    try:
        return getattr(import_module(f"sklearn.{module}"), name)
    except ImportError:
        raise ImportError(f"plots.{what} is drawn by scikit-learn: {pip_command('scikit-learn')}") from None


def _check_columns(what: str, name_a: str, a: Any, name_b: str, b: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return two arrays with a number for each row. ValueError for other shapes."""
    a, b = np.asarray(a), np.asarray(b)
    if a.ndim != 1 or a.shape != b.shape or len(a) == 0:
        raise ValueError(f"plots.{what} takes {name_a} (n,) and {name_b} (n,), got shapes {a.shape} and {b.shape}")
    return a, b


def _draw_signed(axes: Any, values: np.ndarray, **options: Any) -> None:
    """Draw numbers as colours, with 0 in the middle."""
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("signed", SIGNED_COLOURS)
    largest = np.nanmax(np.abs(values)) or 1.0
    axes.imshow(values, cmap=colours, vmin=-largest, vmax=largest, interpolation="nearest", **options)


def _tile_filters(weights: np.ndarray) -> np.ndarray:
    """Return filters (outputs, inputs, …, width) as one image: inputs are rows, outputs columns, and gaps NaN."""
    width = weights.shape[-1]
    filters = weights.reshape(*weights.shape[:2], -1, width).swapaxes(0, 1)
    if len(filters) == 1:  # in a square
        columns = math.ceil(math.sqrt(filters.shape[1]))
        missing = -filters.shape[1] % columns
        filled = np.pad(filters[0], ((0, missing), (0, 0), (0, 0)), constant_values=np.nan)
        filters = filled.reshape(-1, columns, *filters.shape[2:])
    spaced = np.pad(filters, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=np.nan)
    rows, columns, height, width = spaced.shape
    return spaced.swapaxes(1, 2).reshape(rows * height, columns * width)[:-1, :-1]


def _draw_image(axes: Any, image: np.ndarray, extent: tuple[float, ...]) -> None:
    """Draw ink on paper a shade darker than the figure, or colours (3, height, width) from 0 to 1."""
    if image.ndim == 3:
        axes.figure.suppressComposite = True  # otherwise an SVG file has one image, and no id
        axes.imshow(np.clip(image, 0, 1).transpose(1, 2, 0), extent=extent, interpolation="nearest", gid="photo")
        return
    ink = image.max()
    axes.imshow(image, extent=extent, cmap="gray_r", vmin=-0.05 * ink, vmax=ink, interpolation="nearest")
