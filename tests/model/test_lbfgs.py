"""cl.minimize: L-BFGS over all rows, by SciPy, on the trainable parameters as one vector."""

import signal
import subprocess
import sys

import numpy as np
import pytest

import caffelite as cl
from caffelite._support.extras import install_command
from tests.conftest import bits, classifier
from tests.core.tensors import Swish

pytest.importorskip("scipy")


def line(dtype=np.float64, rows=60, noise=0.1):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 3)).astype(dtype)
    return x, (x @ [1.0, -2.0, 0.5] + 3 + noise * rng.normal(size=rows)).astype(dtype)


def linear(dtype=np.float64):
    return cl.Model([cl.Linear(3, 1)], seed=0, dtype=dtype)


def quietly(model, x, y, loss=None, **options):
    return cl.minimize(model, x, y, loss=loss or cl.MSELoss(), verbose=0, **options)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_it_finds_the_least_squares(dtype):
    x, y = line(dtype)
    model = linear(dtype)
    history = quietly(model, x, y, tolerance=1e-9)
    ones = np.append(x, np.ones((60, 1)), axis=1).astype(np.float64)
    expected, residual, *_ = np.linalg.lstsq(ones, y.astype(np.float64), rcond=None)
    found = np.concatenate([p.data.reshape(-1) for p in model.parameters()])
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=1e-3 if dtype == np.float32 else 1e-5)
    assert history["loss"][-1] == pytest.approx(residual[0] / 60, rel=1e-5)
    assert history.converged
    assert history.epochs == len(history["loss"]) <= history.evaluations


def test_it_is_scipys_minimize_of_the_loss_and_its_gradient():
    from scipy.optimize import minimize

    x, y = cl.datasets.spiral(points_per_class=20, seed=0)
    model, judge = classifier(2, 8, 3, dtype=np.float64), classifier(2, 8, 3, dtype=np.float64)
    sizes = np.cumsum([p.size for p in judge.parameters()])[:-1]

    def objective(vector):
        for p, part in zip(judge.parameters(), np.split(vector, sizes), strict=True):
            p.data = part.reshape(p.shape)
            p.zero_grad()
        value = cl.SoftmaxLoss()(judge(x.astype(np.float64)), y)
        value.backward()
        return value.item(), np.concatenate([p.grad.reshape(-1) for p in judge.parameters()])

    start = np.concatenate([p.data.reshape(-1) for p in judge.parameters()])
    losses = []
    found = minimize(
        objective,
        start,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 30, "gtol": 1e-5},
        callback=lambda intermediate_result: losses.append(intermediate_result.fun),
    )
    history = quietly(model, x, y, cl.SoftmaxLoss(), max_iterations=30)
    assert history["loss"] == losses
    assert (history.objective, history.evaluations) == (found.fun, found.nfev)
    assert (history.message, history.converged) == (found.message, False)
    assert np.array_equal(np.concatenate([p.data.reshape(-1) for p in model.parameters()]), found.x)


def test_losses_are_without_penalties_and_the_objective_with_them():
    x, y = line()
    model = linear()
    weight = model.parameters()[0]
    history = quietly(model, x, y, cl.Penalized(cl.MSELoss(), [weight], l2=2.0), tolerance=1e-9)
    assert history["loss"][-1] == pytest.approx(model.evaluate(x, y, loss=cl.MSELoss())["loss"])
    assert history.objective == pytest.approx(history["loss"][-1] + (weight.data**2).sum())
    centred = x - x.mean(axis=0)
    ridge = np.linalg.solve(centred.T @ centred / 30 + 2 * np.eye(3), centred.T @ (y - y.mean()) / 30)
    np.testing.assert_allclose(weight.data[:, 0], ridge, rtol=1e-6)


def test_weights_count_as_repeated_rows_do():
    x, y = line()
    weights = np.arange(60) % 3
    one, other = linear(), linear()
    weighted = quietly(one, x, y, sample_weight=weights, tolerance=1e-9)
    quietly(other, x.repeat(weights, axis=0), y.repeat(weights), tolerance=1e-9)
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        np.testing.assert_allclose(p.data, q.data, rtol=1e-6)
    assert weighted["loss"][-1] == pytest.approx(one.evaluate(x, y, loss=cl.MSELoss(), sample_weight=weights)["loss"])


def test_frozen_parameters_stay():
    x, y = cl.datasets.spiral(points_per_class=20, seed=0)
    model = classifier(2, 8, 8, 3)
    frozen = model.functions[2].parameters()
    for p in frozen:
        p.requires_grad = False
    before = [p.data.copy() for p in model.parameters()]
    quietly(model, x, y, cl.SoftmaxLoss(), max_iterations=5)
    changed = [not np.array_equal(p.data, was) for p, was in zip(model.parameters(), before, strict=True)]
    assert changed == [not any(p is q for q in frozen) for p in model.parameters()]


