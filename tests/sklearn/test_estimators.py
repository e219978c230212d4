"""Estimators: kinds of data, warm starts, weights, searches, and errors."""

import copy
import os
import pickle
import subprocess
import sys
import warnings
from functools import partial

import joblib
import numpy as np
import pytest
import sklearn
from scipy import sparse
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import BaggingClassifier, StackingRegressor, VotingClassifier
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_validate
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils._param_validation import InvalidParameterError

import caffelite as cl
from caffelite import sklearn as ours
from tests.conftest import bits
from tests.sklearn.estimators import data_for, diabetes, estimators, net, weight_bits, wine

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

# ---- dtypes, kinds of data ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", estimators(max_iter=3, random_state=0), ids=lambda e: type(e).__name__)
@pytest.mark.parametrize(("given", "expected"), [("f4", "f4"), ("f8", "f8"), ("i4", "f8"), ("f2", "f8"), ("?", "f8")])
def test_float32_stays_float32_and_other_dtypes_become_float64(estimator, given, expected):
    x, y = data_for(estimator)
    x = (x > 0 if given == "?" else 3 * x).astype(given)
    fitted = clone(estimator).fit(x, y)
    assert {p.dtype for p in fitted.model_.parameters()} == {np.dtype(expected)}
    predict = fitted.predict_proba if hasattr(fitted, "predict_proba") else fitted.predict
    assert predict(x).dtype == expected


