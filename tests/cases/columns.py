"""What stands first in a model of a table."""

import hypothesis.strategies as st
import numpy as np

from caffelite.tables import Columns
from tests.cases.case import Case, Family


def columns(rows, numbers, counts, size=8, robust=False, gaps=False, bins=0):
    """So many numbers, standardized, and a column of categories for each count.

    Each other number may have gaps. Number i has bins + i bins, or none.
    """
    center, scale = 0.25 * np.arange(numbers), 1 + 0.5 * np.arange(numbers)
    missing = np.zeros((rows, len(range(0, numbers, 2)) if gaps else 0))
    of_each = [bins + i if bins else 0 for i in range(numbers)]
    edges = [np.linspace(-1.37, 1.59, count + 1) for count in of_each]

    def make():
        described = [(i, {"gaps": True} if gaps and i % 2 == 0 else None) for i in range(numbers)]
        described += [(f"c{i}", tuple(range(count))) for i, count in enumerate(counts)]
        function = Columns(described, size, robust=robust, bins=of_each)
        function.center[:], function.scale[:] = center, scale
        function.edges[:] = np.concatenate([*edges, []])
        return function

    def bin_shares(x):
        """For each bin, its share that is below the number x, and the slope of this share."""
        shares, slopes = [np.zeros((rows, 0))], [np.zeros((rows, 0))]
        for i, e in enumerate(edges):
            share = (x[:, i, np.newaxis] - e[:-1]) / np.diff(e)
            shares.append(np.clip(share, 0, 1))
            slopes.append(((share >= 0) & (share < 1)) / np.diff(e))
        return np.concatenate(shares, axis=1), np.concatenate(slopes, axis=1)

    def held_within(z, sqrt):
        return z / sqrt(1 + z * z / 9) if robust else z

    def judge(*arrays):
        x, rest = (arrays[0], arrays[1:]) if numbers else (None, arrays)
        codes, tables = (rest[0], rest[1:]) if counts else (None, ())
        parts = [] if x is None else [held_within((x - center) / scale, np.sqrt), missing, bin_shares(x)[0]]
        parts += [table[codes[:, i]] for i, table in enumerate(tables)]

        def backward(dy):
            dys = np.split(dy, np.cumsum([part.shape[1] for part in parts])[:-1], axis=1)
            gradients = []
            if x is not None:
                slope = (1 + ((x - center) / scale) ** 2 / 9) ** -1.5 if robust else 1.0
                of_bins = np.split(dys[2] * bin_shares(x)[1], np.cumsum(of_each)[:-1], axis=1)
                gradients.append(dys[0] * slope / scale + np.stack([part.sum(axis=1) for part in of_bins], axis=1))
                dys = dys[3:]
            for i, table in enumerate(tables):
                gradients.append(np.zeros(table.shape))
                np.add.at(gradients[-1], codes[:, i], dys[i])
            return tuple(gradients)

        return np.concatenate(parts, axis=1), backward

    def pytorch(torch, *arrays):
        x, rest = (arrays[0], arrays[1:]) if numbers else (None, arrays)
        parts = []
        if x is not None:
            parts.append(held_within((x - torch.tensor(center)) / torch.tensor(scale), torch.sqrt))
            parts.append(torch.tensor(missing, dtype=x.dtype))
            for i, e in enumerate(edges if bins else []):
                share = (x[:, i, None] - torch.tensor(e[:-1])) / torch.tensor(np.diff(e))
                parts.append(share.clamp(0, 1))
        parts += [torch.nn.functional.embedding(rest[0][:, i], table) for i, table in enumerate(rest[1:])]
        return torch.cat(parts, 1)

    def codes(rng):
        return [np.stack([rng.integers(0, count + 2, rows) for count in counts], axis=1)] if counts else []

    return Case(make, ((rows, numbers),) * (numbers > 0), judge, pytorch, held=codes)


side = st.integers(1, 9)

CASES = [
    Family(
        columns,
        listed=[
            (5, 3, (2, 4)),
            (4, 2, ()),
            (4, 0, (3,)),
            (70, 1, (9, 1, 30), 5),
            (6, 5, (), 8, True, True),
            (33, 2, (3,), 2, True),
            (9, 3, (2,), 8, False, True, 4),
            (70, 2, (), 8, True, False, 1),
        ],
        empty=[(0, 2, (3,))],
        random=st.tuples(
            st.integers(1, 20),
            st.integers(0, 5),
            st.lists(side, min_size=1, max_size=4).map(tuple),
            st.integers(1, 9),
            st.booleans(),
            st.booleans(),
            st.integers(0, 5),
        ),
    )
]
