"""einsum: sums of products described by letters, made of transposes, reshapes, products and sums."""

from __future__ import annotations

import math
import re
from typing import Any

from caffelite.core.tensor import Tensor
from caffelite.functions.arithmetic import as_tensor
from caffelite.functions.indexing import to_common_dtype
from caffelite.functions.linear import matmul

__all__ = ["einsum"]

Label = str | int  # of an axis: a letter, or a number for an axis that "..." stands for
Labels = list[Label]


def einsum(subscripts: str, *operands: Any) -> Tensor:
    """Return sums of products over axes named by letters, like `numpy.einsum`.

    `einsum("bij,bjk->bik", a, b)` multiplies stacks of matrices: y[b, i, k] = Σ_j a[b, i, j] b[b, j, k]. Axes with the
    same letter share one index. If a letter is missing after the arrow, its axis is summed over. Without an arrow, the
    result has the letters that occur once, in alphabetical order. `...` (or `…`) stands for any number of axes, which
    are broadcast. A letter that occurs twice in an operand takes its diagonal. A matrix product sums over the letters
    that both operands have and the result does not, so einsum is as fast as that product.

    Raise ValueError unless there are one or two operands, if the subscripts do not fit them, and if axes with the same
    letter have different lengths, none of them 1. Raise TypeError if the dtypes differ.
    """
    if not isinstance(subscripts, str):
        raise TypeError(f"einsum takes its subscripts as a string first, got {type(subscripts).__name__}")
    text = "".join(subscripts.split()).replace("…", "...")
    inputs, arrow, output = text.partition("->")
    terms = inputs.split(",")
    if not all(re.fullmatch(r"[a-zA-Z]*(\.\.\.)?[a-zA-Z]*", term) for term in (*terms, output)):
        raise ValueError(f"einsum got {subscripts!r}; expected letters, commas, at most one ... a term, and one ->")
    if len(operands) not in (1, 2) or len(terms) != len(operands):
        raise ValueError(
            f"einsum takes one or two operands, and subscripts for each; got {len(operands)} operands and "
            f"{subscripts!r}"
        )
    tensors = [as_tensor(x) for x in to_common_dtype(operands, "einsum")]
    counts = [x.ndim - len(term.replace("...", "", 1)) for x, term in zip(tensors, terms, strict=True)]
    for x, term, count in zip(tensors, terms, counts, strict=True):
        if count < 0 or (count and "..." not in term):
            raise ValueError(f"einsum got {term!r} for shape {x.shape}, which has {x.ndim} axes")
    ellipsis_ndim = max(counts)
    labels = [_labels(term, ellipsis_ndim - count, ellipsis_ndim) for term, count in zip(terms, counts, strict=True)]
    result = _labels(output, 0, ellipsis_ndim) if arrow else _implicit_output(labels, ellipsis_ndim)
    _check_result(subscripts, result, labels, ellipsis_ndim)
    factors = [_take_diagonal(x, x_labels) for x, x_labels in zip(tensors, labels, strict=True)]
    if len(factors) == 2:
        _check_lengths(factors)
        factors = [_squeeze_broadcast(*factors[i], *factors[1 - i]) for i in (0, 1)]
    shared = set.intersection(*[set(x_labels) for _, x_labels in factors]) if len(factors) == 2 else set()
    factors = [_sum_axes(x, x_labels, {*result, *shared}) for x, x_labels in factors]
    return _order_axes(*factors[0], result) if len(factors) == 1 else _product(*factors[0], *factors[1], result)


def _labels(term: str, begin: int, end: int) -> Labels:
    """Return the labels of the axes of a term. "..." becomes the numbers begin … end − 1."""
    head, dots, tail = term.partition("...")
    return [*head, *(range(begin, end) if dots else ()), *tail]


def _implicit_output(labels: list[Labels], ellipsis_ndim: int) -> Labels:
    """Return the result's labels if there is no arrow: those of "...", then the letters that occur once, in order."""
    all_labels = [label for x_labels in labels for label in x_labels]
    return [
        *range(ellipsis_ndim),
        *sorted(label for label in all_labels if isinstance(label, str) and all_labels.count(label) == 1),
    ]


def _check_result(subscripts: str, result: Labels, labels: list[Labels], ellipsis_ndim: int) -> None:
    known = {label for x_labels in labels for label in x_labels}
    if len(set(result)) < len(result) or not known.issuperset(result):
        raise ValueError(f"einsum got {subscripts!r}; expected letters of the operands behind the arrow, each once")
    if not set(range(ellipsis_ndim)).issubset(result):
        raise ValueError(
            f"einsum got {subscripts!r}; expected ... behind the arrow, too: it stands for {ellipsis_ndim} axes"
        )


