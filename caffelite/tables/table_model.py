"""TableModel: a Model for the rows of a table, which knows the name of its target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from caffelite.core.function import Function
from caffelite.files import structure
from caffelite.model.model import Model
from caffelite.tables.columns import Columns
from caffelite.tables.conformal import Intervals, Sets, read_regions


@structure.register
class TableModel(Model):
    """A Model that takes frames and predicts a column.

    Parameters
    ----------
    functions : list of Function
        Columns or Splines and the Functions after them; or a Parallel of Models that begin with them.
    target : str
        The name of the predicted column.
    classes : list of str, optional
        The names of the classes: then the outputs (n, classes) are probabilities. Without them, outputs are values
        (n, 1).
    background : tuple of array-like, optional
        Training rows, as `columns.arrays` returns them. `caffelite explain` compares other rows with these. They are
        saved in the file. None is a missing number.
    regions : Intervals, Sets or dict, optional
        Intervals around the values, or Sets of classes, that contain the truth in a chosen share of new rows.
        `regions.predict(outputs, columns.arrays(frame))` returns them. They are saved in the file.

    Raise ValueError for other Functions, for outputs of another shape, and for a background or regions that do not fit.
    """

    def __init__(
        self,
        functions: Iterable[Function],
        target: str,
        classes: Sequence[str] | None = None,
        background: Sequence[Any] | None = None,
        regions: Intervals | Sets | dict[str, Any] | None = None,
        *,
        seed: int | None = None,
        dtype: Any = np.float32,
    ) -> None:
        super().__init__(functions, seed=seed, dtype=dtype)
        if not isinstance(target, str) or (classes is not None and not all(isinstance(name, str) for name in classes)):
            raise TypeError(f"TableModel: expected a target and classes that are words, got {target!r} and {classes!r}")
        self.target, self.classes = target, None if classes is None else tuple(classes)
        if self.frame_reader is None:
            raise ValueError(f"TableModel: expected Columns or Splines, and Functions after them, got {self.functions}")
        outputs = 1 if self.classes is None else len(set(self.classes))
        rows = [(None, len(names)) for names in self.columns.names]
        if outputs != len(self.classes or "1") or self.output_shape(*rows) != (None, outputs):
            raise ValueError(
                "TableModel: expected a different name for each class, or classes=None for one output; "
                f"got {self.classes} for outputs {self.output_shape(*rows)}"
            )
        self.background = None if background is None else self._read_background(background)
        if isinstance(regions, dict):
            regions = read_regions(regions, len(self.columns.numbers), len(self.columns.categories))
        if regions is not None and isinstance(regions, Sets) != (self.classes is not None):
            raise ValueError(f"TableModel: expected Sets for classes, or Intervals for values, got {regions}")
        self.regions = regions

    @property
    def columns(self) -> Columns:
        """The table's columns. `columns.arrays(frame)` returns the arrays that an exported model takes."""
        return self.frame_reader

    def arguments(self) -> dict[str, Any]:
        arguments = super().arguments()
        if self.background is not None:
            rows = [[[None if x != x else x for x in row] for row in array.tolist()] for array in self.background]
            arguments["background"] = rows
        if self.regions is not None:
            arguments["regions"] = self.regions.get_config()
        return arguments

    def _read_background(self, background: Sequence[Any]) -> tuple[np.ndarray, ...]:
        dtypes = [
            dtype for dtype, names in ((np.float64, self.columns.numbers), (np.int64, self.columns.categories)) if names
        ]
        arrays = tuple([np.array(rows, dtype) for rows, dtype in zip(background, dtypes, strict=True)])
        sizes = [len(names) for names in self.columns.names]
        if any(
            x.ndim != 2 or x.shape != (len(arrays[0]), size) or not len(x)
            for x, size in zip(arrays, sizes, strict=True)
        ):
            shapes = [x.shape for x in arrays]
            raise ValueError(f"TableModel: expected a background of rows of {sizes} numbers and codes, got {shapes}")
        return arrays
