"""The formulas of common Functions with the numbers of one row filled in, forward and backward.

A formula is its text and its result: `("0.5 · 2 + 1", "2")`. There is one for each number of the output or, on the way
back, of the input. Functions that are not here have no formulas. Subclasses have none either, because they may compute
anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from caffelite import functions as f
from caffelite.core.function import Function

Formulas = list[tuple[str, str]]
MAX_NUMBERS = 4  # numbers in an input or an output


def format_number(x: Any) -> str:
    """Return a number with three digits, `−0.25` or `1.2e−5`; labels and bools as they are."""
    if isinstance(x, float):
        digits = f"{x + 0.0:.3g}"  # + 0 turns −0 into 0
        return digits.replace("e-0", "e-").replace("e+0", "e").replace("e+", "e").replace("-", "−")
    return str(x).replace("-", "−")


def forward_formulas(function: Function, inputs: Sequence[Any], output: np.ndarray) -> Formulas:
    """Return the formulas of a Function's output; [] if there are too many numbers, or the class has no formulas."""
    formula = FORWARD_FORMULAS.get(type(function))
    if formula is None or not _are_few([*inputs, output]):
        return []
    return _zip_results(formula(function, inputs), output)


def backward_formulas(function: Function, inputs: Sequence[Any], output: np.ndarray, dy: np.ndarray) -> Formulas:
    """Return the formulas of the gradient of a Function's input; [] if there are too many numbers or no formulas."""
    formula = BACKWARD_FORMULAS.get(type(function))
    if formula is None or not _are_few([*inputs, output]):
        return []
    texts, dx = formula(function, inputs, output, dy)
    return _zip_results(texts, dx)


def _are_few(arrays: Sequence[Any]) -> bool:
    return all(isinstance(a, np.ndarray) and 0 < a.size <= MAX_NUMBERS for a in arrays)


def _zip_results(texts: list[str], results: Any) -> Formulas:
    values = [format_number(x) for x in np.asarray(results).reshape(-1).tolist()]
    return list(zip(texts, values, strict=True)) if len(texts) == len(values) else []


def _format_numbers(array: np.ndarray) -> list[str]:
    return [format_number(x) for x in array.reshape(-1).tolist()]


def _join_terms(terms: list[str]) -> str:
    """Join terms with their signs: `a + b − c`."""
    return " + ".join(terms).replace("+ −", "− ") if terms else "0"


# ---- forward --------------------------------------------------------------------------------------------------------


def _linear(function: Any, inputs: Sequence[np.ndarray]) -> list[str]:
    weight, bias = function.weight.data, function.bias
    biases = [[]] * weight.shape[1] if bias is None else [[b] for b in _format_numbers(bias.data)]
    return [_join_terms([*_products(inputs[0], w), *b]) for w, b in zip(weight.T, biases, strict=True)]


def _products(a: np.ndarray, b: np.ndarray) -> list[str]:
    """Return the products of two arrays' numbers, as text."""
    return [f"{x} · {_parenthesize(y)}" for x, y in zip(_format_numbers(a), _format_numbers(b), strict=True)]


def _binary(sign: str) -> Callable[..., list[str]]:
    def texts(_function: Any, inputs: Sequence[np.ndarray]) -> list[str]:
        a, b = np.broadcast_arrays(*inputs)
        return [f"{x} {sign} {_parenthesize(y)}" for x, y in zip(_format_numbers(a), _format_numbers(b), strict=True)]

    return texts


def _parenthesize(text: str) -> str:
    return f"({text})" if text.startswith("−") else text


def _unary(form: str) -> Callable[..., list[str]]:
    return lambda _function, inputs: [form.format(x) for x in _format_numbers(inputs[0])]


def _softmax(function: Any, inputs: Sequence[np.ndarray]) -> list[str]:
    if function.axis not in (-1, inputs[0].ndim - 1):
        return []
    powers = [f"e^{x}" for x in _format_numbers(inputs[0])]
    return [f"{power} / ({' + '.join(powers)})" for power in powers]


def _reduction(function: Any, inputs: Sequence[np.ndarray]) -> list[str]:
    terms = _join_terms(_format_numbers(inputs[0]))
    return [f"({terms}) / {inputs[0].size}" if type(function) is f.Mean else terms]


def _pointwise(form: str) -> Callable[..., list[str]]:
    def texts(_function: Any, inputs: Sequence[np.ndarray]) -> list[str]:
        scores, targets = (_format_numbers(a) for a in inputs[:2])
        terms = [form.format(p, _parenthesize(t)) for p, t in zip(scores, targets, strict=True)]
        return [terms[0] if len(terms) == 1 else f"({' + '.join(terms)}) / {len(terms)}"]

    return texts


