"""The numbers and small pictures of training for a page, read between two steps. Training does not change.

Each function returns a message, or None if there is nothing to show. It reads only data in memory: parameters,
gradients, and some rows of the data. `Model.predict` makes predictions. Units are inspected on a copy
(`caffelite.inspect`), and kernels are timed on a copy.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np

from caffelite._support.text_table import shorten
from caffelite.core.tensor import Tensor
from caffelite.data.conversion import as_inputs, as_targets, name_targets
from caffelite.data.generator import Batch, DataGenerator, unpack_single
from caffelite.functions import Conv2d, Linear
from caffelite.program import capture
from caffelite.visualize.inspection import inspect
from caffelite.visualize.regions import plane_extent, plane_points

POINTS = 400  # of the plane, at most
GRID = 72  # places along each side of the plane
ROWS, IMAGE_ROWS, TEXT_ROWS = 128, 32, 8  # that are inspected; images and texts have a unit at many places
CLASS_ROWS = 512  # rows of a confusion matrix
MAX_CLASSES = 32  # of a table
MAX_MISTAKES = 18  # mistakes
FILTERS = 64
MAX_PIXELS = 128  # pixels of an image
PARAMETERS = 100  # lines of the tables
MAX_MATRICES = 6  # parameters that are drawn
REPLAYS = 20  # of a step, to time its kernels


class TrainingView:
    """A training run, and the rows of its data that the pictures show.

    These are held-out rows if they are in memory, and otherwise training rows.
    """

    def __init__(self, training: Any) -> None:
        self.training = training
        self.model, self.loss, self.optimizer = training.model, training.loss, training.optimizer
        training_rows = _rows_in_memory(training.batches)
        held_out = _rows_in_memory(training.validation)
        self.is_held_out = held_out is not None
        self.rows = held_out or training_rows
        self.training_rows = training_rows
        self.place = 0  # the step at which the training is

    def sample_rows(self, max_rows: int, from_training: bool = False) -> tuple[Any, Any]:
        """Return at most this many rows of x and y, evenly spread."""
        generator = self.training_rows if from_training else self.rows
        assert generator is not None
        order = np.sort(generator._order)
        rows = order[np.linspace(0, len(order) - 1, min(max_rows, len(order))).astype(int)]
        x, y = generator.x, generator.y
        assert y is not None

        def take(data: Any) -> Any:
            return tuple([a[rows] for a in data]) if isinstance(data, tuple) else data[rows]

        return take(x), take(y)

    @property
    def x(self) -> np.ndarray | None:
        """The rows of the only input, if they are an array."""
        x = None if self.rows is None else self.rows.x
        return x if isinstance(x, np.ndarray) else None

    def classify(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the classes that a classifier decides for, and how sure it is, 0 … 1. None for other models."""
        if scores.ndim != 2 or self.rows is None or not isinstance(self.rows.y, np.ndarray):
            return None
        if not hasattr(self.loss, "link"):
            return None
        labels = self.rows.y.dtype.kind in "iu"
        if scores.shape[1] == 1:
            if type(self.loss).__name__ != "SigmoidLoss":
                return None
            p = np.asarray(self.loss.link(scores))[:, 0]
            return (p > 0.5).astype(np.uint8), np.maximum(p, 1 - p)
        if not labels or self.rows.y.ndim != 1 or scores.shape[1] > 255:
            return None
        p = np.asarray(self.loss.link(scores))
        sure = p.max(axis=1)
        if sure.min() < 0 or sure.max() > 1.0001:  # its scores have no probabilities, as with HingeLoss
            sure = np.ones(len(p))
        return scores.argmax(axis=1).astype(np.uint8), sure


def _rows_in_memory(batches: Any) -> DataGenerator | None:
    """Return the DataGenerator, if its rows are in memory and have targets."""
    generator = getattr(batches, "batches", batches)  # an object that accumulates batches has them
    if not isinstance(generator, DataGenerator) or generator.y is None or generator.blocks is not None:
        return None
    return generator


# ---- parameters and units -------------------------------------------------------------------------------------------


def layers(view: TrainingView) -> dict[str, Any]:
    """Return the size of each parameter and of its gradient, as the root of the mean square."""
    lr = None if view.optimizer is None else view.optimizer.lr
    rows = []
    parameters = view.model.named_parameters()
    labels = {p: label for label, p in label_matrices(view.model).items()}
    for name, p in [*parameters.items()][:PARAMETERS]:
        weight, gradient = _rms(p.data), _rms(p.grad)
        ratio = lr * gradient / weight if lr is not None and weight and not math.isnan(gradient) else math.nan
        rows.append(
            {
                "name": name,
                "label": labels.get(p),
                "shape": list(p.shape),
                "size": weight,
                "gradient": gradient,
                "ratio": ratio,
                "frozen": not p.requires_grad,
            }
        )
    return {"rows": rows, "left_out": max(0, len(parameters) - PARAMETERS)}


