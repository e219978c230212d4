"""Follow one number: a weight, its gradient by the chain rule with the numbers put in, and by central difference."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

import caffelite as cl
from caffelite.core.function import Function
from caffelite.core.tensor import Tensor
from caffelite.functions import BatchNorm, Dropout, Linear
from caffelite.model.model import Model
from caffelite.web.playground.config import Setting

EPSILON = 1e-4  # by which the weight is moved, up and down
ROWS = 3  # with their numbers on the page


def explain_weight(
    model: Model, setting: Setting, x: np.ndarray, y: np.ndarray, place: tuple[int, int, int]
) -> dict[str, Any]:
    """Explain the weight at `place`, (layer, from, to), of a model of the playground, for all points x (n, 2) and y.

    It computes with a copy in float64, without dropout, and with the running moments of a BatchNorm. The gradient of
    the mean loss is the mean of h δ over the points. h is the output of the unit before the weight. δ is the gradient
    of a point's loss for the sum that the weight's product goes into. Raise ValueError if there is no such weight.
    """
    layer, source, target = place
    linear = [f for f in model.functions if isinstance(f, Linear)]
    f = linear[layer] if 0 <= layer < len(linear) else None
    if f is None or not (0 <= source < f.in_features and 0 <= target < f.out_features):
        raise ValueError(f"there is no weight {place}")
    exact = _copy_to_float64(model)
    exact_linear = [g for g in exact.functions if isinstance(g, Linear)][layer]
    loss = getattr(cl, setting.loss)()
    inputs, deltas = _input_and_delta(exact, exact_linear, loss, x, y, source, target)
    return {
        "place": list(place),
        "value": float(f.weight.data[source, target]),
        "loss": loss(_apply(exact.functions, Tensor(x, dtype=np.float64)), y).item(),
        "gradient": float((inputs * deltas).mean()),
        "difference": _central_difference(exact, exact_linear, loss, x, y, (source, target)),
        "epsilon": EPSILON,
        "rows": [
            {"x": x[i].tolist() if setting.is_plane else None, "h": h, "delta": delta, "product": h * delta}
            for i, (h, delta) in enumerate(zip(inputs[:ROWS], deltas[:ROWS], strict=True))
        ],
        "points": len(x),
    }


def _copy_to_float64(model: Model) -> Model:
    """Return a copy of a model that computes in float64, as it is used and not trained."""
    copied = Model([copy.deepcopy(f) for f in model.functions if not isinstance(f, Dropout)], dtype=np.float64)
    for f in copied.functions:
        if isinstance(f, BatchNorm):  # frozen, it takes its running moments
            f.requires_grad = False
    return copied


def _input_and_delta(
    model: Model, f: Linear, loss: Any, x: np.ndarray, y: np.ndarray, source: int, target: int
) -> tuple[np.ndarray, np.ndarray]:
    """For each point h, the output of the unit before the weight, and δ, the gradient of its loss by the sum after it.

    The loss is a mean over n points. So its derivative with respect to the sum of one point is δ / n.
    """
    place = model.functions.index(f)
    h = _apply(model.functions[:place], Tensor(x, dtype=np.float64)).numpy()
    assert f.bias is not None
    sums = Tensor(h @ f.weight.data + f.bias.data, requires_grad=True, dtype=np.float64)
    loss(_apply(model.functions[place + 1 :], sums), y).backward()
    assert sums.grad is not None
    return h[:, source], sums.grad[:, target] * len(x)


def _central_difference(
    model: Model, f: Linear, loss: Any, x: np.ndarray, y: np.ndarray, place: tuple[int, int]
) -> float:
    """(L(w + ε) − L(w − ε)) / 2ε."""
    weight, losses = f.weight.data.copy(), []
    for sign in (1, -1):
        shifted = weight.copy()
        shifted[place] += sign * EPSILON
        f.weight.data = shifted
        losses.append(loss(_apply(model.functions, Tensor(x, dtype=np.float64)), y).item())
    f.weight.data = weight
    return (losses[0] - losses[1]) / (2 * EPSILON)


def _apply(functions: list[Function], x: Tensor) -> Tensor:
    for f in functions:
        x = f(x)
    return x