def _softmax_loss(function: Any, inputs: Sequence[np.ndarray]) -> list[str]:
    scores, labels = inputs[:2]
    if not _is_plain(function, labels):
        return []
    powers = [f"e^{x}" for x in _format_numbers(scores)]
    return [f"−log({powers[int(labels.item())]} / ({' + '.join(powers)}))"]


def _sigmoid_loss(function: Any, inputs: Sequence[np.ndarray]) -> list[str]:
    score, target = inputs[:2]
    if function.pos_weight is not None or score.size != 1 or target.item() not in (0, 1):
        return []
    probability = f"1 / (1 + e^{_format_numbers(-score)[0]})"
    return [f"−log({probability})" if target.item() == 1 else f"−log(1 − {probability})"]


def _is_plain(loss: Any, labels: np.ndarray) -> bool:
    """Return whether a SoftmaxLoss has one label, and no option that changes the formula."""
    return labels.size == 1 and labels.dtype.kind in "iu" and not loss.label_smoothing and loss.ignore is None


FORWARD_FORMULAS: dict[type, Callable[..., list[str]]] = {
    f.Linear: _linear,
    f.Add: _binary("+"),
    f.Subtract: _binary("−"),
    f.Multiply: _binary("·"),
    f.Divide: _binary("/"),
    f.ReLU: _unary("max({}, 0)"),
    f.Tanh: _unary("tanh({})"),
    f.Sigmoid: lambda _, inputs: [f"1 / (1 + e^{x})" for x in _format_numbers(-inputs[0])],
    f.math.Exp: _unary("e^{}"),
    f.math.Log: _unary("log({})"),
    f.math.Sqrt: _unary("√{}"),
    f.math.Abs: _unary("|{}|"),
    f.math.Sin: _unary("sin({})"),
    f.math.Cos: _unary("cos({})"),
    f.Softmax: _softmax,
    f.Sum: _reduction,
    f.Mean: _reduction,
    f.MSELoss: _pointwise("({} − {})²"),
    f.MAELoss: _pointwise("|{} − {}|"),
    f.SigmoidLoss: _sigmoid_loss,
    f.SoftmaxLoss: _softmax_loss,
}


# ---- back -----------------------------------------------------------------------------------------------------------


def _linear_backward(function: Any, _inputs: Any, _output: Any, dy: np.ndarray) -> tuple[list[str], np.ndarray]:
    weight = function.weight.data
    return [_join_terms(_products(dy, row)) for row in weight], dy @ weight.T  # a formula for each input


def _elementwise_backward(slope: Callable[..., np.ndarray]) -> Callable[..., tuple[list[str], np.ndarray]]:
    def texts(_function: Any, inputs: Sequence[np.ndarray], output: np.ndarray, dy: np.ndarray) -> Any:
        slopes = slope(inputs[0], output)
        return _products(dy, slopes), dy * slopes

    return texts


def _mse_backward(_function: Any, inputs: Sequence[np.ndarray], _output: Any, dy: Any) -> tuple[list[str], np.ndarray]:
    scores, targets = inputs[0].reshape(-1), inputs[1].reshape(-1)
    if dy.item() != 1:
        return [], scores
    over = f" / {scores.size}" if scores.size > 1 else ""
    pairs = zip(_format_numbers(scores), _format_numbers(targets), strict=True)
    return [f"2 · ({p} − {_parenthesize(t)}){over}" for p, t in pairs], 2 * (scores - targets) / scores.size


def _softmax_loss_backward(
    function: Any, inputs: Sequence[np.ndarray], _output: Any, dy: Any
) -> tuple[list[str], np.ndarray]:
    scores, labels = inputs[0].reshape(-1), inputs[1]
    if dy.item() != 1 or not _is_plain(function, labels):
        return [], scores
    powers = np.exp(scores - scores.max())
    probabilities, right = powers / powers.sum(), np.arange(scores.size) == int(labels.item())
    texts = [f"{p} − {int(t)}" for p, t in zip(_format_numbers(probabilities), right, strict=True)]
    return texts, probabilities - right


BACKWARD_FORMULAS: dict[type, Callable[..., tuple[list[str], np.ndarray]]] = {
    f.Linear: _linear_backward,
    f.ReLU: _elementwise_backward(lambda x, _: (x > 0).astype(x.dtype)),
    f.Tanh: _elementwise_backward(lambda _, y: 1 - y * y),
    f.Sigmoid: _elementwise_backward(lambda _, y: y * (1 - y)),
    f.MSELoss: _mse_backward,
    f.SoftmaxLoss: _softmax_loss_backward,
}
