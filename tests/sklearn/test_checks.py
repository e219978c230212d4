"""scikit-learn's own checks of estimators."""

import os
import subprocess
import sys

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks

from caffelite import sklearn as ours
from tests.sklearn.estimators import estimators, weight_bits, wine

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

# A check says this if it has nothing to check. There is no decision_function, as scikit-learn's perceptrons do not have
# one. Array API input is checked if SCIPY_ARRAY_API is set, as the slow test does.
NOTHING_TO_CHECK = {
    "check_array_api_input",
    "check_classifiers_multilabel_output_format_decision_function",
}
MLP_CLASSIFIER, *REST, NET_REGRESSOR = estimators(max_iter=60, learning_rate_init=0.01)
ONES_OF_EACH_KIND = [MLP_CLASSIFIER, NET_REGRESSOR, *[pytest.param(e, marks=pytest.mark.slow) for e in REST]]


@pytest.mark.parametrize("estimator", ONES_OF_EACH_KIND, ids=lambda e: type(e).__name__)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_checks_pass(estimator):
    results = estimator_checks.check_estimator(estimator, on_skip=None, on_fail=None)
    not_passed = {r["check_name"]: r["exception"] for r in results if r["status"] != "passed"}
    assert set(not_passed) <= NOTHING_TO_CHECK, not_passed
    assert len(results) > 55


@pytest.mark.parametrize("estimator", estimators(max_iter=5), ids=lambda e: type(e).__name__)
@pytest.mark.filterwarnings("ignore")
def test_names_of_columns_are_kept_and_compared(estimator):
    pytest.importorskip("pandas")
    estimator_checks.check_dataframe_column_names_consistency(type(estimator).__name__, estimator)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_data_frames_are_taken(library):
    frames = pytest.importorskip(library)
    x, y = wine()
    frame = frames.DataFrame({f"column {i}": column for i, column in enumerate(x.T)})
    labels = frames.Series(np.array(["a", "b", "c"])[y])
    estimator = ours.MLPClassifier(20, max_iter=20, learning_rate_init=0.05, random_state=0).fit(frame, labels)
    if hasattr(StandardScaler().fit(frame), "feature_names_in_"):  # of polars' columns not in 1.7
        assert estimator.feature_names_in_.tolist() == list(frame.columns)
    assert estimator.score(frame, labels) > 0.9
    plain = ours.MLPClassifier(20, max_iter=20, learning_rate_init=0.05, random_state=0).fit(x, y)
    assert weight_bits(estimator) == weight_bits(plain)


@pytest.mark.slow
def test_array_api_input_passes_scikit_learns_check():
    program = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "from sklearn.utils.estimator_checks import check_estimator\n"
        "from caffelite.sklearn import MLPClassifier, MLPRegressor\n"
        "for estimator in (MLPClassifier(max_iter=50), MLPRegressor(max_iter=100)):\n"
        "    results = check_estimator(estimator, on_skip=None)\n"
        "    [result] = [r for r in results if r['check_name'] == 'check_array_api_input']\n"
        "    print(result['status'], result['exception'])\n"
    )
    if not hasattr(estimator_checks, "check_array_api_input"):
        pytest.skip("this scikit-learn has no such check")
    environment = {**os.environ, "SCIPY_ARRAY_API": "1"}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert "failed" not in run.stdout