@pytest.mark.parametrize("estimator", estimators(max_iter=4, random_state=0), ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("container", [sparse.csr_matrix, sparse.csr_array, sparse.csc_array])
def test_sparse_rows_are_learned_from_as_dense_ones_are(estimator, container):
    x, y = data_for(estimator)
    x = x * (x > 0.5)
    one, other = clone(estimator).fit(x, y), clone(estimator).fit(container(x), y)
    for a, b in zip(one.model_.parameters(), other.model_.parameters(), strict=True):
        np.testing.assert_allclose(b.data, a.data, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(other._predict_scores(container(x)), one._predict_scores(x), rtol=1e-7, atol=1e-9)


def test_sparse_rows_go_with_lbfgs_and_early_stopping():
    x, y = wine()
    x = sparse.csr_array(x * (x > 0))
    for options in ({"solver": "lbfgs"}, {"early_stopping": True, "learning_rate_init": 0.05}):
        assert ours.MLPClassifier(20, random_state=0, max_iter=60, **options).fit(x, y).score(x, y) > 0.9


def test_odd_layouts_give_the_same_bits():
    x, y = wine()
    plain = ours.MLPClassifier(10, max_iter=3, random_state=0).fit(x, y)
    read_only = x.copy()
    read_only.flags.writeable = False
    for odd in (np.asfortranarray(x), np.repeat(x, 2, axis=0)[::2], read_only, x.astype(">f8")):
        assert weight_bits(clone(plain).fit(odd, y)) == weight_bits(plain)


@pytest.mark.parametrize(
    "labels", [np.array(["x", "y", "z"]), np.array(["x", "y", "z"], object), np.array([-7, 3, 99])]
)
def test_labels_may_be_anything(labels):
    x, y = wine()
    estimator = ours.MLPClassifier(20, max_iter=30, learning_rate_init=0.05, random_state=0).fit(x, labels[y])
    assert (estimator.classes_ == np.sort(labels)).all()
    assert estimator.score(x, labels[y]) > 0.95


def test_a_single_class_is_always_predicted():
    x, _ = wine()
    estimator = ours.MLPClassifier(5, max_iter=2).fit(x, ["only"] * len(x))
    assert set(estimator.predict(x)) == {"only"}
    assert (estimator.predict_proba(x) == 1).all()
    assert (estimator.predict_log_proba(x) == 0).all()


def test_logarithms_of_probabilities_of_0_are_finite():
    x, y = wine()
    for classes in (y, y == 1, np.eye(3)[y]):
        estimator = ours.MLPClassifier(5, max_iter=1, random_state=0).fit(x, classes)
        estimator.coefs_ = [1e4 * w for w in estimator.coefs_]
        assert (estimator.predict_proba(x) == 0).any()
        assert np.isfinite(estimator.predict_log_proba(x)).all()


def test_a_row_alone_is_predicted_as_in_its_batch():
    x, y = wine()
    estimator = ours.MLPClassifier(20, max_iter=5, random_state=0, batch_norm=True, dropout=0.2).fit(x, y)
    together = estimator.predict_proba(x)
    assert all((estimator.predict_proba(x[i : i + 1])[0] == together[i]).all() for i in range(0, len(x), 20))


def test_a_model_of_indices_gets_integers():
    def build(features, outputs):
        return cl.Model([cl.Embedding(50, 8), cl.Flatten(), cl.Linear(8 * features, outputs)])

    rng = np.random.default_rng(0)
    x = rng.integers(0, 50, (300, 4))
    y = x[:, 0] % 3
    estimator = ours.NetClassifier(build, max_iter=60, learning_rate_init=0.02, random_state=0).fit(x, y)
    assert estimator.score(x, y) > 0.95
    with pytest.raises(IndexError, match=r"50 in row 0"):
        estimator.predict(np.full((1, 4), 50))


# ---- going on -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["adam", "sgd"])
@pytest.mark.parametrize("estimator", estimators(random_state=0, tol=0), ids=lambda e: type(e).__name__)
def test_a_warm_start_and_partial_fit_continue_the_training(estimator, solver):
    x, y = data_for(estimator)
    estimator = clone(estimator).set_params(solver=solver, shuffle=False, max_iter=6)
    whole = clone(estimator).fit(x, y)
    warm = clone(estimator).set_params(max_iter=3, warm_start=True).fit(x, y).fit(x, y)
    part = clone(estimator)
    for _ in range(6):
        part.partial_fit(x, y, **({"classes": np.unique(y)} if hasattr(part, "predict_proba") else {}))
    assert weight_bits(whole) == weight_bits(warm) == weight_bits(part)
    assert whole.loss_curve_ == warm.loss_curve_ == part.loss_curve_
    assert (whole.t_, warm.t_, part.t_) == (6 * len(x),) * 3
    assert (whole.n_iter_, warm.n_iter_, part.n_iter_) == (6, 3, 1)


def test_partial_fit_draws_another_order_each_time():
    x, y = diabetes()
    options = {"batch_size": 30, "random_state": 0, "learning_rate_init": 0.01}
    one = ours.MLPRegressor(5, max_iter=1, **options).fit(x, y)
    again = copy.deepcopy(one)
    again._random_state = np.random.RandomState(9)
    assert weight_bits(one.partial_fit(x, y)) != weight_bits(again.partial_fit(x, y))


def test_parameters_set_between_two_partial_fits_take_effect():
    x, y = diabetes()
    estimator = ours.MLPRegressor(5, random_state=0).partial_fit(x, y)
    optimizer = estimator._optimizer
    assert estimator.partial_fit(x, y)._optimizer is optimizer
    estimator.set_params(learning_rate_init=0.5, alpha=3.0).partial_fit(x, y)
    assert estimator._optimizer.lr == 0.5
    assert estimator._objective.alpha == 3.0
    assert estimator._optimizer.steps[0, 1] == 3  # which it remembers


def test_the_falling_rate_goes_on_in_a_warm_start():
    x, y = diabetes()
    options = {"solver": "sgd", "learning_rate": "invscaling", "power_t": 0.25, "warm_start": True, "max_iter": 2}
    estimator = ours.MLPRegressor(5, learning_rate_init=0.1, **options).fit(x, y).fit(x, y)
    assert estimator._optimizer.lr == pytest.approx(0.1 / (4 * len(x) + 1) ** 0.25)


def test_a_new_rate_keeps_the_way_of_the_velocity_in_a_warm_start():
    x, y = diabetes()
    options = {"solver": "sgd", "warm_start": True, "max_iter": 2, "random_state": 0}
    estimator = ours.MLPRegressor(5, learning_rate_init=1e-3, **options).fit(x, y)
    (velocity,) = estimator._optimizer.vectors().values()
    estimator.set_params(learning_rate_init=1e-2)._prepare(is_partial=True)
    (scaled,) = estimator._optimizer.vectors().values()
    assert velocity.any()
    np.testing.assert_allclose(scaled, velocity / 10, rtol=1e-12)


def test_early_stopping_holds_out_the_same_rows_in_a_warm_start():
    x, y = wine()
    options = {"random_state": 0, "early_stopping": True, "warm_start": True, "max_iter": 5}
    estimator = ours.MLPClassifier(10, **options).fit(x, y)
    scores, best = estimator.validation_scores_.copy(), estimator.best_validation_score_
    estimator.fit(x, y)
    assert estimator.validation_scores_[:5] == scores
    assert len(estimator.validation_scores_) == 10
    assert estimator.best_validation_score_ >= best


def test_early_stopping_ends_with_the_best_model():
    x, y = diabetes()
    kept = []

    def keep(epoch, history):
        kept.append(copy.deepcopy(estimator.model_))

    options = {"early_stopping": True, "n_iter_no_change": 8, "learning_rate_init": 0.05, "random_state": 1}
    estimator = ours.MLPRegressor(30, callbacks=[keep], batch_norm=True, **options)
    estimator.fit(x, y)
    best = int(np.argmax(estimator.validation_scores_))
    assert best < estimator.n_iter_ - 1
    state, expected = estimator.model_.state_dict(), kept[best].state_dict()
    assert all((state[name] == expected[name]).all() for name in expected)


@pytest.mark.parametrize("estimator", estimators(max_iter=4, random_state=0), ids=lambda e: type(e).__name__)
def test_pickles_and_copies_predict_and_learn_on_as_the_original(estimator, tmp_path):
    x, y = data_for(estimator)
    fitted = clone(estimator)
    if hasattr(fitted, "dropout"):
        fitted.set_params(dropout=0.1, batch_norm=True)
    fitted.fit(x, y)
    joblib.dump(fitted, tmp_path / "estimator")
    mapped = joblib.load(tmp_path / "estimator", mmap_mode="r")  # in arrays that can't be written
    for other in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted), mapped):
        assert (other.predict(x) == fitted.predict(x)).all()
        assert weight_bits(other.partial_fit(x, y)) == weight_bits(copy.deepcopy(fitted).partial_fit(x, y))
    assert not hasattr(clone(fitted), "model_")


