"""caffelite's estimators of tables as a model of AutoGluon, as TabArena asks for."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from autogluon.core.models import AbstractModel

if TYPE_CHECKING:
    import pandas as pd


BASE_BYTES = 500_000_000  # of Python and the packages


class CaffeliteModel(AbstractModel):
    """A mean of a few small nets of piecewise linear functions of the columns, trained on processors.

    The nets follow D. Holzmüller, L. Grinsztajn and I. Steinwart, "Better by default", NeurIPS 2024, and Y. Gorishniy,
    A. Kotelnikov and A. Babenko, "TabM", ICLR 2025. Words, categories and missing values are left to caffelite.

    License: MIT
    """

    ag_key = "TA-CAFFELITE"
    ag_name = "TA-caffelite"
    ag_priority = 65
    seed_name = "random_state"
    warmup_modules = ("caffelite.sklearn",)

    _supported_problem_types = ["binary", "multiclass", "regression"]  # noqa: RUF012
    default_resources_physical_cores_only = True

    def _fit(
        self,
        X: pd.DataFrame,
        y: pd.Series,
        X_val: pd.DataFrame | None = None,
        y_val: pd.Series | None = None,
        time_limit: float | None = None,
        sample_weight: pd.Series | None = None,
        sample_weight_val: pd.Series | None = None,
        num_cpus: int = 1,
        **kwargs,
    ) -> None:
        from tabarena.models.caffelite._internal.estimators import HoldoutClassifier, HoldoutRegressor

        from caffelite import get_num_threads, set_num_threads

        estimator_class = HoldoutRegressor if self.problem_type == "regression" else HoldoutClassifier
        # time_limit is in seconds of the clock. On several threads, the estimator needs fewer of these than its `time`.
        self.model = estimator_class(**self._get_model_params(), time=time_limit)
        X = self.preprocess(X, y=y, is_train=True)
        X_val = None if X_val is None else self.preprocess(X_val)
        threads = get_num_threads()
        set_num_threads(num_cpus)
        try:
            self.model.fit(X, y, sample_weight, X_val=X_val, y_val=y_val, weight_val=sample_weight_val)
        finally:
            set_num_threads(threads)

    @classmethod
    def _estimate_memory_usage_static(cls, *, X: pd.DataFrame, hyperparameters: dict | None = None, **kwargs) -> int:
        """Return how many bytes a fit takes at most.

        The nets have a vector for each bin of a column and for each category. Beside BASE_BYTES, fits of tables of up
        to 100,000 rows, 2,000 columns and 10,000 categories took 23 to 90 % of this estimate.
        """
        from caffelite.sklearn import TableClassifier

        params = {k: v for k, v in (hyperparameters or {}).items() if k in TableClassifier().get_params()}
        recipe = TableClassifier(**params)._recipe()
        categories = X.select_dtypes(exclude=["number", "bool"]).nunique()
        vectors = (X.shape[1] - len(categories)) * (recipe.max_bins + 2) + (categories + 2).sum()
        hidden = recipe.hidden[0] * vectors + sum(a * b for a, b in pairwise(recipe.hidden))
        return int(BASE_BYTES + 4 * X.memory_usage().sum() + 11 * 4 * recipe.number_of_nets(len(X)) * hidden)
