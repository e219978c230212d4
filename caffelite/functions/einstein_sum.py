"""einsum: sums of products that letters describe, made of transposes, reshapes, products and sums."""

from __future__ import annotations

import math
import re
from typing import Any

from caffelite.core.tensor import Tensor
from caffelite.functions.arithmetic import as_tensor
from caffelite.functions.indexing import in_one_dtype
from caffelite.functions.linear import matmul

__all__ = ["einsum"]

Label = str | int  # of an axis: a letter; a number, of those that "..." stands for
Labels = list[Label]


def einsum(subscripts: str, *operands: Any) -> Tensor:
    """The sum of products of one or two arrays whose axes have letters, as `numpy.einsum`.

    `einsum("bij,bjk->bik", a, b)` computes products of matrices: y[b, i, k] = Σ_j a[b, i, j] b[b, j, k]. Axes with the
    same letter run together. If a letter is missing after the arrow, its axis is summed over. Without an arrow, the
    result has the letters that come once, in alphabetical order. `...` (or `…`) stands for any axes, which are
    broadcast. A letter that an operand has twice takes its diagonal. A matrix product sums over the letters that both
    operands have and the result does not. So einsum is as fast as that product.

    Raises ValueError for other than one or two operands, for subscripts that do not fit them, and for axes with one
    letter and different lengths, none of them 1. Raises TypeError for dtypes that differ.
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
    tensors = [as_tensor(x) for x in in_one_dtype(operands, "einsum")]
    counts = [x.ndim - len(term.replace("...", "", 1)) for x, term in zip(tensors, terms, strict=True)]
    for x, term, count in zip(tensors, terms, counts, strict=True):
        if count < 0 or (count and "..." not in term):
            raise ValueError(f"einsum got {term!r} for shape {x.shape}, which has {x.ndim} axes")
    most = max(counts)
    labels = [_labels(term, most - count, most) for term, count in zip(terms, counts, strict=True)]
    result = _labels(output, 0, most) if arrow else _implied(labels, most)
    _check_result(subscripts, result, labels, most)
    found = [_diagonal(x, of_x) for x, of_x in zip(tensors, labels, strict=True)]
    if len(found) == 2:
        _check_lengths(found)
        found = [_without_ones(*found[i], *found[1 - i]) for i in (0, 1)]
    shared = set.intersection(*[set(of_x) for _, of_x in found]) if len(found) == 2 else set()
    found = [_summed(x, of_x, {*result, *shared}) for x, of_x in found]
    return _arranged(*found[0], result) if len(found) == 1 else _product(*found[0], *found[1], result)


def _labels(term: str, begin: int, end: int) -> Labels:
    """The labels of the axes of a term. "..." are the numbers begin … end − 1."""
    before, dots, behind = term.partition("...")
    return [*before, *(range(begin, end) if dots else ()), *behind]


def _implied(labels: list[Labels], most: int) -> Labels:
    """The result's labels without an arrow: what "..." stands for, then the letters that come once, in order."""
    every = [label for of_x in labels for label in of_x]
    return [*range(most), *sorted(label for label in every if isinstance(label, str) and every.count(label) == 1)]


def _check_result(subscripts: str, result: Labels, labels: list[Labels], most: int) -> None:
    known = {label for of_x in labels for label in of_x}
    if len(set(result)) < len(result) or not known.issuperset(result):
        raise ValueError(f"einsum got {subscripts!r}; expected letters of the operands behind the arrow, each once")
    if not set(range(most)).issubset(result):
        raise ValueError(f"einsum got {subscripts!r}; expected ... behind the arrow, too: it stands for {most} axes")