def test_a_model_whose_pickle_is_read_only_keeps_its_parameters(tmp_path):
    model = cl.MLP(3, [4, 1], seed=0)
    joblib.dump(model, tmp_path / "model")
    mapped = joblib.load(tmp_path / "model", mmap_mode="r")
    assert bits(mapped) == bits(model)


# ---- weights, searches, ensembles ---------------------------------------------------------------------------------


def test_weights_of_classes_are_weights_of_rows():
    x, y = wine()
    names = np.array(["a", "b", "c"])[y]
    options = {"hidden_layer_sizes": 8, "max_iter": 5, "random_state": 0}
    by_class = ours.MLPClassifier(class_weight={"a": 3.0, "c": 0.0}, **options).fit(x, names)
    by_row = ours.MLPClassifier(**options).fit(x, names, sample_weight=np.array([3.0, 1.0, 0.0])[y])
    assert weight_bits(by_class) == weight_bits(by_row)
    balanced = ours.MLPClassifier(class_weight="balanced", **options).fit(x, names, sample_weight=np.full(len(x), 2.0))
    counted = ours.MLPClassifier(**options).fit(x, names, sample_weight=2 * (len(x) / (3 * np.bincount(y)))[y])
    assert weight_bits(balanced) == weight_bits(counted)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("solver", ["adam", "sgd", "lbfgs"])
def test_a_row_of_weight_2_is_two_rows_in_both_dtypes(dtype, solver):
    x, y = (array[:60] for array in wine(classes=2))
    options = {"hidden_layer_sizes": 8, "max_iter": 8, "alpha": 0.3, "random_state": 0, "solver": solver}
    weights = np.where(np.arange(60) < 20, 2.0, 1.0)
    x, twice = x.astype(dtype), [*range(60), *range(20)]
    for estimator, target in ((ours.MLPClassifier, y), (ours.MLPRegressor, x[:, 0])):
        # batches of all rows: the two trainings see the same sums
        weighted = estimator(batch_size=60, **options).fit(x, target, sample_weight=weights)
        repeated = estimator(batch_size=80, **options).fit(x[twice], target[twice])
        for a, b in zip(weighted.coefs_, repeated.coefs_, strict=True):
            assert a.dtype == dtype
            np.testing.assert_allclose(a, b, 1e-3 if dtype == np.float32 else 1e-9, 1e-5)