def test_a_model_whose_parameters_are_all_frozen_raises():
    model = linear()
    model.requires_grad = False
    for p in model.parameters():
        p.requires_grad = False
    with pytest.raises(ValueError, match="nothing to train"):
        quietly(model, *line())


def test_a_loss_that_is_another_each_time_raises_and_nothing_is_changed():
    x, y = line()
    model = cl.Model([cl.Linear(3, 8), cl.BatchNorm(8), cl.Dropout(0.5), cl.Linear(8, 1)], seed=0, dtype=np.float64)
    before = model.state_dict()
    with pytest.raises(ValueError, match=r"the same parameters gave another loss the second time.*Dropout"):
        quietly(model, x, y)
    for name, array in model.state_dict().items():
        assert np.array_equal(array, before[name]), name


def test_functions_and_losses_in_python_are_minimized_too():
    x, y = line()
    model, same = (
        cl.Model([cl.Linear(3, 8), f, cl.Linear(8, 1)], seed=0, dtype=np.float64) for f in (Swish(), cl.SiLU())
    )
    losses = [quietly(m, x, y, max_iterations=10)["loss"] for m in (model, same)]
    np.testing.assert_allclose(*losses, rtol=1e-6)
    assert losses[0][-1] < losses[0][0]


def test_a_graph_made_before_knows_that_the_values_are_gone():
    x, y = line()
    model = linear()
    value = cl.MSELoss()(model(x) * model(x), y[:, None])
    quietly(model, x, y)
    with pytest.raises(RuntimeError, match="changed"):
        value.backward()


def test_odd_layouts_and_dtypes_are_their_plain_copies():
    x, y = line(np.float32)
    plain, odd = linear(), linear()
    quietly(plain, x.astype(np.float64), y)
    wide = np.zeros((60, 6), np.float32)
    wide[:, ::2] = x
    quietly(odd, np.asfortranarray(wide)[:, ::2], y[::-1][::-1].astype(">f4"))
    assert bits(plain) == bits(odd)
    assert np.array_equal(wide[:, ::2], x)


def test_threads_give_the_same_bits(restored_threads):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3000, 64)), rng.integers(0, 10, 3000)
    found = set()
    for threads in (1, 2, 3):
        cl.set_num_threads(threads)
        model = classifier(64, 100, 10)
        quietly(model, x, y, cl.SoftmaxLoss(), max_iterations=3)
        found.add(bits(model))
    assert len(found) == 1


# ---- how it ends ----------------------------------------------------------------------------------------------------


def test_it_ends_after_the_iterations_and_evaluations_that_it_is_given():
    x, y = cl.datasets.spiral(points_per_class=20, seed=0)
    history = quietly(classifier(2, 8, 3), x, y, cl.SoftmaxLoss(), max_iterations=4)
    assert (history.epochs, history.converged) == (4, False)
    history = quietly(classifier(2, 8, 3), x, y, cl.SoftmaxLoss(), max_evaluations=6)
    assert 6 < history.evaluations < 30
    assert not history.converged


def test_callbacks_see_each_iteration_and_may_end_it():
    x, y = cl.datasets.spiral(points_per_class=20, seed=0)
    model, seen = classifier(2, 8, 3), []

    def callback(iteration, history):
        seen.append((iteration, history["loss"][-1], model.evaluate(x, y, loss=cl.SoftmaxLoss())["loss"]))
        return iteration == 2

    history = quietly(model, x, y, cl.SoftmaxLoss(), callbacks=[callback])
    assert [i for i, _, _ in seen] == [0, 1, 2]
    np.testing.assert_allclose([a for _, a, _ in seen], [b for _, _, b in seen], rtol=1e-6)
    assert (history.epochs, history.converged, history.message) == (3, False, "a callback ended it")


def test_progress_says_how_many_iterations_a_second(capsys):
    x, y = cl.datasets.spiral(points_per_class=20, seed=0)
    cl.minimize(classifier(2, 8, 3), x, y, loss=cl.SoftmaxLoss(), max_iterations=20, verbose=2)
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("iteration 20/20  loss ")
    assert float(line.split(" steps/s")[0].split()[-1].replace(",", "")) > 0


def test_early_stopping_restores_the_best_iteration():
    x, y = cl.datasets.spiral(points_per_class=20, seed=0)
    model = classifier(2, 8, 3)
    stopping = cl.callbacks.EarlyStopping("loss", patience=3, min_delta=0.5)
    history = quietly(model, x, y, cl.SoftmaxLoss(), callbacks=[stopping])
    assert history.epochs < 10
    assert model.evaluate(x, y, loss=cl.SoftmaxLoss())["loss"] == pytest.approx(min(history["loss"]), rel=1e-5)


