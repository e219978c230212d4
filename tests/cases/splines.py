"""A piecewise linear function of each column of a table."""

import hypothesis.strategies as st
import numpy as np

from caffelite.tables import Splines
from tests.cases.case import Case, Family


def splines(rows, numbers, counts, size, bins):
    """So many numbers, of which number i has bins + i bins or none, and a column of categories for each count."""
    of_each = [bins + i if bins else 0 for i in range(numbers)]
    edges = [np.linspace(-1.37, 1.59, count + 1) for count in of_each]
    heights = [np.sin(2 * e) + i for i, e in enumerate(edges)]
    first_rows = np.cumsum([0, *[count + 1 for count in of_each], *[count + 2 for count in counts]])

    def make():
        described = [(i, None) for i in range(numbers)]
        described += [(f"c{i}", tuple(range(count))) for i, count in enumerate(counts)]
        function = Splines(described, size, bins=of_each)
        function.edges[:], function.z[:] = np.concatenate([*edges, []]), np.concatenate([*heights, []])
        return function

    def judge(*arrays):
        x, rest = (arrays[0], arrays[1:]) if numbers else (None, arrays)
        codes, (weight, *slopes, scale, bias) = (rest[0], rest[1:]) if counts else (None, rest)
        slope = slopes[0] if numbers else np.zeros((0, size))
        y = np.zeros((rows, size)) + bias
        terms = []
        for j in range(numbers + len(counts)):
            w = weight[first_rows[j] : first_rows[j + 1]]
            if j < numbers:
                share = (x[:, j, np.newaxis] - edges[j][:-1]) / np.diff(edges[j])
                code = np.column_stack([np.ones(rows), np.clip(share, 0, 1)])
                dz = np.concatenate([heights[j][:1], np.diff(heights[j])])[:, np.newaxis]
                rises = np.concatenate([np.zeros((1, size)), w[:-1]]) + dz * slope[j]
                terms.append((code, rises, dz, ((share >= 0) & (share < 1)) / np.diff(edges[j])))
            else:
                code, rises = np.eye(len(w))[codes[:, j - numbers]], w
                terms.append((code, rises, None, None))
            y += scale[j] * (code @ rises)

        def backward(dy):
            dx, dweight, dslope = np.zeros((rows, numbers)), np.zeros(weight.shape), np.zeros(slope.shape)
            dscale = np.zeros(len(terms))
            for j, (code, rises, dz, steepness) in enumerate(terms):
                drises = scale[j] * code.T @ dy
                dscale[j] = (code.T @ dy * rises).sum()
                if dz is None:
                    dweight[first_rows[j] : first_rows[j + 1]] = drises
                else:
                    dweight[first_rows[j] : first_rows[j + 1] - 1] = drises[1:]
                    dslope[j] = (dz * drises).sum(axis=0)
                    dx[:, j] = scale[j] * (dy @ rises[1:].T * steepness).sum(axis=1)
            return (*(dx,) * bool(numbers), dweight, *(dslope,) * bool(numbers), dscale, dy.sum(axis=0))

        return y, backward

    def pytorch(torch, *arrays):
        x, rest = (arrays[0], arrays[1:]) if numbers else (None, arrays)
        codes, (weight, *slopes, scale, bias) = (rest[0], rest[1:]) if counts else (None, rest)
        y = bias.expand(rows, size)
        for j in range(numbers + len(counts)):
            w = weight[first_rows[j] : first_rows[j + 1]]
            if j < numbers:
                e, z = torch.tensor(edges[j]), torch.tensor(heights[j])
                code = ((x[:, j, None] - e[:-1]) / (e[1:] - e[:-1])).clamp(0, 1)
                part = code @ (w[:-1] + (z[1:] - z[:-1])[:, None] * slopes[0][j]) + z[0] * slopes[0][j]
            else:
                part = torch.nn.functional.embedding(codes[:, j - numbers], w)
            y = y + scale[j] * part
        return y

    def codes(rng):
        return [np.stack([rng.integers(0, count + 2, rows) for count in counts], axis=1)] if counts else []

    def draw(shape, rng):
        return rng.normal(size=shape)

    return Case(make, ((rows, numbers),) * (numbers > 0), judge, pytorch, held=codes, draw=draw)


CASES = [
    Family(
        splines,
        listed=[
            (5, 3, (2, 4), 6, 3),
            (4, 2, (), 64, 5),
            (4, 0, (3,), 7, 0),
            (70, 1, (9, 1, 30), 33, 8),
            (9, 4, (), 1, 1),
            (6, 3, (2,), 40, 0),
        ],
        empty=[(0, 2, (3,), 4, 2)],
        random=st.tuples(
            st.integers(1, 20),
            st.integers(0, 5),
            st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple),
            st.integers(1, 80),
            st.integers(0, 5),
        ),
    )
]
