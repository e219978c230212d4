"""Advice in a training: warnings of layers with nothing between them, of data that are not scaled, and of guessing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from caffelite._kernels import EpochHook
from caffelite._support.warnings import warn
from caffelite.core.function import Function
from caffelite.core.modes import inference
from caffelite.core.sparse import is_sparse
from caffelite.core.tensor import Tensor
from caffelite.data.generator import DataGenerator
from caffelite.data.out_of_core import Source
from caffelite.files.state import BaseModel
from caffelite.functions import Conv1d, Conv2d, Linear, ReLU, SigmoidLoss, SoftmaxLoss
from caffelite.functions.losses.base import unwrap_penalized
from caffelite.training.callbacks.base import LoopHook
from caffelite.training.history import History

LARGE = 30  # a number in x that a net of usual weights and learning rates may not bear
DEAD = 0.9  # share of the units; without scaling, half of them are often 0 in nets that learn
ROWS = 256  # to look at
WEIGHTED = (Linear, Conv1d, Conv2d)
MIN_STEPS, RISE = 50, 1.2  # of a training whose loss may be judged; a factor between losses that is not by chance


def accept_merged_layers(model: BaseModel) -> None:
    """Let the trainings of a model not warn of two linear layers in a row, because the user has asked for them."""
    model._model_state.programs.warned_reasons.update(find_merged_layers(model))


def find_merged_layers(model: BaseModel) -> Iterator[str]:
    """Yield a sentence about each two linear layers in a row, in the model and in the sequences in it."""
    for prefix, sequence in [("", model), *[(f"{path}.", part) for path, part in model._walk()]]:
        if isinstance(sequence, BaseModel) and sequence.is_sequence():
            functions = sequence.functions
            uses = Counter(map(id, functions))
            for i, (first, second) in enumerate(pairwise(functions)):
                if type(first) is type(second) and uses[id(first)] == uses[id(second)] == 1:
                    yield from describe_merged(type(first), f"{prefix}{i}", first, f"{prefix}{i + 1}", second)


def describe_merged(kind: type, first_name: str, first: Function, second_name: str, second: Function) -> Iterator[str]:
    """Yield a sentence about two Functions of a kind in a row if they are one layer, unless a reason is likely."""
    if layer := _merged_layer(kind, first, second):
        yield (
            f"Layers {first_name} and {second_name} are {kind.__name__}, with nothing between them: together they are "
            f"{layer}. Put ReLU() between them."
        )


def _merged_layer(kind: type, first: Any, second: Any) -> str:
    """Return the layer that two layers of a kind are together; "" if there is none, or a reason for two is likely.

    Likely reasons are a frozen layer, groups, and a window that is a row or a column. Few numbers between the two
    layers are a factorization: not every such layer is a product of two.
    """
    if kind not in WEIGHTED or not all(p.requires_grad for p in (*first.parameters(), *second.parameters())):
        return ""
    if kind is Linear:
        return "one Linear" if first.out_features >= min(first.in_features, second.out_features) else ""
    if first.groups > 1 or second.groups > 1:
        return ""
    width, before, after = first.out_channels, first.in_channels, second.out_channels
    if _window_size(second) == 1 and second.padding == (0,) * second.axes:
        return f"one {kind.__name__}" if width >= min(before * _window_size(first), after) else ""
    if min(first.kernel_size + second.kernel_size) > 1 and width >= min(before, after):
        return f"one {kind.__name__} with a larger window, except at the borders"
    return ""


def _window_size(convolution: Any) -> int:
    return math.prod(convolution.kernel_size)


class ScaleWarning(LoopHook):
    """Warns, after the first epoch, of large numbers in x if the model has died of them.

    It has died if all rows have the same outputs, or if nearly all units of a ReLU are 0 for all rows. Only sequences
    of caffelite's own layers are looked at, whose first weights get x itself, because a user's code may have effects.
    """

    def __init__(self, model: BaseModel, batches: Any) -> None:
        self.model, self.rows = model, _large_rows(model, batches)

    def next_python_epoch(self, done: int, epoch_hooks: list[EpochHook] | None) -> float:
        return math.inf if self.rows is None else done + 1

    def epoch(self, count: int, history: History) -> None:
        rows, self.rows = self.rows, None
        if rows is not None and (problem := _find_dead_layer(self.model.functions, rows)):
            warn(
                f"x reaches {abs(rows).max():.5g}, and after the first epoch {problem}: scale x, such as x / 255 for "
                "images or (x - x.mean(axis=0)) / x.std(axis=0) for columns, and train a new model"
            )


def _large_rows(model: BaseModel, batches: Any) -> np.ndarray | None:
    """Return some of the rows to train on, if they have large numbers and the model's first weights get these."""
    functions = model.functions if model.is_sequence() else []
    first = next((function for function in functions if function.parameters()), None)
    x = batches.x if isinstance(batches, DataGenerator) and not batches.transform else None
    if type(first) not in WEIGHTED or any(isinstance(f, BaseModel) or f.runs_in_python for f in functions):
        return None
    if x is None or isinstance(x, tuple | Source) or is_sparse(x) or x.dtype.kind not in "fiu":
        return None
    rows = np.asarray(x[:: max(1, len(x) // ROWS)][:ROWS], model.dtype)
    return rows if LARGE <= abs(rows).max() < np.inf and (rows != rows[:1]).any() else None


def _find_dead_layer(functions: list[Function], rows: np.ndarray) -> str:
    """Return what is dead for all these rows, as the middle of a sentence; "" if it is alive."""
    with inference():
        y: Any = Tensor(rows)
        for i, function in enumerate(functions):
            y = function(y)
            if isinstance(function, ReLU):
                units = (y.data != 0).any(axis=(0, *range(2, y.ndim)))
                if (share := 1 - units.mean()) >= DEAD:
                    return f"{share:.0%} of the units of layer {i} {function!r} are 0 for all rows"
    return "" if (y.data != y.data[:1]).any() else "all rows have the same outputs"


def warn_of_guessing(model: BaseModel, loss: Any, history: History, steps_per_epoch: int) -> None:
    """Warn if a long training ends with a loss that went up and down, clearly above that of guessing.

    The same score for all classes has the same loss, whatever the labels, their noise and their weights. A loss that
    only falls may still arrive.
    """
    losses, loss, last = history["loss"], unwrap_penalized(loss), model.functions[-1] if model.is_sequence() else None
    classes = 2 if type(loss) is SigmoidLoss and loss.pos_weight is None else 0
    if type(loss) is SoftmaxLoss and isinstance(last, Linear):
        classes = last.out_features
    is_long = len(losses) > 2 and steps_per_epoch * len(losses) >= MIN_STEPS
    has_risen = any(b > RISE * a for a, b in pairwise(losses))
    if classes and is_long and has_risen and min(losses[len(losses) // 2 :]) > RISE * math.log(classes):
        guess = f"the loss is {losses[-1]:.4g}; guessing would give {math.log(classes):.4g}"
        warn(f"{guess}: try a learning rate ten times smaller, and a new model")
