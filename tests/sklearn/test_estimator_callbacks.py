"""Callbacks of caffelite and of scikit-learn, validation rows, and Ctrl-C."""

import importlib.util

import numpy as np
import pytest

import caffelite as cl
from caffelite import sklearn as ours
from tests.sklearn.estimators import diabetes, weight_bits, wine

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def test_epochs_run_in_one_go_and_end_as_if_they_had_not():
    x, y = wine()
    options = {"random_state": 0, "tol": 0.01, "n_iter_no_change": 4, "max_iter": 300, "learning_rate_init": 0.01}
    seen = []
    at_once = ours.MLPClassifier(8, **options).fit(x, y)
    one_by_one = ours.MLPClassifier(8, callbacks=[lambda epoch, history: seen.append(epoch)], **options).fit(x, y)
    assert 10 < at_once.n_iter_ < 300
    assert seen == list(range(at_once.n_iter_))
    assert weight_bits(at_once) == weight_bits(one_by_one)
    assert at_once.loss_curve_ == one_by_one.loss_curve_


def test_callbacks_see_the_loss_of_validation_rows_and_may_end_the_training():
    x, y = diabetes()
    stops = cl.callbacks.EarlyStopping("val_loss", patience=3)
    estimator = ours.MLPRegressor(20, callbacks=[stops], max_iter=500, learning_rate_init=0.05, random_state=0)
    estimator.fit(x[:100], y[:100], eval_set=(x[100:], y[100:]))
    assert estimator.n_iter_ < 500
    expected = ((estimator.predict(x[100:]) - y[100:]) ** 2).mean() / 2  # without the penalty
    assert min(estimator.history_["val_loss"]) == pytest.approx(expected)
    assert len(estimator.validation_scores_) == estimator.n_iter_
    assert estimator.best_validation_score_ == max(estimator.validation_scores_)
    assert estimator.score(x[100:], y[100:]) == pytest.approx(estimator.validation_scores_[stops.best_epoch])


def test_rows_to_evaluate_may_have_weights_and_serve_early_stopping():
    x, y = wine()
    weights = np.linspace(0, 1, 40)
    options = {"random_state": 0, "max_iter": 4, "early_stopping": True}
    estimator = ours.MLPClassifier(8, **options).fit(x, y, eval_set=(x[:40], y[:40], weights))
    assert estimator.t_ == 4 * len(x)  # nothing was held out
    assert estimator.score(x[:40], y[:40], weights) == pytest.approx(estimator.best_validation_score_)


def test_lbfgs_calls_callbacks_after_each_iteration():
    x, y = diabetes()
    estimator = ours.MLPRegressor(5, solver="lbfgs", callbacks=[lambda epoch, history: epoch == 3], random_state=0)
    estimator.fit(x, y, eval_set=(x, y))
    assert estimator.n_iter_ == len(estimator.loss_curve_) == 4
    assert estimator.validation_scores_[-1] == pytest.approx(estimator.score(x, y))


def test_ctrl_c_leaves_an_estimator_of_the_epochs_that_are_done():
    def interrupt(epoch, history):
        if epoch == 4:
            raise KeyboardInterrupt

    x, y = wine()
    with pytest.warns(UserWarning, match="interrupted after 5 iterations"):
        estimator = ours.MLPClassifier(8, callbacks=[interrupt], random_state=0).fit(x, y)
    expected = ours.MLPClassifier(8, max_iter=5, random_state=0).fit(x, y)
    assert weight_bits(estimator) == weight_bits(expected)
    assert estimator.n_iter_ == estimator.history_.epochs == 5


def test_verbose_prints_a_line_an_epoch(capsys):
    x, y = wine()
    ours.MLPClassifier(8, max_iter=3, verbose=True, early_stopping=True).fit(x, y)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines] == ["Iteration 1", "Iteration 2", "Iteration 3"]
    assert all("loss = " in line and "validation score = " in line for line in lines)


class Recorder:
    """One of scikit-learn's callbacks; ends the training after so many epochs."""

    def __init__(self, epochs=None):
        self.epochs, self.log = epochs, []

    def setup(self, estimator, context):
        self.log.append("setup")

    def on_fit_task_begin(self, estimator, context, *, X=None, y=None):
        self.log.append(f"begin {context.task_name}")

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        self.log.append(f"end {context.task_name}")
        self.fitted = fitted_estimator
        return self.log.count("end epoch") == self.epochs

    def teardown(self, estimator, context):
        self.log.append("teardown")


needs_callbacks = pytest.mark.skipif(
    importlib.util.find_spec("sklearn.callback") is None, reason="scikit-learn has callbacks since 1.9"
)


@needs_callbacks
@pytest.mark.parametrize("solver", ["adam", "lbfgs"])
def test_scikit_learns_callbacks_see_each_epoch_and_may_end_the_training(solver):
    x, y = wine()
    recorder = Recorder(epochs=2)
    estimator = ours.MLPClassifier(8, solver=solver, random_state=0).set_callbacks(recorder).fit(x, y)
    epoch = ["begin epoch", "end epoch"]
    assert recorder.log == ["setup", "begin fit", *epoch, *epoch, "end fit", "teardown"]
    assert estimator.n_iter_ == 2


@needs_callbacks
def test_scikit_learns_callbacks_get_an_estimator_of_each_epoch():
    x, y = wine()
    fitted = []

    class Keeper(Recorder):
        def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
            fitted.append(fitted_estimator)

    ours.MLPClassifier(8, max_iter=3, random_state=0, shuffle=False).set_callbacks(Keeper()).fit(x, y)
    for epochs, estimator in enumerate(fitted[:3], start=1):
        expected = ours.MLPClassifier(8, max_iter=epochs, random_state=0, shuffle=False).fit(x, y)
        assert (estimator.predict_proba(x) == expected.predict_proba(x)).all()


@needs_callbacks
def test_scikit_learns_callbacks_are_torn_down_when_the_training_raises():
    x, y = diabetes()
    recorder = Recorder()
    estimator = ours.MLPRegressor(8, solver="sgd", learning_rate_init=1e9, max_iter=9).set_callbacks(recorder)
    with pytest.raises(ValueError, match="epoch"):
        estimator.fit(x, y)
    assert recorder.log[-1] == "teardown"
    assert recorder.log.count("begin epoch") == recorder.log.count("end epoch")