def label_matrices(model: Any) -> dict[str, Tensor]:
    """Return parameters with two or more axes by their layers, `0 Conv2d`: at most MAX_MATRICES, evenly spread."""
    matrices = [(name, p) for name, p in model.named_parameters().items() if len(p.shape) > 1]
    if len(matrices) > MAX_MATRICES:
        matrices = [matrices[i * (len(matrices) - 1) // (MAX_MATRICES - 1)] for i in range(MAX_MATRICES)]
    kinds, labels = {path: type(function).__name__ for path, function in model._walk()}, {}
    for name, p in matrices:
        path, _, own_name = name.rpartition(".")
        words = (path, kinds.get(path, ""), "" if own_name == "weight" else own_name)
        labels[" ".join(filter(None, words))] = p
    return labels


def _rms(array: Any) -> float:
    if not isinstance(array, np.ndarray) or array.size == 0:
        return math.nan
    flat = array.reshape(-1)
    with np.errstate(all="ignore"):
        return math.sqrt(np.einsum("i,i->", flat, flat) / flat.size)  # a BLAS may wake other threads


def num_inspected_rows(view: TrainingView) -> int:
    """Return how many rows `units` looks at."""
    x = None if view.training_rows is None else view.training_rows.x
    if not isinstance(x, np.ndarray):
        return ROWS
    return TEXT_ROWS if x.dtype.kind in "iu" and x.ndim > 1 else IMAGE_ROWS if x.ndim > 2 else ROWS


def units(view: TrainingView) -> dict[str, Any] | None:
    """Dead and saturated units, outputs and gradients layer by layer, on some rows of the training data."""
    if view.training_rows is None:
        return None
    x, y = view.sample_rows(num_inspected_rows(view), from_training=True)
    inspection = inspect(view.model, x, y, loss=view.loss)
    rows = [
        {
            "name": layer.name,
            "function": shorten(layer.function, 40),
            "mean": layer.output.mean,
            "std": layer.output.std,
            "zeros": layer.output.zeros,
            "dead": layer.dead,
            "units": layer.units,
            "saturated": layer.saturated,
            "gradient": None if layer.gradient is None else layer.gradient.norm,
            "counts": np.asarray(layer.output.counts, np.float32),
            "least": layer.output.min,
            "most": layer.output.max,
        }
        for layer in inspection.layers[:PARAMETERS]
    ]
    return {"rows": rows, "findings": inspection.findings, "of": inspection.rows}


# ---- the plane ------------------------------------------------------------------------------------------------------


def regions(view: TrainingView) -> dict[str, Any] | None:
    """Return the classes that the model decides for, or its predictions, over the plane; x has two columns."""
    x = view.x
    if x is None or x.ndim != 2 or x.shape[1] != 2 or not isinstance(view.rows.y, np.ndarray):  # type: ignore[union-attr]
        return None
    points, targets = view.sample_rows(POINTS)
    left, right, bottom, top = plane_extent(points.astype(float))
    grid = plane_points(np.linspace(left, right, GRID), np.linspace(bottom, top, GRID))
    scores = view.model.predict(grid.astype(view.model.dtype))
    at_points = view.model.predict(points)
    message: dict[str, Any] = {
        "extent": [left, right, bottom, top],
        "points": points.astype(np.float32),
        "held_out": view.is_held_out,
    }
    classified = view.classify(scores)
    if classified is not None:
        labels, sure = classified
        predicted, _ = view.classify(at_points)  # type: ignore[misc]
        true_labels = np.asarray(targets).reshape(-1).astype(np.int64)
        return message | {
            "classes": max(2, scores.shape[1]),
            "labels": labels.reshape(GRID, GRID),
            "sure": np.round(255 * sure).astype(np.uint8).reshape(GRID, GRID),
            "truth": true_labels,
            "wrong": (predicted != true_labels),
            "right": float((predicted == true_labels).mean()),
        }
    if scores.ndim != 2 or scores.shape[1] != 1 or np.asarray(targets).size != len(points):
        return None
    truth = np.asarray(targets, np.float32).reshape(-1)
    return message | {"values": scores.reshape(GRID, GRID).astype(np.float32), "truth": truth}


# ---- images ---------------------------------------------------------------------------------------------------------


def _image_shape(view: TrainingView) -> tuple[int, int, int] | None:
    """Channels, height and width, if x are images."""
    x = view.x
    if x is None or x.dtype.kind not in "fiub" or x.ndim not in (3, 4) or view.model.takes_indices is True:
        return None
    shape = (1, *x.shape[1:]) if x.ndim == 3 else x.shape[1:]
    return shape if shape[0] in (1, 3) and max(shape[1:]) <= MAX_PIXELS and min(shape[1:]) >= 4 else None


def filters(view: TrainingView) -> dict[str, Any] | None:
    """Return the filters of the first layer as images: of a convolution, or the weights of each unit of a Linear."""
    shape = _image_shape(view)
    if shape is None:
        return None
    for function in view.model.all_functions():
        if isinstance(function, Conv2d) and function.weight.shape[1] in (1, 3):
            values = function.weight.data[:FILTERS]
        elif isinstance(function, Linear) and function.weight.shape[0] == math.prod(shape):
            values = function.weight.data[:, :FILTERS].T.reshape(-1, *shape)
        elif isinstance(function, Conv2d | Linear):
            return None
        else:
            continue
        return {"of": repr(function), "filters": np.ascontiguousarray(np.moveaxis(values, 1, -1), np.float32)}
    return None


# ---- classes --------------------------------------------------------------------------------------------------------


def mistakes(view: TrainingView) -> dict[str, Any] | None:
    """Return how often each class is taken for which. For images, also return the mistakes, the surest first."""
    x, shape = view.x, _image_shape(view)
    if view.rows is None or (x is not None and x.ndim == 2 and x.shape[1] == 2):  # the plane shows it
        return None
    x, y = view.sample_rows(CLASS_ROWS)
    classified = view.classify(view.model.predict(x))
    if classified is None:
        return None
    truth = np.asarray(y).reshape(-1).astype(np.int64)
    counted = np.flatnonzero(truth >= 0)  # the loss may ignore negative labels
    truth, labels, sure = truth[counted], *[a[counted] for a in classified]
    if not len(truth):
        return None
    wrong = np.flatnonzero(labels != truth)
    message: dict[str, Any] = {"wrong": len(wrong), "of": len(truth), "held_out": view.is_held_out}
    if (classes := int(max(labels.max(), truth.max())) + 1) <= MAX_CLASSES:
        message["counts"] = np.bincount(truth * classes + labels, minlength=classes**2).reshape(classes, classes)
    if shape is None:
        return message
    shown = wrong[np.argsort(-sure[wrong], kind="stable")][:MAX_MISTAKES]
    images = x[counted[shown]].reshape(-1, *shape).astype(np.float32)
    low, high = (float(x.min()), float(x.max())) if x.size else (0.0, 1.0)
    pixels = np.clip(255 * (images - low) / ((high - low) or 1.0), 0, 255).astype(np.uint8)
    return message | {
        "images": np.ascontiguousarray(np.moveaxis(pixels, 1, -1)),
        "truth": truth[shown],
        "taken_for": labels[shown].astype(np.int64),
        "sure": sure[shown].astype(np.float32),
    }


# ---- kernels --------------------------------------------------------------------------------------------------------


def kernels(view: TrainingView) -> dict[str, Any]:
    """Return the time of each kernel of a step. A copy of the model makes the steps, on rows that are in memory."""
    assert view.training_rows is not None
    model, optimizer, loss = copy.deepcopy((view.model, view.optimizer, view.loss))
    x, y = view.sample_rows(view.training_rows.batch_size, from_training=True)
    inputs, _ = as_inputs(x, model.dtype, model.takes_indices, "x")
    batch = Batch(inputs, tuple([as_targets(a, model.dtype, name) for name, a in name_targets(y)]))

    def step(*columns: Any) -> None:
        optimizer.zero_grad()
        rows = batch.layout().batch(columns)
        loss(model(*rows.inputs), unpack_single(rows.targets)).backward()
        optimizer.step()

    program = capture(step, *batch.columns())
    *rows, total = program.profile(REPLAYS).cells[1:]
    times: dict[str, list[float]] = {}
    for name, _, microseconds, *_ in rows:
        times.setdefault(name, []).append(float(microseconds))
    by_time = sorted(times.items(), key=lambda item: -sum(item[1]))
    return {
        "names": [name for name, _ in by_time],
        "calls": [len(times) for _, times in by_time],
        "times": np.array([sum(times) for _, times in by_time]),
        "total": float(total[2]),
        "of": batch.rows,
    }
