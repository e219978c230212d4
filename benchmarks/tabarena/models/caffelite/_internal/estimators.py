"""TableClassifier and TableRegressor with rows of validation that the caller has held out.

By default each net of an estimator holds out an eighth of its rows, and keeps its best epoch on them. TabArena holds
rows out itself, and wants a model to hold out none of the others. Here all nets train on all rows of X, and keep their
best epoch on those of X_val.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from caffelite.model.many.fit import fit_many
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

    def _train_nets(self, frame: Any, targets: Any, weights: Any, outputs: int, loss: Any) -> Any:
        if self._validation is None:
            return super()._train_nets(frame, targets, weights, outputs, loss)
        X_val, y_val, weight_val = self._validation
        recipe, random, rows = self._recipe(), check_random_state(self.random_state), len(targets)
        arrays = self.columns_.arrays(frame, "X")
        arrays_val = self.columns_.arrays(self._to_frame(X_val, "no_validation", reset=False), "X_val")
        if weights is not None:
            weights = np.concatenate([weights, np.ones(len(y_val)) if weight_val is None else weight_val])
        count = recipe.number_of_nets(rows)
        batch_size, steps_per_epoch, epochs = recipe.training_length(rows, rows)
        nets = [recipe.make_net(self.columns_, outputs, random.randint(recipes.MAX_SEED)) for _ in range(count)]
        both = tuple([np.concatenate(pair) for pair in zip(arrays, arrays_val, strict=True)])
        self.histories_ = fit_many(
            nets,
            both if len(both) > 1 else both[0],
            np.concatenate([targets, self._validation_targets(y_val)]),
            loss=loss,
            optimizers=[recipe.make_optimizer(net, epochs * steps_per_epoch) for net in nets],
            epochs=epochs,
            batch_size=batch_size,
            rows=[np.arange(rows)] * count,
            sample_weight=weights,
            validation_rows=[np.arange(rows, rows + len(y_val))] * count,
            patience=epochs,
            seed=random.randint(recipes.MAX_SEED),
            verbose=0,
        )
        self.background_ = recipes.sample_background(arrays, np.arange(rows), 100)
        return nets


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
