"""Split the rows into those to train on and those to evaluate."""

from __future__ import annotations

import numpy as np

from caffelite.data.generator import Batch
from caffelite.data.out_of_core import Blocks, Source, select_ranges


def split_data(data: Batch, share: float, rng: np.random.Generator) -> tuple[Batch, Batch]:
    """Return the training rows, in their order, and the rows to evaluate. A source is split block by block."""
    rows = data.rows
    count = num_held_out(rows, share)
    columns, layout = data.columns(), data.layout()
    if Source in map(type, columns):
        ranges = Blocks(columns, rows).hold_out(count, rng)
        return tuple([layout.batch([select_ranges(a, row_range) for a in columns]) for row_range in ranges])  # type: ignore
    lengths, parts = data.lengths, draw_split(rows, count, rng)
    batches = [layout.batch([a[mask] for a in columns]) for mask in parts]
    if lengths is not None:
        batches = [batch._replace(lengths=lengths[mask]) for batch, mask in zip(batches, parts, strict=True)]
    return batches[0], batches[1]


def num_held_out(rows: int, share: float) -> int:
    """Return how many rows `validation_split` holds out. TypeError or ValueError if the share is invalid."""
    if isinstance(share, bool) or not isinstance(share, int | float | np.integer | np.floating):
        raise TypeError(f"validation_split must be a number, got {share!r}")
    if not 0 <= share < 1:
        raise ValueError(f"validation_split must be in [0, 1), got {share}")
    count = int(rows * share)
    if count == 0:
        raise ValueError(f"validation_split {share} of {rows} rows leaves no row to evaluate")
    return count


def draw_split(rows: int, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw the rows to hold out. Return masks (rows,) of the rows for training and of the rows that are held out."""
    held_out = np.zeros(rows, dtype=bool)
    held_out[rng.permutation(rows)[:count]] = True
    return ~held_out, held_out
