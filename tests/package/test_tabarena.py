"""The model for TabArena in benchmarks/tabarena: its estimators, its wrapper without AutoGluon, and with it."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import caffelite as cl

pd = pytest.importorskip("pandas")
pytest.importorskip("sklearn")
pytest.importorskip("narwhals")

FOLDER = Path(__file__).parents[2] / "benchmarks" / "tabarena"


class StandIn:
    """Takes any arguments, and keeps those with names. For AutoGluon's and TabArena's classes."""

    def __init__(self, *arguments, **options):
        self.__dict__ |= options

    config = classmethod(lambda cls, **options: cls(**options))

    # ---- what AutoGluon's AbstractModel offers to `_fit` ----

    def _get_model_params(self):
        return dict(self.params)

    def preprocess(self, X, **options):
        return X.drop(columns="constant")


@pytest.fixture
def package(monkeypatch):
    """Return tabarena.models.caffelite, with AutoGluon and the rest of TabArena replaced."""
    names = {
        "autogluon.core.models": ["AbstractModel"],
        "autogluon.common.space": ["Categorical", "Real"],
        "tabarena.utils.config_utils": ["ConfigGenerator"],
        "tabarena.models._method_metadata": ["MethodMetadata"],
        "tabarena.models._model_info": ["ModelInfo"],
    }
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("autogluon", "tabarena"):
            monkeypatch.delitem(sys.modules, name)
    for path, classes in names.items():
        parts = path.split(".")
        for i in range(1, len(parts) + 1):
            name = ".".join(parts[:i])
            if name not in sys.modules:
                monkeypatch.setitem(sys.modules, name, ModuleType(name))
                sys.modules[name].__path__ = []
        for name in classes:
            setattr(sys.modules[path], name, type(name, (StandIn,), {}))
    sys.modules["tabarena.models"].__path__ = [str(FOLDER / "models")]
    yield importlib.import_module("tabarena.models.caffelite")
    for name in [*sys.modules]:
        if name.startswith("tabarena.models.caffelite"):
            monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def estimators(package):
    return importlib.import_module("tabarena.models.caffelite._internal.estimators")


def make_table(rows, seed):
    """Return a frame of a number with gaps and a word, a class and a number."""
    rng = np.random.default_rng(seed)
    number, word = rng.standard_normal(rows), rng.choice(["red", "green", "blue"], rows)
    y = number + (word == "red") + 0.3 * rng.standard_normal(rows)
    number[::7] = np.nan
    frame = pd.DataFrame({"number": number, "word": pd.Categorical(word), "constant": 1.0})
    return frame, pd.Series((y > 0.5).astype(int)), pd.Series(y)


def outputs_by_net(estimator, frame):
    """Return the outputs of each net, (nets, n, outputs)."""
    outputs = estimator._nets.predict(frame).reshape(len(frame), len(estimator.histories_), -1)
    return outputs.transpose(1, 0, 2).astype(np.float64)


def log_losses(estimator, frame, targets):
    """Return the log loss of each net."""
    return [-np.log(p[np.arange(len(targets)), targets]).mean() for p in outputs_by_net(estimator, frame)]


def test_the_nets_keep_their_best_epoch_on_the_rows_of_validation_and_train_on_all_others(estimators):
    X, y, _ = make_table(150, 0)
    X_val, y_val, _ = make_table(60, 1)
    model = estimators.HoldoutClassifier(n_estimators=3, random_state=0).fit(X, y, X_val=X_val, y_val=y_val)
    best = [min(history["val_loss"]) for history in model.histories_]
    np.testing.assert_allclose(log_losses(model, X_val, y_val.to_numpy()), best, rtol=1e-5)
    assert model._validation is None

    # A row of X counts even if its fold would have held it out: each has a category of its own that all nets learn.
    X["word"] = pd.Categorical([f"word {i}" for i in range(len(X))])
    model = estimators.HoldoutClassifier(n_estimators=8, min_frequency=1, random_state=0)
    model.fit(X, y, X_val=X[:20], y_val=y[:20])
    columns = [net.functions[0] for net in model.model_[0].functions]
    for layer in columns:
        vectors = layer.weight.data[layer.rows[len(layer.numbers)] :]
        assert (np.abs(vectors[: len(X)]).max(axis=1) > 0).all()


def test_without_rows_of_validation_the_estimators_are_those_for_users(estimators):
    from caffelite.sklearn import TableClassifier, TableRegressor

    X, classes, numbers = make_table(80, 2)
    pairs = (
        (estimators.HoldoutClassifier, TableClassifier, classes, "predict_proba"),
        (estimators.HoldoutRegressor, TableRegressor, numbers, "predict"),
    )
    for holdout, estimator, y, method in pairs:
        both = [c(n_estimators=2, random_state=3).fit(X, y) for c in (holdout, estimator)]
        np.testing.assert_array_equal(*[getattr(model, method)(X) for model in both])


def test_a_regressor_judges_rows_of_validation_in_the_unit_of_its_targets(estimators):
    X, _, y = make_table(150, 0)
    X_val, _, y_val = make_table(60, 1)
    y, y_val = 1000 * y + 5000, 1000 * y_val + 5000
    model = estimators.HoldoutRegressor(n_estimators=2, random_state=0).fit(X, y, X_val=X_val, y_val=y_val)
    outputs = model._center + model._scale * outputs_by_net(model, X_val)[:, :, 0]
    errors = ((outputs - y_val.to_numpy()) ** 2).mean(axis=1) / model._scale**2
    scale = errors / [min(history["val_loss"]) for history in model.histories_]
    np.testing.assert_allclose(scale, scale[0], rtol=1e-4)  # MSELoss has a factor
    assert np.corrcoef(model.predict(X_val), y_val)[0, 1] > 0.7


def test_a_class_that_only_the_rows_of_validation_have_raises(estimators):
    X, y, _ = make_table(40, 0)
    with pytest.raises(ValueError, match=r"y_val has classes that y does not have: \[2\]"):
        estimators.HoldoutClassifier(n_estimators=1).fit(X, y, X_val=X, y_val=y + 1)


@pytest.mark.parametrize("problem", ["binary", "regression"])
def test_the_wrapper_fits_on_num_cpus_threads_and_gives_them_back(package, problem, monkeypatch):
    model_class = package.caffelite_info.model_cls
    X, classes, numbers = make_table(60, 0)
    y = numbers if problem == "regression" else classes
    model = model_class(problem_type=problem, params={"n_estimators": 1, "random_state": 0})
    model.problem_type, before, during = problem, cl.get_num_threads(), []
    recipes = importlib.import_module("caffelite.sklearn.table_estimators").recipes
    name = "average_classifiers" if problem == "binary" else "average_regressors"
    average = getattr(recipes, name)
    monkeypatch.setattr(recipes, name, lambda *nets: during.append(cl.get_num_threads()) or average(*nets))
    model._fit(X=X, y=y, X_val=X[:20], y_val=y[:20], num_cpus=before + 1, time_limit=60.0)
    assert during == [before + 1]
    assert cl.get_num_threads() == before
    assert type(model.model).__name__ == ("HoldoutRegressor" if problem == "regression" else "HoldoutClassifier")
    assert model.model.random_state == 0
    assert model.model.time == 60.0
    assert [*model.model.feature_names_in_] == ["number", "word"]  # preprocess drops a column


def test_the_estimate_of_memory_grows_with_rows_columns_categories_and_nets(package):
    estimate = package.caffelite_info.model_cls._estimate_memory_usage_static
    X = pd.DataFrame({f"x{i}": np.arange(2000.0) for i in range(10)})
    words = X.assign(word=[f"{i}" for i in range(2000)])
    small = estimate(X=X, hyperparameters=None, num_classes=2)
    assert small < estimate(X=pd.concat([X] * 5))
    assert small < estimate(X=X.assign(**{f"z{i}": 0.0 for i in range(50)}))
    assert small + 8 * 64 * 2000 * 4 < estimate(X=words)
    assert small < estimate(X=X, hyperparameters={"n_estimators": 20, "ag_args": {"name_suffix": "_r1"}})


def test_the_search_space_has_parameters_of_the_estimators(package):
    from caffelite.sklearn import TableRegressor

    generator = package.gen_caffelite
    assert set(generator.search_space) <= set(TableRegressor().get_params())
    assert package.caffelite_method_metadata.ag_key == package.caffelite_info.model_cls.ag_key


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("tabarena") is None, reason="TabArena is not installed")
def test_the_wrapper_passes_the_tests_in_tabarena(tmp_path):
    command = [sys.executable, str(FOLDER / "run.py"), "--verify"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=tmp_path, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("verified, with 201 configurations\n")
