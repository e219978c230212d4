"""TableClassifier and TableRegressor with rows of validation that the caller has held out.

By default each net of an estimator holds out an eighth of its rows, and keeps its best epoch on them. TabArena holds
rows out itself, and wants a model to hold out none of the others. Here all nets train on all rows of X, and keep their
best epoch on those of X_val.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from caffelite.sklearn import TableClassifier, TableRegressor
from caffelite.tables import recipe as recipes


class Holdout:
    """The part of `fit` that both estimators have in common. Without X_val it is theirs."""

    _validation: Any = None

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, X_val: Any = None, y_val: Any = None, weight_val: Any = None
    ) -> Any:
        self._validation = None if X_val is None else (X_val, np.asarray(y_val), weight_val)
        try:
            return super().fit(X, y, sample_weight)
        finally:
            self._validation = None

    def _train_nets(self, frame: Any, targets: Any, weights: Any, outputs: int, loss: Any, budget: Any) -> Any:
        if self._validation is None:
            return super()._train_nets(frame, targets, weights, outputs, loss, budget)
        X_val, y_val, weight_val = self._validation
        rows, arrays = len(targets), self.columns_.arrays(frame, "X")
        arrays_val = self.columns_.arrays(self._to_frame(X_val, "no_validation", reset=False), "X_val")
        if weights is not None:
            weights = np.concatenate([weights, np.ones(len(y_val)) if weight_val is None else weight_val])
        trained = recipes.train(
            self._recipe(),
            self.columns_,
            tuple([np.concatenate(pair) for pair in zip(arrays, arrays_val, strict=True)]),
            np.concatenate([targets, self._validation_targets(y_val)]),
            outputs=outputs,
            loss=loss,
            random=check_random_state(self.random_state),
            weights=weights,
            budget=budget,
            validation_rows=np.arange(rows, rows + len(y_val)),
        )
        self.histories_ = [t.history for t in trained]
        self.background_ = recipes.sample_background(arrays, np.arange(rows), 100)
        return [t.net for t in trained]


class HoldoutClassifier(Holdout, TableClassifier):
    """TableClassifier with `fit(X, y, X_val=…, y_val=…)`. Every class of y_val is in y."""

    def _validation_targets(self, y_val: np.ndarray) -> np.ndarray:
        if unknown := set(y_val.tolist()) - set(self.classes_.tolist()):
            raise ValueError(f"y_val has classes that y does not have: {sorted(unknown)}")
        return np.searchsorted(self.classes_, y_val)


class HoldoutRegressor(Holdout, TableRegressor):
    """TableRegressor with `fit(X, y, X_val=…, y_val=…)`."""

    def _validation_targets(self, y_val: np.ndarray) -> np.ndarray:
        return ((y_val.astype(np.float64) - self._center) / self._scale)[:, np.newaxis]
