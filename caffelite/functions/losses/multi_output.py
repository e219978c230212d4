"""Losses for a model with several outputs: one loss for each output and its target."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import as_real, check_nonnegative
from caffelite.core.function import Function, Shape
from caffelite.functions.losses.base import Loss, Penalized
from caffelite.functions.losses.function_loss import as_loss

__all__ = ["Losses"]


class WeightedSum(Function, recordable=True):
    """y = Σ wᵢ xᵢ,  dxᵢ = wᵢ dy, for inputs xᵢ of one shape and numbers wᵢ. y has the dtype of the first input."""

    def __init__(self, weights: Iterable[float]) -> None:
        self.weights = tuple(weights)

    def forward(self, *inputs: np.ndarray) -> np.ndarray:
        arrays = [as_real(x, None, self) for x in inputs]
        self.dtypes = [x.dtype for x in arrays]
        terms = [_scale(as_real(x, self.dtypes[0], self), w) for x, w in zip(arrays, self.weights, strict=True)]
        return functools.reduce(kernels.add, terms)

    def backward(self, dy: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple([as_real(_scale(dy, w), dtype, self) for w, dtype in zip(self.weights, self.dtypes, strict=True)])

    def __repr__(self) -> str:
        return f"WeightedSum({list(self.weights)})"


def _scale(x: np.ndarray, weight: float) -> np.ndarray:
    return x if weight == 1 else kernels.multiply(x, weight)


class Losses(Function, recordable=True):
    """A multi-task loss, one loss for each output and its target:  y = Σ wᵢ lᵢ(outputᵢ, targetᵢ),  doutputᵢ = wᵢ dlᵢ.

    Parameters
    ----------
    losses : list of Functions or callables (outputs, targets) -> Tensor
        One for each output. If the rows have weights, each loss gets them.
    weights : list of numbers, optional
        The weight wᵢ of each loss in the sum: 0 or more, 1 by default.

    `fit` also measures each loss: besides `loss`, the history has `loss_0`, `loss_1`, …, which are not weighted. The
    model returns a tuple of outputs, and y is a tuple of targets. A penalty belongs to one of the losses:
    `Losses([Penalized(l1, …), l2])`.

    Raise TypeError for anything but losses. Raise ValueError if there are no losses, or if the weights are too few, too
    many, negative or not finite. `forward` raises ValueError if the number of outputs or targets is wrong. Errors of a
    loss name its target, such as `y[1]`.
    """

    value: np.ndarray | None = None  # the sum
    not_recorded = frozenset({"_copies"})
    _instances: ClassVar[WeakValueDictionary[tuple[int, ...], Losses]] = WeakValueDictionary()

    def __init__(self, losses: Iterable[Any], weights: Iterable[float] | None = None) -> None:
        if isinstance(losses, Function | str) or not isinstance(losses, Iterable):
            raise TypeError(f"Losses takes a list of losses, one for each output, got {losses!r}")
        self.losses = tuple([as_loss(loss) for loss in losses])
        if not self.losses:
            raise ValueError("Losses got no losses; expected one for each output")
        values = [1.0] * len(self.losses) if weights is None else list(weights)
        if len(values) != len(self.losses):
            raise ValueError(f"Losses: expected a weight for each of {len(self.losses)} losses, got {values}")
        self.total = WeightedSum(
            [check_nonnegative(f"Losses: the weight of loss {i}", w) for i, w in enumerate(values)]
        )

    @classmethod
    def get_cached(cls, losses: Sequence[Any]) -> Losses:
        """Return the sum of these losses, always the same object, so that its recorded steps can be reused."""
        key = tuple(map(id, losses))
        instance = cls._instances.get(key)
        if instance is None:
            instance = cls._instances[key] = cls(losses)
        return instance

    @property
    def weights(self) -> tuple[float, ...]:
        """The weight of each loss in the sum."""
        return self.total.weights

    def pair(self, outputs: Any, targets: Any) -> list[tuple[Function, Any, Any]]:
        """Return each loss with its output and its target. Raise ValueError unless there are as many of each."""
        tuples = [x if isinstance(x, tuple) else (x,) for x in (outputs, targets)]
        if {len(self.losses)} != set(map(len, tuples)):
            raise ValueError(
                f"{_pluralize(tuples[1], 'target', 's')} in y, {_pluralize(tuples[0], 'output', 's')} of the model and "
                f"{_pluralize(self.losses, 'loss', 'es')}: expected as many of each, targets and losses in tuples"
            )
        return list(zip(self.losses, *tuples, strict=True))

    def rows(self, outputs: Any, targets: Any) -> np.ndarray:
        """Return the loss of each row, (n,): the weighted sum of the losses of its outputs."""
        row_losses = [loss.rows(scores, y) for loss, scores, y in self.pair(outputs, targets)]  # type: ignore[attr-defined]
        total: np.ndarray = self.total.copy().forward(*row_losses)
        return total

    def check_targets(self, targets: Any, scores_shape: Any) -> None:
        """Raise unless these targets fit outputs of these shapes. A target of None is not known yet.

        A Function with several outputs may know only one shape. Then `forward` checks the shapes.
        """
        count, is_known = len(self.losses), any(isinstance(shape, tuple) for shape in scores_shape)
        shapes = scores_shape if is_known else (scores_shape,) * count
        for i, (loss, shape, y) in enumerate(self.pair(shapes, targets)):
            if y is not None and hasattr(loss, "check_targets") and (is_known or count == 1):
                with _name_target_in_errors(i, loss):
                    loss.check_targets(y, shape)

    def output_shape(self, *input_shapes: Shape) -> Shape:
        return ()

    def forward(self, outputs: Any, targets: Any, *weights: Any) -> np.ndarray:
        self.value, pairs = None, self.pair(outputs, targets)
        self._copies = [loss.copy() for loss in self.losses]  # one loss may occur twice
        values = []
        for i, (loss, (_, scores, y)) in enumerate(zip(self._copies, pairs, strict=True)):
            with _name_target_in_errors(i, loss):
                values.append(loss.forward(scores, y, *weights))
        self.is_tuple, self.value = isinstance(outputs, tuple), self.total.forward(*values)
        return self.value

    def backward(self, dy: Any = 1.0) -> Any:
        if self.value is None:
            raise RuntimeError("Losses.backward needs a `forward` before it that succeeded")
        if isinstance(dy, int | float | np.generic):
            dy = kernels.full((), dy, self.value.dtype)
        gradients = [loss.backward(d) for loss, d in zip(self._copies, self.total.backward(dy), strict=True)]
        return tuple(gradients) if self.is_tuple else gradients[0]

    def __repr__(self) -> str:
        weights = "" if set(self.weights) == {1.0} else f", weights={list(self.weights)}"
        return f"Losses([{', '.join(map(repr, self.losses))}]{weights})"


def _pluralize(items: Sequence[Any], noun: str, plural: str) -> str:
    return f"{len(items)} {noun}{'' if len(items) == 1 else plural}"


@contextmanager
def _name_target_in_errors(i: int, loss: Function) -> Iterator[None]:
    """Name the target in the errors of caffelite's losses. Errors of a user's loss are raised as they are."""
    try:
        yield
    except (ValueError, TypeError) as error:
        if not isinstance(loss, Loss | Penalized):
            raise
        cls = ValueError if isinstance(error, ValueError) else TypeError
        raise cls(f"y[{i}]: {error}") from None
