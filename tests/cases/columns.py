"""What stands first in a model of a table."""

import hypothesis.strategies as st
import numpy as np

from caffelite import functions
from cases.case import Case, Family


def columns(rows, numbers, counts, size=8):
    """So many numbers, standardized, and a column of categories for each count."""
    mean, deviation = 0.25 * np.arange(numbers), 1 + 0.5 * np.arange(numbers)

    def make():
        described = [(i, None) for i in range(numbers)]
        described += [(f"c{i}", tuple(range(count))) for i, count in enumerate(counts)]
        function = functions.Columns(described, size)
        function.mean[:], function.deviation[:] = mean, deviation
        return function

    def judge(*arrays):
        x, rest = (arrays[0], arrays[1:]) if numbers else (None, arrays)
        codes, tables = (rest[0], rest[1:]) if counts else (None, ())
        parts = [] if x is None else [(x - mean) / deviation]
        parts += [table[codes[:, i]] for i, table in enumerate(tables)]

        def backward(dy):
            dys = np.split(dy, np.cumsum([part.shape[1] for part in parts])[:-1], axis=1)
            gradients = [] if x is None else [dys.pop(0) / deviation]
            for i, table in enumerate(tables):
                gradients.append(np.zeros(table.shape))
                np.add.at(gradients[-1], codes[:, i], dys[i])
            return tuple(gradients)

        return np.concatenate(parts, axis=1), backward

    def pytorch(torch, *arrays):
        x, rest = (arrays[0], arrays[1:]) if numbers else (None, arrays)
        parts = [] if x is None else [(x - torch.tensor(mean)) / torch.tensor(deviation)]
        parts += [torch.nn.functional.embedding(rest[0][:, i], table) for i, table in enumerate(rest[1:])]
        return torch.cat(parts, 1)

    def codes(rng):
        return [np.stack([rng.integers(0, count, rows) for count in counts], axis=1)] if counts else []

    return Case(make, ((rows, numbers),) * (numbers > 0), judge, pytorch, held=codes)


CASES = [
    Family(
        columns,
        listed=[(5, 3, (2, 4)), (4, 2, ()), (4, 0, (3,)), (70, 1, (9, 1, 30), 5)],
        empty=[(0, 2, (3,))],
        random=st.tuples(
            st.integers(1, 20), st.integers(0, 5), st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple)
        ),
    )
]
