"""The formulas of common Functions with the numbers of one row put in, forward and back.

A formula is its text and its result: `("0.5 · 2 + 1", "2")`. There is one for each number of the output, or on the way
back for each number of the input. Functions that are not here have none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from caffelite import functions as f
from caffelite.core.function import Function

Formulas = list[tuple[str, str]]
FEW = 4  # numbers of an input or an output


def number(x: Any) -> str:
    """A number with three digits: `−0.25`, `1.2e−5`. Labels and bools as they are."""
    if isinstance(x, float):
        digits = f"{x + 0.0:.3g}"  # + 0 makes 0 of −0
        return digits.replace("e-0", "e-").replace("e+0", "e").replace("e+", "e").replace("-", "−")
    return str(x).replace("-", "−")


def forward(function: Function, inputs: Sequence[Any], output: np.ndarray) -> Formulas:
    """The formulas of a Function's output; [] if there are too many numbers, or no formulas for this class."""
    formula = _found(FORWARD, function)
    if formula is None or not _are_few([*inputs, output]):
        return []
    return _with(formula(function, inputs), output)


def back(function: Function, inputs: Sequence[Any], output: np.ndarray, dy: np.ndarray) -> Formulas:
    """The formulas of the gradient of a Function's input; [] if there are too many numbers, or no formulas."""
    formula = _found(BACK, function)
    if formula is None or not _are_few([*inputs, output]):
        return []
    texts, dx = formula(function, inputs, output, dy)
    return _with(texts, dx)


def _found(table: dict[type, Any], function: Function) -> Callable[..., Any] | None:
    """The entry of a table for a Function's class. A subclass has no entry, because it may compute anything."""
    return table.get(type(function))


def _are_few(arrays: Sequence[Any]) -> bool:
    return all(isinstance(a, np.ndarray) and 0 < a.size <= FEW for a in arrays)


def _with(texts: list[str], results: Any) -> Formulas:
    values = [number(x) for x in np.asarray(results).reshape(-1).tolist()]
    return list(zip(texts, values, strict=True)) if len(texts) == len(values) else []


def _numbers(array: np.ndarray) -> list[str]:
    return [number(x) for x in array.reshape(-1).tolist()]


def _sum(terms: list[str]) -> str:
    """Terms with their signs between them: `a + b − c`."""
    return " + ".join(terms).replace("+ −", "− ") if terms else "0"


# ---- forward --------------------------------------------------------------------------------------------------------


def _linear(function: Any, inputs: Sequence[np.ndarray]) -> list[str]:
    weight, bias = function.weight.data, function.bias
    texts = []
    for j in range(weight.shape[1]):
        terms = [f"{x} · {_bracketed(w)}" for x, w in zip(_numbers(inputs[0]), _numbers(weight[:, j]), strict=True)]
        texts.append(_sum([*terms, *([] if bias is None else [_numbers(bias.data)[j]])]))
    return texts


def _of_two(sign: str) -> Callable[..., list[str]]:
    def texts(_function: Any, inputs: Sequence[np.ndarray]) -> list[str]:
        a, b = np.broadcast_arrays(*inputs)
        return [f"{x} {sign} {_bracketed(y)}" for x, y in zip(_numbers(a), _numbers(b), strict=True)]

    return texts


def _bracketed(text: str) -> str:
    return f"({text})" if text.startswith("−") else text


def _of_one(form: str) -> Callable[..., list[str]]:
    return lambda _function, inputs: [form.format(x) for x in _numbers(inputs[0])]


def _softmax(function: Any, inputs: Sequence[np.ndarray]) -> list[str]:
    if function.axis not in (-1, inputs[0].ndim - 1):
        return []
    powers = [f"e^{x}" for x in _numbers(inputs[0])]
    return [f"{power} / ({' + '.join(powers)})" for power in powers]


def _total(function: Any, inputs: Sequence[np.ndarray]) -> list[str]:
    terms = _sum(_numbers(inputs[0]))
    return [f"({terms}) / {inputs[0].size}" if type(function) is f.Mean else terms]


def _pointwise(form: str) -> Callable[..., list[str]]:
    def texts(_function: Any, inputs: Sequence[np.ndarray]) -> list[str]:
        scores, targets = (_numbers(a) for a in inputs[:2])
        terms = [form.format(p, _bracketed(t)) for p, t in zip(scores, targets, strict=True)]
        return [terms[0] if len(terms) == 1 else f"({' + '.join(terms)}) / {len(terms)}"]

    return texts


