"""Epochs over rows of different lengths in memory. Each batch is cut to its width; a step is recorded for each width.

`data/lengths.py` says which rows form a batch. If there are more lengths than widths, some batches are a little wider
than their longest row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from caffelite.data.lengths import MAX_WIDTHS, choose_widths, follow_lengths
from caffelite.program import Program
from caffelite.program.program import share_temporaries
from caffelite.training.epochs.in_memory import InMemoryEpochs


class LengthEpochs(InMemoryEpochs):
    """Epochs over a DataGenerator with lengths. Batches of a form have the same width and number of rows.

    Outputs for the metrics of the epoch get zeros beyond the width of their batch. Their targets are not cut.
    """

    widths: list[int]  # of each form

    def find_forms(self, full: int, last: int) -> tuple[list[int], np.ndarray | None]:
        data, groups = self.generator, self.generator.groups
        assert groups is not None
        size, lengths = data.batch_size, groups.lengths
        batches, rest = np.split(data._order[: full * size + last], [full * size])
        batches = batches.reshape(full, size)
        if data.shuffle:  # the full batches of each epoch have the same widths, unless other rows are left out
            lengths = groups.widths[groups.groups]
            widths = np.unique(lengths if data.drop_last else lengths[batches].max(axis=1, initial=1))
        else:
            longest = lengths[batches].max(axis=1, keepdims=True, initial=1)
            widths = choose_widths(longest, MAX_WIDTHS - (last > 0))
            lengths = lengths.copy()
            lengths[batches] = longest
        last_widths = [lengths[rest].max()] if last else []
        self.widths = [*map(int, (*widths, *last_widths))]
        return [size] * len(widths) + [last] * len(last_widths), np.searchsorted(widths, lengths).astype(np.int64)

    def cut_columns(self, form: int) -> list[np.ndarray]:
        return self.generator.groups.cut(self.columns, self.widths[form])  # type: ignore[union-attr]

    def find_form_program(self, form: int) -> Program:
        layout = (self.data.layout(), *[column.shape[1:] for column in self.columns])
        return self.find_program("fetch, cut and step", layout, self.cut_columns(form), self.batch_sizes[form])

    def fetched_columns(self, form: int) -> list[tuple[int, np.ndarray]]:
        layout, columns = self.data.layout(), list(enumerate(self.columns))
        needs_targets = self.objective.epoch_metrics and any(self._cut_targets())
        targets = columns[layout.inputs : layout.inputs + layout.targets] if needs_targets else []
        return [*enumerate(self.cut_columns(form)), *targets]

    def output_specs(self, outputs: list[np.ndarray], form: int) -> list[tuple[Any, ...]]:
        """Return the shapes and dtypes of rows of the epoch's outputs. An output is as wide as its cut target."""
        follows, cut_targets = follow_lengths(outputs, self.widths[form]), self._cut_targets()
        if len(cut_targets) != len(outputs):
            cut_targets = [any(cut_targets)] * len(outputs)
        width = self.columns[0].shape[1]
        return [
            ((width, *y.shape[2:]) if is_cut and is_wide else y.shape[1:], y.dtype)
            for y, is_cut, is_wide in zip(outputs, cut_targets, follows, strict=True)
        ]

    def compute_results(self, sums: np.ndarray, epoch_rows: dict[str, np.ndarray]) -> np.ndarray:
        """Return loss and metrics. The metrics of an evaluation get the rows in the order of the data."""
        order = self.generator._order
        if not self.generator.shuffle and all(len(rows) == len(order) for rows in epoch_rows.values()):
            epoch_rows = {name: rows[order.argsort()] for name, rows in epoch_rows.items()}
        return super().compute_results(sums, epoch_rows)

    def _set_programs(self, programs: list[Program], current: list[Program]) -> None:
        share_temporaries(current)  # a batch has one width
        super()._set_programs(programs, current)

    def _record(self, programs: list[Program], form: int) -> None:
        """Take the next step, and record it. It is the same step for all widths, so it confirms their recordings."""
        super()._record(programs, form)
        for program in programs:
            program.extend_replays(programs[form])

    def _cut_targets(self) -> list[bool]:
        """Return, for each target, whether it is cut."""
        layout = self.data.layout()
        return self.generator.groups.is_cut[layout.inputs : layout.inputs + layout.targets]  # type: ignore[union-attr]
