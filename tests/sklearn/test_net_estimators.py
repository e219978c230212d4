"""Estimators of any model, with a loss or an optimizer of your own."""

import copy
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV

import caffelite as cl
from caffelite import sklearn as ours
from tests.sklearn.estimators import diabetes, net, weight_bits, wine

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def test_dropout_and_batch_norm_are_layers_drawn_from_random_state():
    x, y = wine()
    options = {"hidden_layer_sizes": (16, 8), "max_iter": 30, "dropout": 0.3, "batch_norm": True, "tol": 0}
    one, same, other = [ours.MLPClassifier(random_state=seed, **options).fit(x, y) for seed in (0, 0, 1)]
    kinds = [cl.Linear, cl.BatchNorm, cl.ReLU, cl.Dropout]
    assert [type(f) for f in one.model_.functions] == [*kinds, *kinds, cl.Linear]
    assert weight_bits(one) == weight_bits(same) != weight_bits(other)
    assert (one.predict_proba(x) == one.predict_proba(x)).all()
    assert len(one.coefs_) == len(one.intercepts_) == 3
    assert one._objective.weights == [f.weight for f in one.model_.functions if isinstance(f, cl.Linear)]


def test_coefs_are_the_models_own_and_can_be_set():
    x, y = wine()
    one, other = [ours.MLPClassifier(8, max_iter=4, random_state=seed).fit(x, y) for seed in (0, 1)]
    other.predict(x)
    other.coefs_, other.intercepts_ = one.coefs_, one.intercepts_
    assert (other.predict_proba(x) == one.predict_proba(x)).all()
    assert one.coefs_[0] is one.model_.functions[0].weight.data
    with pytest.raises(ValueError, match="shape"):
        other.coefs_ = [w.T for w in one.coefs_]


def test_a_built_model_is_drawn_from_random_state_unless_it_has_learned():
    x, y = diabetes()
    drawn = [ours.NetRegressor(net, max_iter=2, random_state=seed).fit(x, y) for seed in (0, 0, 1)]
    assert weight_bits(drawn[0]) == weight_bits(drawn[1]) != weight_bits(drawn[2])
    trained = cl.Linear(x.shape[1], 3)
    trained.weight.data = np.arange(trained.weight.size, dtype=np.float32).reshape(trained.weight.shape)
    trained.weight.requires_grad = False

    def build(features, outputs):
        return cl.Model([copy.deepcopy(trained), cl.Tanh(), cl.Linear(3, outputs)])

    estimator = ours.NetRegressor(build, max_iter=2, random_state=0).fit(x, y)
    assert (estimator.model_.functions[0].weight.data == trained.weight.data).all()


def test_a_model_may_be_any_graph():
    class WideNet(cl.Model):
        def __init__(self, features, outputs):
            super().__init__()
            self.deep, self.wide = cl.MLP(features, [16, outputs]), cl.Linear(features, outputs)

        def call(self, x):
            return self.deep(x) + self.wide(x)

    x, y = wine(dtype=np.float32)
    estimator = ours.NetClassifier(WideNet, max_iter=40, learning_rate_init=0.01, random_state=0).fit(x, y)
    assert isinstance(estimator.model_, WideNet)
    assert estimator.score(x, y) > 0.95


def make_mlp(features, outputs, width=8, activation=cl.Tanh):
    return cl.MLP(features, [width, outputs], activation)


