"""MLP: a multilayer perceptron."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from caffelite import functions
from caffelite._support.migration_hints import hint_arguments
from caffelite.core.arrays import check_positive_integer
from caffelite.core.function import Function
from caffelite.functions import Linear, ReLU
from caffelite.model.model import Model


@hint_arguments
def MLP(
    inputs: int,
    sizes: Iterable[int],
    activation: Callable[[], Function] = ReLU,
    *,
    seed: int | None = None,
    dtype: Any = np.float32,
) -> Model:
    """Return a multilayer perceptron: Linear layers with an activation between them, but not after the last.

    `MLP(2, [100, 3])` is `Model([Linear(2, 100), ReLU(), Linear(100, 3)])`.

    Parameters
    ----------
    inputs : int
        The number of features of a row.
    sizes : iterable of int
        The number of outputs of each layer. The last number is the model's.
    activation : class or callable without arguments that returns a Function
        Called once for each hidden layer, so that each has its own activation.
    seed, dtype
        As in `Model`.

    Raise TypeError or ValueError if a size is not a positive integer, if there are no sizes, and for other activations.
    """
    if not isinstance(sizes, Iterable):
        raise TypeError(f"MLP takes the sizes of its layers in a list, MLP(2, [100, 3]), got {sizes!r}")
    expected = f"MLP: activation must be a class or a callable that makes a Function, got {activation!r}"
    if isinstance(activation, Function) or not callable(activation):
        raise TypeError(expected + _class_hint(activation))
    inputs = check_positive_integer("MLP: inputs", inputs)
    sizes = [check_positive_integer(f"MLP: sizes[{i}]", size) for i, size in enumerate(sizes)]
    if not sizes:
        raise ValueError("MLP needs the size of at least one layer, got none")
    model = Model([Linear(inputs, sizes[0])], seed=seed, dtype=dtype)
    for in_features, size in pairwise(sizes):
        try:
            function = activation()
        except TypeError as error:
            raise TypeError(f"{expected}: {error}{_class_hint(activation)}") from error
        if not isinstance(function, Function):
            raise TypeError(f"MLP: activation must make a Function, {activation!r} returned {function!r}")
        model.add(function).add(Linear(in_features, size))
    return model


def _class_hint(activation: Any) -> str:
    """Return which class to give instead of a name, a function or a Function; "" if caffelite has none."""
    name = activation if isinstance(activation, str) else getattr(activation, "__name__", type(activation).__name__)
    classes = {kind.lower(): kind for kind in functions.__all__ if isinstance(getattr(functions, kind), type)}
    kind = classes.get(name.replace("_", "").lower())
    return f"; give the class: activation=cl.{kind}" if kind else ""