def test_weights_are_routed_to_the_estimator():
    x, y = wine(classes=2)
    estimator = ours.MLPClassifier(8, max_iter=5, random_state=0)
    weights = np.linspace(0, 2, len(x))
    with sklearn.config_context(enable_metadata_routing=True):
        routed = make_pipeline(
            StandardScaler().set_fit_request(sample_weight=False), clone(estimator).set_fit_request(sample_weight=True)
        )
        routed.fit(x, y, sample_weight=weights)
    direct = estimator.fit(StandardScaler().fit_transform(x), y, sample_weight=weights)
    assert weight_bits(routed[-1]) == weight_bits(direct)


def tasks(n_jobs):
    """Return what searches, ensembles and the like find in so many workers, as an array, by name: each is called."""
    x, y = wine()
    numbers, targets = diabetes()
    classifier = ours.MLPClassifier(8, max_iter=20, learning_rate_init=0.03, random_state=0)
    network = ours.NetClassifier(net, max_iter=10, learning_rate_init=0.03)
    regressor = ours.NetRegressor(net, max_iter=30, learning_rate_init=0.01, random_state=0)
    pipeline = make_pipeline(StandardScaler(), classifier)
    grid = {"mlpclassifier__alpha": [1e-4, 1.0], "mlpclassifier__activation": ["relu", "tanh"]}
    kinds = [("net", regressor), ("perceptron", ours.MLPRegressor(8, max_iter=30, random_state=0)), ("ridge", Ridge())]
    two = [("perceptron", classifier), ("pipeline", pipeline)]

    def bagging():  # each by itself: in what order they are summed up depends on the number of workers
        ensemble = BaggingClassifier(network, 3, random_state=0, n_jobs=n_jobs).fit(x, y)
        return np.concatenate([member.predict_proba(x) for member in ensemble.estimators_])

    def cross_validation():
        of_parts = cross_validate(classifier, x, y, cv=2, n_jobs=n_jobs, return_estimator=True)["estimator"]
        return np.concatenate([estimator.predict_proba(x) for estimator in of_parts])

    def several_outputs():
        model = MultiOutputRegressor(regressor, n_jobs=n_jobs).fit(numbers, np.stack([targets, numbers[:, 0]], 1))
        return model.predict(numbers)

    return {
        "search": lambda: GridSearchCV(pipeline, grid, cv=2, n_jobs=n_jobs).fit(x, y).cv_results_["mean_test_score"],
        "bagging": bagging,
        "voting": lambda: VotingClassifier(two, voting="soft", n_jobs=n_jobs).fit(x, y).predict_proba(x),
        "calibration": lambda: CalibratedClassifierCV(classifier, cv=2, n_jobs=n_jobs).fit(x, y).predict_proba(x),
        "one against the rest": lambda: OneVsRestClassifier(classifier, n_jobs=n_jobs).fit(x, y).predict_proba(x),
        "cross-validation": cross_validation,
        "predictions": lambda: cross_val_predict(classifier, x, y, cv=2, n_jobs=n_jobs, method="predict_proba"),
        "stacking": lambda: StackingRegressor(kinds, cv=2, n_jobs=n_jobs).fit(numbers, targets).predict(numbers),
        "several outputs": several_outputs,
    }


