"""Linear layers and matrix products."""

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np

from caffelite import functions
from tests.cases.case import Case, Family, side
from tests.reference import linear, matmul_of_matrices


def matmul(a, b):
    """Return a vector counts as a row on the left and as a column on the right."""
    rows, columns = np.atleast_2d(a), b[:, np.newaxis] if b.ndim == 1 else b
    if rows.ndim > 2 or columns.ndim > 2:
        return matmul_of_stacks(a, b, rows, columns)

    def backward(dy):
        dy = dy.reshape(rows.shape[0], columns.shape[1])
        da, db = matmul_of_matrices(dy, columns.T), matmul_of_matrices(rows.T, dy)
        return da.reshape(a.shape), db.reshape(b.shape)

    return matmul_of_matrices(rows, columns).reshape(a.shape[:-1] + b.shape[1:]), backward


def matmul_of_stacks(a, b, rows, columns):
    stack = np.broadcast_shapes(rows.shape[:-2], columns.shape[:-2])
    places = list(np.ndindex(stack))

    def backward(dy):
        dy = dy.reshape(*stack, rows.shape[-2], columns.shape[-1])
        da, db = np.zeros(rows.shape), np.zeros(columns.shape)
        for i in places:
            # If a stack is repeated, the gradients of its repetitions add up.
            m, n = (
                tuple(0 if s == 1 else j for s, j in zip(x.shape[:-2], i[len(i) - x.ndim + 2 :], strict=True))
                for x in (rows, columns)
            )
            da[m] += matmul_of_matrices(dy[i], columns[n].T)
            db[n] += matmul_of_matrices(rows[m].T, dy[i])
        return da.reshape(a.shape), db.reshape(b.shape)

    y = np.zeros((*stack, rows.shape[-2], columns.shape[-1]))
    wide_rows, wide_columns = (np.broadcast_to(x, stack + x.shape[-2:]) for x in (rows, columns))
    for i in places:
        y[i] = matmul_of_matrices(wide_rows[i], wide_columns[i])
    return y.reshape(stack + a.shape[-2:-1] + (b.shape[-1:] if b.ndim > 1 else ())), backward


def layer(rows, in_features, out_features, bias):
    return Case(
        lambda: functions.Linear(in_features, out_features, bias),
        ((rows, in_features),),
        linear,
        lambda torch, x, weight, bias=None: torch.nn.functional.linear(x, weight.T, bias),
    )


def matrix_product(a_shape, b_shape):
    return Case(functions.MatMul, (a_shape, b_shape), matmul, lambda torch, a, b: a @ b)


@st.composite
def random_matrix_product(draw):
    m, k, n = draw(st.tuples(*[st.integers(1, 20)] * 3))
    stacks = draw(hnp.mutually_broadcastable_shapes(num_shapes=2, min_dims=0, max_dims=2, max_side=3)).input_shapes
    a, b = ((*stack, *shape) for stack, shape in zip(stacks, [(m, k), (k, n)], strict=True))
    return draw(st.sampled_from([a, (k,)])), draw(st.sampled_from([b, (k,)]))


def special(dtype):
    """NaN and infinities in some rows of a, and in a column of b."""
    a = [[1, np.nan], [np.inf, 1], [np.inf, -np.inf], [0, np.inf], [1, 2]]
    return [(((5, 2), (2, 3)), [np.array(a), np.array([[1, 0, 1], [1, 1, -np.inf]])])]


CASES = [
    Family(
        layer,
        listed=[(3, 2, 4, True), (1, 3, 2, False), (4, 1, 1, True), (1, 1, 1, False)],
        empty=[(0, 3, 2, True), (0, 1, 1, False)],
        random=st.tuples(side, side, side, st.booleans()),
    ),
    Family(
        matrix_product,
        listed=[
            *[((2, 3), (3, 4)), ((1, 3), (3, 1)), ((3, 1), (1, 2)), ((3,), (3,)), ((3,), (3, 2)), ((2, 3), (3,))],
            *[((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)), ((5, 2, 3), (5, 3, 4)), ((5, 1, 2, 3), (4, 3, 2))],
            *[((3,), (5, 3, 4)), ((5, 2, 3), (3,)), ((1, 2, 3), (5, 3, 1))],
        ],
        empty=[
            *[((0, 3), (3, 2)), ((2, 0), (0, 3)), ((2, 3), (3, 0)), ((0,), (0,)), ((0, 3), (3,))],
            *[((0, 2, 3), (3, 4)), ((0, 2, 3), (1, 3, 4)), ((5, 2, 0), (0, 3))],
        ],
        random=random_matrix_product(),
        special=special,
    ),
]
