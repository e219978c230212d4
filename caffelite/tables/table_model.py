"""TableModel: a Model for the rows of a table, which knows the name of its target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from caffelite.core.function import Function
from caffelite.files import structure
from caffelite.model.model import Model
from caffelite.tables.columns import Columns


@structure.register
class TableModel(Model):
    """A Model that takes frames, and predicts a column.

    Parameters
    ----------
    functions : list of Function
        Columns or Splines and the Functions after them; or a Parallel of Models that begin so.
    target : str
        The name of the predicted column.
    classes : list of str, optional
        The names of the classes: then the outputs (n, classes) are probabilities. Without them, outputs are values
        (n, 1).

    Raise ValueError for other Functions, and for outputs of another shape.
    """

    def __init__(
        self,
        functions: Iterable[Function],
        target: str,
        classes: Sequence[str] | None = None,
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

    @property
    def columns(self) -> Columns:
        """The table's columns. `columns.arrays(frame)` returns the arrays that an exported model takes."""
        return self.frame_reader
