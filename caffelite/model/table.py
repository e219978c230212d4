"""TableModel: a Model for the rows of a table, which knows the name of its target."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from caffelite.core.function import Function
from caffelite.functions import BatchNorm, Columns, Linear
from caffelite.model.model import Model


class TableModel(Model):
    """A Model that begins with Columns and a Linear layer, and predicts a column.

    Parameters
    ----------
    functions : list of Function
        Columns, Linear and the Functions after them.
    target : str
        The name of the predicted column.
    classes : list of str, optional
        The names of the classes: then the outputs (n, classes) are scores. Without them, outputs are values (n, 1).

    Raises ValueError for outputs of another shape.
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
        if [type(f) for f in self.functions[:2]] != [Columns, Linear] or not self.functions[1].arguments()["bias"]:
            raise ValueError(f"TableModel: expected Columns, Linear with a bias and what follows, got {self.functions}")
        outputs = 1 if self.classes is None else len(set(self.classes))
        rows = [(None, len(given)) for given in (self.columns.numbers, self.columns.categories) if given]
        if outputs != len(self.classes or "1") or self.output_shape(*rows) != (None, outputs):
            raise ValueError(
                "TableModel: expected a different name for each class, or classes=None for one output; "
                f"got {self.classes} for outputs {self.output_shape(*rows)}"
            )

    @property
    def columns(self) -> Columns:
        """The first Function, which makes the inputs."""
        return self.functions[0]  # type: ignore[return-value]

    def features(self) -> list[str]:
        """Return the names of the inputs of `as_sequence`: "age", for example, or "city = Ulm", which is 1 or 0."""
        of_categories = self.columns.categories.items()
        return [*self.columns.numbers, *(f"{name} = {category}" for name, known in of_categories for category in known)]

    def as_sequence(self) -> Model:
        """Return a Model of one input (n, features) that computes the same; numbers are as in the table.

        A BatchNorm standardizes the numbers. The vector of a category and the weights it is multiplied by become one
        row of weights.
        """
        columns = self.columns
        first: Any = self.functions[1]
        scaling = BatchNorm(len(self.features()), eps=0.0)
        k = len(columns.numbers)
        scaling.mean[:k], scaling.variance[:k] = columns.center, columns.scale**2
        weights = [first.weight.data[:k]]
        for known, embedding in zip(columns.categories.values(), columns.embeddings, strict=True):
            k, start = k + embedding.size, k
            weights.append(embedding.weight.data[: len(known)] @ first.weight.data[start:k])
        linear: Any = Linear(len(self.features()), first.out_features)
        linear.weight.data, linear.bias.data = np.concatenate(weights), first.bias.data
        return Model([scaling, linear, *copy.deepcopy(self.functions[2:])], dtype=self.dtype)