def _take_diagonal(x: Tensor, labels: Labels) -> tuple[Tensor, Labels]:
    """Return x with each label once: the diagonal along axes that share one."""
    for label in labels:
        axes = [i for i, other in enumerate(labels) if other == label]
        if len(axes) > 1:
            i, j = axes[:2]
            if x.shape[i] != x.shape[j]:
                raise ValueError(
                    f"einsum got shape {x.shape}, with lengths {x.shape[i]} and {x.shape[j]} for {label!r}"
                )
            indices, rest = list(range(x.shape[i])), [k for k in range(x.ndim) if k not in (i, j)]
            return _take_diagonal(x.transpose(i, j, *rest)[indices, indices], [label, *[labels[k] for k in rest]])
    return x, labels


def _check_lengths(factors: list[tuple[Tensor, Labels]]) -> None:
    (a, a_labels), (b, b_labels) = factors
    for label in a_labels:
        if label in b_labels:
            n, m = a.shape[a_labels.index(label)], b.shape[b_labels.index(label)]
            if n != m and 1 not in (n, m):
                axis = f"for {label!r}" if isinstance(label, str) else "for an axis of ..."
                raise ValueError(f"einsum got shapes {a.shape} and {b.shape}, with lengths {n} and {m} {axis}")


def _squeeze_broadcast(x: Tensor, labels: Labels, other: Tensor, other_labels: Labels) -> tuple[Tensor, Labels]:
    """Return x without the axes of length 1 that are broadcast to the other operand."""
    axes = [
        i
        for i, label in enumerate(labels)
        if not (x.shape[i] == 1 and label in other_labels and other.shape[other_labels.index(label)] != 1)
    ]
    if len(axes) == len(labels):
        return x, labels
    return x.reshape([x.shape[i] for i in axes]), [labels[i] for i in axes]


def _sum_axes(x: Tensor, labels: Labels, kept_labels: set[Label]) -> tuple[Tensor, Labels]:
    """Return x summed over the axes whose labels are not kept."""
    axes = tuple([i for i, label in enumerate(labels) if label not in kept_labels])
    return (x.sum(axes), [label for label in labels if label in kept_labels]) if axes else (x, labels)


def _order_axes(x: Tensor, labels: Labels, order: Labels) -> Tensor:
    """Return x with its axes in the order of these labels."""
    return x if labels == order else x.transpose([labels.index(label) for label in order])


def _product(a: Tensor, a_labels: Labels, b: Tensor, b_labels: Labels, result: Labels) -> Tensor:
    """Return the sum of products over the labels that both operands have and the result does not."""
    shared = [label for label in a_labels if label in b_labels]
    stack, inner = [label for label in shared if label in result], [label for label in shared if label not in result]
    rows, columns = (
        [label for label in a_labels if label not in b_labels],
        [label for label in b_labels if label not in a_labels],
    )
    if not inner:
        return _insert_axes(a, a_labels, result) * _insert_axes(b, b_labels, result)
    if stack and not rows and not columns:
        a, b = _order_axes(a, a_labels, shared), _order_axes(b, b_labels, shared)
        y = (a * b).sum(tuple([i for i, label in enumerate(shared) if label in inner]))
        return _order_axes(y, stack, result)
    lengths = dict(zip([*a_labels, *b_labels], [*a.shape, *b.shape], strict=True))
    left, right = _merge_axes(a, a_labels, [stack, rows, inner]), _merge_axes(b, b_labels, [stack, inner, columns])
    y = matmul(left, right).reshape([lengths[label] for label in (*stack, *rows, *columns)])
    return _order_axes(y, [*stack, *rows, *columns], result)


def _insert_axes(x: Tensor, labels: Labels, result: Labels) -> Tensor:
    """Return x with an axis for each label of the result, of length 1 if x does not have the label."""
    x = _order_axes(x, labels, [label for label in result if label in labels])
    if len(labels) == len(result):
        return x
    lengths = iter(x.shape)
    return x.reshape([next(lengths) if label in labels else 1 for label in result])


def _merge_axes(x: Tensor, labels: Labels, groups: list[Labels]) -> Tensor:
    """Return x as a matrix, or a stack of them: one axis for each group of labels, except for an empty stack."""
    lengths = dict(zip(labels, x.shape, strict=True))
    x = _order_axes(x, labels, [label for group in groups for label in group])
    shape = [math.prod(lengths[label] for label in group) for group in groups]
    return x.reshape(shape if groups[0] else shape[1:])