def _diagonal(x: Tensor, labels: Labels) -> tuple[Tensor, Labels]:
    """x with each label once: the diagonal along axes that have the same."""
    for label in labels:
        axes = [i for i, other in enumerate(labels) if other == label]
        if len(axes) > 1:
            i, j = axes[:2]
            if x.shape[i] != x.shape[j]:
                raise ValueError(
                    f"einsum got shape {x.shape}, with lengths {x.shape[i]} and {x.shape[j]} for {label!r}"
                )
            places, rest = list(range(x.shape[i])), [k for k in range(x.ndim) if k not in (i, j)]
            return _diagonal(x.transpose(i, j, *rest)[places, places], [label, *[labels[k] for k in rest]])
    return x, labels


def _check_lengths(found: list[tuple[Tensor, Labels]]) -> None:
    (a, of_a), (b, of_b) = found
    for label in of_a:
        if label in of_b:
            n, m = a.shape[of_a.index(label)], b.shape[of_b.index(label)]
            if n != m and 1 not in (n, m):
                axis = f"for {label!r}" if isinstance(label, str) else "for an axis of ..."
                raise ValueError(f"einsum got shapes {a.shape} and {b.shape}, with lengths {n} and {m} {axis}")


def _without_ones(x: Tensor, labels: Labels, other: Tensor, of_other: Labels) -> tuple[Tensor, Labels]:
    """x without the axes of length 1 that are broadcast to the other operand."""
    kept = [
        i
        for i, label in enumerate(labels)
        if not (x.shape[i] == 1 and label in of_other and other.shape[of_other.index(label)] != 1)
    ]
    if len(kept) == len(labels):
        return x, labels
    return x.reshape([x.shape[i] for i in kept]), [labels[i] for i in kept]


def _summed(x: Tensor, labels: Labels, kept: set[Label]) -> tuple[Tensor, Labels]:
    """x summed over the axes whose labels are not kept."""
    axes = tuple([i for i, label in enumerate(labels) if label not in kept])
    return (x.sum(axes), [label for label in labels if label in kept]) if axes else (x, labels)


def _arranged(x: Tensor, labels: Labels, order: Labels) -> Tensor:
    """x with its axes in the order of these labels."""
    return x if labels == order else x.transpose([labels.index(label) for label in order])


def _product(a: Tensor, of_a: Labels, b: Tensor, of_b: Labels, result: Labels) -> Tensor:
    """The sum of products over the labels that both have and the result does not. All other labels are the result's."""
    both = [label for label in of_a if label in of_b]
    stack, inner = [label for label in both if label in result], [label for label in both if label not in result]
    rows, columns = [label for label in of_a if label not in of_b], [label for label in of_b if label not in of_a]
    if not inner:
        return _spread(a, of_a, result) * _spread(b, of_b, result)
    if stack and not rows and not columns:
        a, b = _arranged(a, of_a, both), _arranged(b, of_b, both)
        y = (a * b).sum(tuple([i for i, label in enumerate(both) if label in inner]))
        return _arranged(y, stack, result)
    lengths = dict(zip([*of_a, *of_b], [*a.shape, *b.shape], strict=True))
    left, right = _merged(a, of_a, [stack, rows, inner]), _merged(b, of_b, [stack, inner, columns])
    y = matmul(left, right).reshape([lengths[label] for label in (*stack, *rows, *columns)])
    return _arranged(y, [*stack, *rows, *columns], result)


def _spread(x: Tensor, labels: Labels, result: Labels) -> Tensor:
    """x with an axis for each label of the result, of length 1 for a label that x does not have."""
    x = _arranged(x, labels, [label for label in result if label in labels])
    if len(labels) == len(result):
        return x
    lengths = iter(x.shape)
    return x.reshape([next(lengths) if label in labels else 1 for label in result])


def _merged(x: Tensor, labels: Labels, groups: list[Labels]) -> Tensor:
    """x as a matrix, or as a stack of matrices: one axis for each group of labels, the stack's only if it has any."""
    lengths = dict(zip(labels, x.shape, strict=True))
    x = _arranged(x, labels, [label for group in groups for label in group])
    shape = [math.prod(lengths[label] for label in group) for group in groups]
    return x.reshape(shape if groups[0] else shape[1:])