@pytest.fixture(scope="module")
def single_worker_results():
    """Return what the tasks find in this process, one after the other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: task() for name, task in tasks(None).items()}


def test_they_go_into_searches_ensembles_calibration_and_cross_validation(single_worker_results):
    y, targets = wine()[1], diabetes()[1]
    for name in ("bagging", "voting", "calibration", "one against the rest", "cross-validation", "predictions"):
        labels = single_worker_results[name].argmax(axis=1)
        assert (labels == np.tile(y, len(labels) // len(y))).mean() > 0.9, name
    assert single_worker_results["search"].max() > 0.9
    for predictions in (single_worker_results["stacking"], single_worker_results["several outputs"][:, 0]):
        assert np.corrcoef(predictions, targets)[0, 1] > 0.6


def threads_here():
    """How many threads kernels may use in this process."""
    return cl.get_num_threads()


PROCESSES = [pytest.param(name, marks=pytest.mark.slow) for name in ("loky", "multiprocessing")]  # seconds to begin


@pytest.mark.parametrize("backend", ["threading", *PROCESSES])
def test_two_workers_find_to_the_bit_what_one_finds_and_share_the_processors(backend, single_worker_results):
    own = tasks(2)
    if backend == "multiprocessing":
        del own["calibration"]  # which scikit-learn cannot pickle without cloudpickle, whatever the estimator
    mapped = {} if backend == "threading" else {"max_nbytes": 100}  # larger arrays come as files that are read-only
    with joblib.parallel_config(backend=backend, **mapped), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, task in own.items():
            assert task().tobytes() == single_worker_results[name].tobytes(), name
        threads = joblib.Parallel(n_jobs=2)(joblib.delayed(threads_here)() for _ in range(4))
    if backend == "loky":  # joblib says it in the environment
        assert set(threads) == {int(os.environ.get("OMP_NUM_THREADS", max(joblib.cpu_count() // 2, 1)))}
    elif backend == "multiprocessing":  # forked
        assert set(threads) == {1}


# ---- errors -------------------------------------------------------------------------------------------------------


def test_unusable_arguments_are_named():
    x, y = wine()
    numbers, targets = diabetes()
    fitted = ours.MLPClassifier(5, max_iter=2, warm_start=True).fit(x, y)
    mlp, regressor = partial(ours.MLPClassifier, 5), partial(ours.MLPRegressor, 5)
    cases = [
        (
            TypeError,
            r"build: expected .* Model, but it returned 3",
            lambda: ours.NetClassifier(lambda n, k: 3).fit(x, y),
        ),
        (TypeError, r"build: .* got a model, Model\(\[Linear", lambda: ours.NetClassifier(cl.MLP(13, [3])).fit(x, y)),
        (ValueError, r"'build' parameter .* callable", lambda: ours.NetClassifier(None).fit(x, y)),
        (
            ValueError,
            r"build: .* 3 outputs a row, \(n, 3\), got .* shape \(178, 4\)",
            lambda: ours.NetClassifier(lambda n, k: cl.MLP(n, [k + 1])).fit(x, y),
        ),
        (
            ValueError,
            r"13 features, shape \(178, 13\)",
            lambda: ours.NetClassifier(lambda n, k: cl.MLP(n + 1, [k])).fit(x, y),
        ),
        (ValueError, r"'callbacks' parameter .* 'list'", lambda: mlp(callbacks=print).fit(x, y)),
        (ValueError, r"eval_set: .* got a list of 1", lambda: mlp().fit(x, y, eval_set=[(x, y)])),
        (
            ValueError,
            r"continues .* hidden_layer_sizes was 5, now it is \(7,\)",
            lambda: mlp(warm_start=True, max_iter=1).fit(x, y).set_params(hidden_layer_sizes=(7,)).fit(x, y),
        ),
        (
            ValueError,
            r"continues .* build was <",
            lambda: (
                ours.NetRegressor(net)
                .partial_fit(numbers, targets)
                .set_params(build=print)
                .partial_fit(numbers, targets)
            ),
        ),
        (ValueError, r"y\[0\] is 7, .* \[0 1 2\]", lambda: fitted.partial_fit(x[:2], [7, 0])),
        (ValueError, r"eval_set: expected \(X, y\)", lambda: mlp().fit(x, y, eval_set=x)),
        (ValueError, r"y\[1\] is 4", lambda: mlp().fit(x, y, eval_set=(x[:2], [0, 4]))),
        (ValueError, r"classes \[0 1 2\]; y has \[0 1\]", lambda: fitted.fit(x[y < 2], y[y < 2])),
        (ValueError, r"classes are \[0 1\], and were \[0 1 2\]", lambda: fitted.partial_fit(x, y, classes=[0, 1])),
        (ValueError, r"classes must be passed", lambda: mlp().partial_fit(x, y)),
        (
            ValueError,
            r"does not support early_stopping",
            lambda: mlp(early_stopping=True).partial_fit(x, y, None, [0, 1, 2]),
        ),
        (ValueError, r"needs all rows", lambda: mlp(class_weight="balanced").partial_fit(x, y, None, [0, 1, 2])),
        (ValueError, r"hidden_layer_sizes must be at least 1", lambda: ours.MLPClassifier((5, 0)).fit(x, y)),
        (TypeError, r"hidden_layer_sizes must be an integer", lambda: ours.MLPClassifier((5, 2.5)).fit(x, y)),
        (ValueError, r"'dropout' parameter .* must be a float in the range \[0", lambda: mlp(dropout=1.0).fit(x, y)),
        (ValueError, r"'solver' parameter", lambda: mlp(solver="newton").fit(x, y)),
        (ValueError, r"Leave out Dropout", lambda: mlp(solver="lbfgs", dropout=0.5).fit(x, y)),
        (
            ValueError,
            r"epoch \d+, batch 1: .* scale the features",
            lambda: regressor(solver="sgd", learning_rate_init=1e9).fit(numbers, targets),
        ),
        (ValueError, r"target -?\d.* in row \d+: counts", lambda: regressor(loss="poisson").fit(numbers, targets)),
        (ValueError, r"zero", lambda: regressor().fit(numbers, targets, np.zeros(150))),
        (ValueError, r"-1\.0 in row 0", lambda: regressor().fit(numbers, targets, np.full(150, -1.0))),
        (
            ValueError,
            r"expected 1 targets a row",
            lambda: regressor(warm_start=True).fit(numbers, targets).fit(numbers, np.eye(150)),
        ),
        (
            ValueError,
            r"validation set is too small",
            lambda: regressor(early_stopping=True).fit(numbers[:2], targets[:2]),
        ),
        (
            ValueError,
            r"indicator matrix of 3 columns",
            lambda: mlp(warm_start=True).fit(x, np.eye(3)[y]).fit(x, np.eye(4)[y]),
        ),
        (
            ValueError,
            r"counts nowhere|indicator matrix of 0 and 1|Unknown label type|multioutput",
            lambda: mlp().fit(x, np.stack([y, y], 1)),
        ),
        (NotFittedError, "not fitted", lambda: mlp().predict(x)),
        (NotFittedError, "not fitted", lambda: mlp().coefs_),
        (NotFittedError, "not fitted", lambda: mlp().intercepts_),
        (ValueError, "13 features", lambda: fitted.predict(x[:, :4])),
    ]
    for error, text, call in cases:
        with pytest.raises(error, match=text):
            call()
    assert not hasattr(ours.MLPClassifier(solver="lbfgs"), "partial_fit")


def test_an_early_stopped_training_that_diverges_is_the_best_model_before_that():
    x, y = diabetes()

    def explode(epoch, history):
        if epoch == 3:
            estimator._optimizer.lr = 1e200

    estimator = ours.MLPRegressor(8, early_stopping=True, callbacks=[explode], random_state=0)
    with pytest.warns(ConvergenceWarning, match=r"diverged in epoch \d+"):
        estimator.fit(x, y)
    assert np.isnan(estimator.validation_scores_[-1])
    assert len(estimator.loss_curve_) == len(estimator.validation_scores_) == estimator.n_iter_
    assert np.nanmax(estimator.validation_scores_) == estimator.best_validation_score_
    assert np.isfinite(estimator.predict(x)).all()


def test_without_scikit_learn_the_extra_is_named():
    program = "import sys; sys.modules['sklearn'] = None\nimport caffelite.sklearn"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "-m pip install scikit-learn scipy" in run.stderr.splitlines()[-1]


def test_a_training_that_has_not_converged_warns_in_the_callers_line():
    x, y = wine()
    for options in ({}, {"solver": "lbfgs"}):
        with pytest.warns(ConvergenceWarning, match="not converged after 2 iterations") as caught:
            ours.MLPClassifier(5, max_iter=2, **options).fit(x, y)
        assert caught[0].filename == __file__


def test_partial_fit_looks_at_the_parameters_before_the_classes():
    with pytest.raises(InvalidParameterError, match="activation"):
        ours.MLPClassifier(activation=object()).partial_fit([[0.0]], [0])


def test_a_build_that_writes_call_gets_only_the_users_rows_and_needs_an_output_for_each_class():
    shapes = []

    class CallNet(cl.Model):
        def __init__(self, features, outputs):
            super().__init__(seed=0)
            self.layer = cl.Linear(features, outputs)

        def call(self, x):
            shapes.append(x.shape)
            return self.layer(x)

    x, y = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 3
    with pytest.warns(cl.NotRecorded):
        ours.NetClassifier(lambda features, outputs: CallNet(features, outputs), max_iter=1, batch_size=20).fit(x, y)
    assert set(shapes) == {(20, 4)}
    with pytest.raises(ValueError, match=r"a model of 3 outputs a row, \(n, 3\), got one .* shape \(None, 5\)"):
        ours.NetClassifier(lambda features, outputs: CallNet(features, 5), batch_size=20).fit(x, y)