def test_the_arguments_of_build_are_parameters_that_a_search_may_vary():
    x, y = wine()
    estimator = ours.NetClassifier(make_mlp, build__width=5, max_iter=3, random_state=0)
    assert {name: x for name, x in estimator.get_params().items() if name.startswith("build__")} == {"build__width": 5}
    assert "build__width=5" in repr(estimator)
    copied = clone(estimator)
    assert copied.get_params() == estimator.get_params()
    assert copied.set_params(build__width=7, build__activation=cl.ReLU, alpha=0.1) is copied
    with pytest.warns(ConvergenceWarning):
        copied.fit(x, y)
    assert copied.model_.functions[0].out_features == 7
    assert isinstance(copied.model_.functions[1], cl.ReLU)
    search = GridSearchCV(estimator.set_params(max_iter=1), {"build__width": [2, 20]}, cv=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        search.fit(x, y)
    assert search.best_estimator_.model_.functions[0].out_features == search.best_params_["build__width"]
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'depth'"):
        ours.NetClassifier(make_mlp, build__depth=2).fit(x, y)
    with pytest.raises(ValueError, match=r"continues .* width was 5, now it is 6"):
        ours.NetRegressor(make_mlp, build__width=5).partial_fit(x, y).set_params(build__width=6).partial_fit(x, y)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_may_be_images(dtype):
    digits, labels = load_digits(return_X_y=True)
    images = digits.reshape(-1, 1, 8, 8).astype(dtype) / 16
    shapes = []

    def build(features, outputs):
        shapes.append(features)
        return cl.Model([cl.Conv2d(features[0], 8, 3), cl.ReLU(), cl.Flatten(), cl.Linear(8 * 36, outputs)])

    options = {"max_iter": 8, "batch_size": 32, "learning_rate_init": 0.01, "random_state": 0, "early_stopping": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator = ours.NetClassifier(build, **options).fit(images[:1000], labels[:1000])
    assert shapes == [(1, 8, 8)]
    assert estimator.row_shape_ == (1, 8, 8)
    assert estimator.score(images[1000:], labels[1000:]) > 0.9
    np.testing.assert_array_equal(estimator.predict(images[:5].tolist()), estimator.predict(images[:5]))
    with pytest.raises(ValueError, match=r"rows of shape \(1, 8, 7\), but the estimator was fitted on \(1, 8, 8\)"):
        estimator.predict(images[..., :7])
    with pytest.raises(ValueError, match=r"X has 64 features, but NetClassifier is expecting 1|rows of shape"):
        estimator.predict(digits)


@pytest.mark.parametrize(
    ("loss", "outputs"), [(None, 1), (cl.SigmoidLoss(), 1), (cl.SoftmaxLoss(), 2), (cl.FocalLoss(), 2)]
)
def test_a_loss_for_two_classes_says_how_many_outputs_there_are(loss, outputs):
    x, y = wine(classes=2)
    names = np.array(["no", "yes"])[y]
    estimator = ours.NetClassifier(net, loss=loss, max_iter=60, learning_rate_init=0.01, random_state=0).fit(x, names)
    assert estimator.n_outputs_ == outputs
    assert estimator.score(x, names) > 0.95
    p = estimator.predict_proba(x)
    assert p.shape == (len(x), 2)
    np.testing.assert_allclose(p.sum(axis=1), 1)
    assert (estimator.classes_[p.argmax(axis=1)] == estimator.predict(x)).all()


def test_a_loss_of_your_own_is_what_is_minimized():
    x, y = diabetes()
    options = {"alpha": 0.0, "max_iter": 5, "random_state": 0, "batch_size": len(x)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        huber = ours.NetRegressor(net, loss=cl.HuberLoss(), **options).fit(x, y)
        squared = [ours.NetRegressor(net, loss=loss, **options).fit(x, y) for loss in (None, "squared_error")]
        counts = ours.NetRegressor(net, loss=cl.PoissonLoss(), **options).fit(x, np.abs(y))
    assert weight_bits(squared[0]) == weight_bits(squared[1]) != weight_bits(huber)
    assert (counts.predict(x) > 0).all()
    model = cl.Model(copy.deepcopy(huber.model_).functions, dtype=np.float64)
    before = model.evaluate(x, y, loss=cl.HuberLoss())["loss"]
    huber.set_params(warm_start=True, max_iter=1)
    with pytest.warns(ConvergenceWarning):
        huber.fit(x, y)
    assert huber.loss_curve_[-1] == pytest.approx(before)


def test_an_optimizer_of_your_own_takes_the_steps():
    x, y = wine()
    options = {"max_iter": 3, "random_state": 0, "alpha": 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        default = ours.NetClassifier(net, **options).fit(x, y)
        same = ours.NetClassifier(net, optimizer=lambda ps: cl.Adam(ps, 1e-3, (0.9, 0.999), 1e-8), **options).fit(x, y)
        lion = ours.NetClassifier(net, optimizer=cl.Lion, **options).fit(x, y)
    assert weight_bits(default) == weight_bits(same) != weight_bits(lion)
    with pytest.raises(
        TypeError, match=r"optimizer: expected a function \(parameters\) -> Optimizer, but it returned 3"
    ):
        ours.NetClassifier(net, optimizer=lambda ps: 3).fit(x, y)
    with pytest.raises(ValueError, match='solver="lbfgs" has its own'):
        ours.NetClassifier(net, optimizer=cl.Lion, solver="lbfgs").fit(x, y)


def test_early_stopping_goes_by_the_score_that_is_asked_for():
    x, y = wine()
    names = np.array(["a", "b", "c"])[y]
    seen = []

    def scorer(estimator, rows, labels):
        seen.append((rows.shape, set(labels)))
        return float(-len(seen))  # ever worse

    options = {"early_stopping": True, "random_state": 0, "n_iter_no_change": 3}
    estimator = ours.NetClassifier(net, scoring=scorer, **options).fit(x, names)
    assert estimator.n_iter_ == 5
    assert estimator.validation_scores_ == [-1, -2, -3, -4, -5]
    assert seen[0] == ((18, 13), {"a", "b", "c"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        named = ours.NetClassifier(net, scoring="neg_log_loss", max_iter=5, random_state=0)
        named.fit(x, names, eval_set=(x[::4], names[::4], np.arange(1.0, 46)))
    expected = -log_loss(names[::4], named.predict_proba(x[::4]), sample_weight=np.arange(1.0, 46))
    assert named.validation_scores_[-1] == pytest.approx(expected)
    with pytest.raises(ValueError, match="beauty"):
        ours.NetClassifier(net, scoring="beauty", **options).fit(x, names)


@pytest.mark.parametrize("loss", [cl.HingeLoss(), cl.MSELoss(), "squared_error"])
def test_a_loss_without_probabilities_is_not_for_a_classifier(loss):
    with pytest.raises(ValueError, match="loss: expected one whose"):
        ours.NetClassifier(net, loss=loss).fit(*wine())