def _softmax_loss(function: Any, inputs: Sequence[np.ndarray]) -> list[str]:
    scores, labels = inputs[:2]
    if not _is_plain(function, labels):
        return []
    powers = [f"e^{x}" for x in _numbers(scores)]
    return [f"−log({powers[int(labels.item())]} / ({' + '.join(powers)}))"]


def _sigmoid_loss(function: Any, inputs: Sequence[np.ndarray]) -> list[str]:
    score, target = inputs[:2]
    if function.pos_weight is not None or score.size != 1 or target.item() not in (0, 1):
        return []
    probability = f"1 / (1 + e^{_numbers(-score)[0]})"
    return [f"−log({probability})" if target.item() == 1 else f"−log(1 − {probability})"]


def _is_plain(loss: Any, labels: np.ndarray) -> bool:
    """Whether a SoftmaxLoss has one label, and no option that changes the formula."""
    return labels.size == 1 and labels.dtype.kind in "iu" and not loss.label_smoothing and loss.ignore is None


FORWARD: dict[type, Callable[..., list[str]]] = {
    f.Linear: _linear,
    f.Add: _of_two("+"),
    f.Subtract: _of_two("−"),
    f.Multiply: _of_two("·"),
    f.Divide: _of_two("/"),
    f.ReLU: _of_one("max({}, 0)"),
    f.Tanh: _of_one("tanh({})"),
    f.Sigmoid: lambda _, inputs: [f"1 / (1 + e^{x})" for x in _numbers(-inputs[0])],
    f.Exp: _of_one("e^{}"),
    f.Log: _of_one("log({})"),
    f.Sqrt: _of_one("√{}"),
    f.Abs: _of_one("|{}|"),
    f.Sin: _of_one("sin({})"),
    f.Cos: _of_one("cos({})"),
    f.Softmax: _softmax,
    f.Sum: _total,
    f.Mean: _total,
    f.MSELoss: _pointwise("({} − {})²"),
    f.MAELoss: _pointwise("|{} − {}|"),
    f.SigmoidLoss: _sigmoid_loss,
    f.SoftmaxLoss: _softmax_loss,
}


# ---- back -----------------------------------------------------------------------------------------------------------


def _linear_back(function: Any, _inputs: Any, _output: Any, dy: np.ndarray) -> tuple[list[str], np.ndarray]:
    weight = function.weight.data
    texts = [
        _sum([f"{d} · {_bracketed(w)}" for d, w in zip(_numbers(dy), _numbers(row), strict=True)]) for row in weight
    ]  # one for each input
    return texts, dy @ weight.T


def _slope(slope: Callable[..., np.ndarray]) -> Callable[..., tuple[list[str], np.ndarray]]:
    def texts(_function: Any, inputs: Sequence[np.ndarray], output: np.ndarray, dy: np.ndarray) -> Any:
        slopes = slope(inputs[0], output)
        pairs = zip(_numbers(dy), _numbers(slopes), strict=True)
        return [f"{d} · {_bracketed(s)}" for d, s in pairs], dy * slopes

    return texts


def _mse_back(_function: Any, inputs: Sequence[np.ndarray], _output: Any, dy: Any) -> tuple[list[str], np.ndarray]:
    scores, targets = inputs[0].reshape(-1), inputs[1].reshape(-1)
    if dy.item() != 1:
        return [], scores
    over = f" / {scores.size}" if scores.size > 1 else ""
    pairs = zip(_numbers(scores), _numbers(targets), strict=True)
    return [f"2 · ({p} − {_bracketed(t)}){over}" for p, t in pairs], 2 * (scores - targets) / scores.size


def _softmax_loss_back(
    function: Any, inputs: Sequence[np.ndarray], _output: Any, dy: Any
) -> tuple[list[str], np.ndarray]:
    scores, labels = inputs[0].reshape(-1), inputs[1]
    if dy.item() != 1 or not _is_plain(function, labels):
        return [], scores
    powers = np.exp(scores - scores.max())
    probabilities, right = powers / powers.sum(), np.arange(scores.size) == int(labels.item())
    texts = [f"{p} − {int(t)}" for p, t in zip(_numbers(probabilities), right, strict=True)]
    return texts, probabilities - right


BACK: dict[type, Callable[..., tuple[list[str], np.ndarray]]] = {
    f.Linear: _linear_back,
    f.ReLU: _slope(lambda x, _: (x > 0).astype(x.dtype)),
    f.Tanh: _slope(lambda _, y: 1 - y * y),
    f.Sigmoid: _slope(lambda _, y: y * (1 - y)),
    f.MSELoss: _mse_back,
    f.SoftmaxLoss: _softmax_loss_back,
}