@pytest.mark.parametrize("kind", [StopIteration, KeyError])
def test_an_exception_of_a_callback_comes_through(kind):
    model = linear()

    def callback(iteration, history):
        raise kind("mine")

    with pytest.raises(kind, match="mine"):
        quietly(model, *line(), callbacks=[callback])
    assert quietly(model, *line()).converged


def test_a_loss_that_is_not_finite_is_a_divergence():
    x, y = line()
    x[4, 1] = np.inf
    model = linear()
    before = bits(model)
    with pytest.raises(cl.TrainingDiverged, match=r"iteration 1: the loss is .*x is not finite in 1 of 60 rows") as e:
        quietly(model, x, y)
    assert bits(model) == before
    assert e.value.history["loss"] == []


class Interrupting(cl.Function):
    """The identity, which raises at a call; in the first ones, to no effect."""

    def __init__(self, at, error):
        self.left, self.error = np.array([at]), error

    def forward(self, x):
        self.left -= 1
        if self.left == 0:
            raise self.error
        return x

    def backward(self, dy):
        return dy


@pytest.mark.parametrize("error", [KeyboardInterrupt(), cl.TrainingDiverged("so it is"), ZeroDivisionError()])
def test_an_exception_leaves_the_parameters_of_the_last_iteration(error):
    x, y = cl.datasets.spiral(points_per_class=20, seed=0)
    model = cl.Model([*classifier(2, 8, 3).functions, Interrupting(8, error)], seed=0)
    kept = []
    with pytest.raises(type(error)) as caught:
        quietly(model, x, y, cl.SoftmaxLoss(), callbacks=[lambda i, h: kept.append(bits(model)) and None])
    assert kept
    assert bits(model) == kept[-1]
    if not isinstance(error, ZeroDivisionError):
        assert caught.value.history.epochs == len(kept)


def test_ctrl_c_ends_it_between_evaluations():
    class Signal(Interrupting):
        """The identity, which has somebody press Ctrl-C at a call, and finishes it."""

        def forward(self, x):
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGINT)
                finished.append(True)
            return x

    x, y = cl.datasets.spiral(points_per_class=20, seed=0)
    model, kept, finished = cl.Model([*classifier(2, 8, 3).functions, Signal(8, None)], seed=0), [], []
    with pytest.raises(KeyboardInterrupt) as caught:
        quietly(model, x, y, cl.SoftmaxLoss(), callbacks=[lambda i, h: kept.append(bits(model)) and None])
    assert finished
    assert caught.value.history.epochs == len(kept) > 0
    assert bits(model) == kept[-1]


# ---- what it is given -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"max_iterations": 0}, ValueError, "max_iterations must be at least 1"),
        ({"max_evaluations": 1.5}, TypeError, "max_evaluations must be an integer"),
        ({"tolerance": 0}, ValueError, "tolerance must be above 0"),
        ({"loss": "mse"}, TypeError, "loss: expected a Function"),
        (
            {"callbacks": [cl.callbacks.ReduceLROnPlateau("loss")]},
            ValueError,
            "no optimizer, and ReduceLROnPlateau needs one",
        ),
        ({"callbacks": [3]}, TypeError, "callbacks: expected callables"),
        ({"verbose": 7}, ValueError, "verbose: expected"),
        ({"sample_weight": np.ones(3)}, ValueError, "a weight for each of 60 rows"),
        ({"x": np.zeros((60, 4))}, ValueError, "rows of 4 features"),
        ({"y": np.zeros(59)}, ValueError, "60 rows"),
        ({"model": cl.Linear(3, 1)}, TypeError, "minimize takes a Model"),
    ],
)
def test_unusable_arguments_raise_before_anything_is_changed(options, error, text):
    x, y = line()
    model = linear()
    before = bits(model)
    given = {"model": model, "x": x, "y": y, "loss": cl.MSELoss()} | options
    with pytest.raises(error, match=text):
        cl.minimize(**given)
    assert bits(model) == before


def test_it_tells_of_iterations(capsys):
    cl.minimize(linear(), *line(), loss=cl.MSELoss(), verbose=2)
    assert capsys.readouterr().out.startswith("iteration 1/1000  loss ")


def test_without_scipy_an_import_error_says_what_to_install():
    program = "import sys, caffelite; sys.modules['scipy'] = None; caffelite.minimize"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert f"ImportError: minimize needs SciPy: {install_command('scipy')}" in done.stderr
