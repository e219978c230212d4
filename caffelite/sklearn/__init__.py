"""Estimators for scikit-learn: its multilayer perceptrons, and any Model, trained by caffelite. Needs the extra
`sklearn`.

    from caffelite.sklearn import MLPClassifier

    model = MLPClassifier(hidden_layer_sizes=(64,), random_state=0).fit(x, y)

`MLPClassifier` and `MLPRegressor` have the parameters and fitted attributes of scikit-learn's own, with the same
meaning. `NetClassifier(build)` and `NetRegressor(build)` train the Model that `build(n_features, n_outputs)` returns.
All work in pipelines, searches, cross-validation, calibration and ensembles.
"""

from caffelite._support.extras import install_command

try:
    from sklearn.utils.validation import validate_data  # noqa: F401 (is there since 1.6)
except ImportError as error:
    raise ImportError(f"caffelite.sklearn needs scikit-learn 1.6 or later: {install_command('sklearn')}") from error

from caffelite.sklearn.estimators import MLPClassifier, MLPRegressor, NetClassifier, NetRegressor
from caffelite.sklearn.table_estimators import TableClassifier, TableRegressor

__all__ = ["MLPClassifier", "MLPRegressor", "NetClassifier", "NetRegressor", "TableClassifier", "TableRegressor"]
