"""The faults of the frameworks that caffelite descends from: a test each, which fails when the fault is put back."""

import gc
import itertools
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from tests import reference
from tests.conftest import bits, classifier, posix, train

X, Y = cl.datasets.spiral(points_per_class=20, seed=0)

both_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda dtype: dtype.__name__)


def parameter(values):
    return cl.Tensor(np.asarray(values, np.float64), requires_grad=True)


def steps(gradients, start=0.0, rule=cl.SGD, **options):
    """Return the values of a parameter after each step with these gradients, of SGD unless another rule is given."""
    p = parameter([start])
    optimizer = rule([p], **options)
    values = []
    for g in gradients:
        optimizer.zero_grad()
        p.add_grad([g])
        optimizer.step()
        values.append(p.data.item())
    return values


# ---- the Caffe-style library ----------------------------------------------------------------------------------------


def test_the_velocity_is_stored_from_step_to_step():
    assert steps([1, 0, 0], lr=1, momentum=0.5) == [-1, -1.5, -1.75]


def test_the_velocity_is_stored_from_one_fit_to_the_next():
    model, whole = classifier(2, 8, 3), classifier(2, 8, 3)
    optimizer = cl.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        train(model, X, Y, optimizer=optimizer, shuffle=False)
    train(whole, X, Y, epochs=3, shuffle=False)
    assert bits(model) == bits(whole)


def test_relu_does_not_write_into_its_input():
    x = np.array([[-1.0, 2.0], [3.0, -4.0]], np.float32)
    relu = cl.ReLU()
    assert relu.forward(x).tolist() == [[0, 2], [3, 0]]
    relu.backward(np.ones_like(x))
    assert x.tolist() == [[-1, 2], [3, -4]]


def test_a_model_does_not_write_into_the_callers_data():
    x, y = X.copy(), Y.copy()
    model = cl.Model([cl.ReLU(), cl.Linear(2, 3)])
    model.predict(x)
    model.evaluate(x, y, loss=cl.SoftmaxLoss())
    train(model, x, y, validation_data=(x, y))
    train(model, [(x, y)])
    assert x.tobytes() == X.tobytes()
    assert y.tobytes() == Y.tobytes()


def test_the_probabilities_of_the_loss_survive_its_backward():
    loss = cl.SoftmaxLoss()
    loss.forward(np.zeros((2, 4)), np.array([1, 3]))
    loss.backward()
    assert loss.probabilities.tolist() == [[0.25] * 4] * 2


def test_a_second_backward_of_the_loss_gives_the_same_gradient():
    loss = cl.SoftmaxLoss()
    loss.forward(np.array([[1.0, 2.0, 3.0]]), np.array([0]))
    first = loss.backward().copy()
    assert (loss.backward() == first).all()


@both_dtypes
@pytest.mark.parametrize("score", [1e3, 1e30])
def test_a_probability_that_underflows_has_a_finite_logarithm(dtype, score):
    loss = cl.SoftmaxLoss()
    value = loss.forward(np.array([[score, 0], [0, score]], dtype), np.array([1, 1]))
    assert value == dtype(score / 2)
    assert loss.backward().tolist() == [[0.5, -0.5], [0, 0]]


def test_an_optimizer_built_before_the_layers_raises():
    model = cl.Model()
    with pytest.raises(ValueError, match="no parameters"):
        cl.SGD(model.parameters(), lr=0.1)


def test_an_optimizer_built_before_the_last_layer_raises_in_fit():
    model = classifier(2, 8)
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    model.add(cl.ReLU()).add(cl.Linear(8, 3))
    with pytest.raises(ValueError, match=r"weight \(8, 3\)"):
        train(model, X, Y, optimizer=optimizer)


def test_fit_does_not_draw_the_weights_again():
    model = classifier(2, 8, 3)
    before = bits(model)
    for _ in range(2):
        train(model, X, Y, lr=1e-300)
        assert bits(model) == before


def test_nothing_becomes_float64_by_itself():
    seen = []

    def note(*arrays):
        seen.extend(array.dtype for array in arrays if array.dtype.kind == "f")
        return 0.0

    class Noting(cl.ReLU):
        def forward(self, x):
            note(x)
            return super().forward(x)

        def backward(self, dy):
            note(dy)
            return super().backward(dy)

    x, y = cl.datasets.spiral(points_per_class=20, seed=0)
    model = cl.Model([cl.Linear(2, 8), Noting(), cl.Linear(8, 3)])
    optimizer = cl.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    train(model, x.astype(np.float64), y, optimizer=optimizer, metrics=[note])
    loss = cl.SoftmaxLoss()(model(x), y)
    assert len(seen) > 3
    note(x, model.predict(x.tolist()), loss.data, optimizer.state_dict()["velocity.float32"])
    note(*[p.data for p in model.parameters()], *[p.grad for p in model.parameters()])
    assert set(seen) == {np.dtype(np.float32)}


def test_leaving_the_generator_early_does_not_resume_in_mid_epoch():
    rows = np.arange(10)
    generator = cl.DataGenerator(rows, batch_size=3, shuffle=False)
    for left_after in (1, 2, 3):
        list(itertools.islice(generator, left_after))
        assert [batch.tolist() for batch in generator] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


def test_the_short_last_batch_is_kept_and_each_of_its_rows_weighs_more():
    x = np.eye(5)
    y = np.zeros(5, int)
    model = cl.Model([cl.Linear(5, 2, bias=False, initializer=lambda shape, rng: np.zeros(shape))], dtype=np.float64)
    train(model, x, y, lr=1, momentum=0, batch_size=4, shuffle=False)
    # Each row moves its own weight by lr (1 − p) / rows of its batch, with p = 1/2.
    assert model.parameters()[0].data[:, 0].tolist() == [0.125, 0.125, 0.125, 0.125, 0.5]


def test_the_published_settings_learn_the_spiral_without_momentum():
    x, y = cl.datasets.spiral(points_per_class=100, seed=0)
    model = classifier(2, 100, 3)
    train(model, x, y, lr=1.0, momentum=0, epochs=100)
    assert (model.predict(x).argmax(axis=1) == y).mean() > 0.93


# ---- the C++ autograd -----------------------------------------------------------------------------------------------


def test_a_graph_is_freed_without_the_garbage_collector():
    class WeakArray(np.ndarray):
        """An array that a weak reference can point to."""

    freed = []

    class WatchedFunction(cl.Function):
        def forward(self, x):
            self.kept = x.copy().view(WeakArray)
            freed.append(weakref.ref(self.kept))
            return x * 2

        def backward(self, dy):
            return dy * 2

    gc.collect()
    gc.disable()
    try:
        for backward in (True, False):
            y = WatchedFunction()(parameter([1.0]))
            y = (y * y + y).sum()
            if backward:
                y.backward()
            del y
            assert freed[-1]() is None
    finally:
        gc.enable()


def test_the_loss_is_divided_by_the_batch_and_not_by_the_classes():
    loss = cl.SoftmaxLoss()
    value = loss.forward(np.zeros((5, 4)), np.array([0, 1, 2, 3, 0]))
    assert value == pytest.approx(np.log(4), rel=1e-12)
    assert loss.backward()[0].tolist() == pytest.approx([-0.15, 0.05, 0.05, 0.05], rel=1e-12)


def test_the_loss_passes_on_the_incoming_gradient():
    scores = cl.Tensor(np.zeros((1, 2)), requires_grad=True)
    (cl.SoftmaxLoss()(scores, np.array([0])) * 6).backward()
    assert scores.grad.tolist() == [[-3, 3]]
    loss = cl.SoftmaxLoss()
    loss.forward(np.zeros((1, 2)), np.array([0]))
    assert loss.backward(6.0).tolist() == [[-3, 3]]


def test_a_probability_of_zero_times_its_logarithm_is_not_nan():
    scores = cl.Tensor(np.array([[0.0, -1e4, -np.inf]]), requires_grad=True)
    value = cl.SoftmaxLoss()(scores, np.array([0]))
    value.backward()
    assert value.item() == 0
    assert scores.grad.tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("operation", ["add", "subtract", "multiply", "true_divide", "power"])
@pytest.mark.parametrize("shape", [(4,), (3, 1), (1, 4), (2, 3, 4), (1,), ()])
def test_every_operation_broadcasts_and_reduces_its_gradients(operation, shape, swapped):
    operate = {
        "add": lambda a, b: a + b,
        "subtract": lambda a, b: a - b,
        "multiply": lambda a, b: a * b,
        "true_divide": lambda a, b: a / b,
        "power": lambda a, b: a**b,
    }[operation]
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(0.5, 2, s) for s in ([shape, (3, 4)] if swapped else [(3, 4), shape]))
    result = operate(cl.Tensor(a), cl.Tensor(b))
    np.testing.assert_allclose(result.data, getattr(np, operation)(a, b), rtol=1e-12)
    assert cl.check_gradients(operate, a, b) < 1e-6


@pytest.mark.parametrize(
    "shapes", [((5, 1, 2, 3), (4, 3, 2)), ((2, 3), (5, 3, 4)), ((3,), (5, 3, 4)), ((5, 2, 3), (3,))]
)
def test_products_of_stacks_broadcast_and_reduce_their_gradients(shapes):
    a, b = (np.random.default_rng(0).uniform(0.5, 2, shape) for shape in shapes)
    np.testing.assert_allclose((cl.Tensor(a) @ cl.Tensor(b)).data, a @ b, rtol=1e-12)
    assert cl.check_gradients(cl.matmul, a, b) < 1e-6


@pytest.mark.parametrize("shapes", [((3, 4), (4,)), ((), (3, 4)), ((2, 3, 1), (4,)), ((1,), ()), ((3, 1), (1, 4))])
def test_a_choice_broadcasts_and_reduces_its_gradients(shapes):
    a, b = (np.random.default_rng(0).uniform(0.5, 2, shape) for shape in shapes)
    condition = np.array([[True], [False], [True]])
    np.testing.assert_array_equal(cl.where(condition, cl.Tensor(a), cl.Tensor(b)).data, np.where(condition, a, b))
    assert cl.check_gradients(lambda a, b: cl.where(condition, a, b), a, b) < 1e-6


# ---- the readable framework -----------------------------------------------------------------------------------------


def test_a_tensor_used_several_times_gets_all_its_gradients():
    x = parameter([3.0])
    y = x * x + x
    (y * x + y).backward()  # x³ + 2 x² + x
    assert x.grad.tolist() == [3 * 9 + 4 * 3 + 1]


@pytest.mark.usefixtures("restored_threads")
@pytest.mark.parametrize("rows", [500, 20_000])
def test_the_gradient_of_the_bias_is_the_sum_over_all_rows_for_any_number_of_threads(rows):
    columns = 1_200_000 // rows
    x, dy = np.ones((rows, 2), np.float32), np.random.default_rng(0).integers(-9, 9, (rows, columns)).astype(np.float32)
    layer, bias = cl.Linear(2, columns), cl.Tensor(np.zeros(columns, np.float32), requires_grad=True)
    for n in (1, *[2, 8] * 10):  # a race is not lost every time
        cl.set_num_threads(n)
        layer.bias.zero_grad()
        layer.forward(x)
        layer.backward(dy)
        bias.zero_grad()
        (bias + dy).backward(dy)
        for gradient in (layer.bias.grad, bias.grad):
            assert (gradient == dy.sum(axis=0)).all()


@pytest.mark.skipif(not kernels.OPENMP, reason="compiled without OpenMP")
@posix
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system does not list a process's threads")
@pytest.mark.parametrize(
    ("forward", "rows", "columns"),
    [
        ("x.relu()", 900, 1000),
        ("x.sum(axis=1)", 900, 1000),
        ("x.max(axis=1)", 300, 1000),
        ("x.softmax()", 50, 1000),
        ("x @ w", 900, 2000),
        ("linear(x)", 200, 2000),
    ],
)
def test_a_second_thread_is_started_for_the_work_and_not_for_the_rows(forward, rows, columns):
    program = f"""
import os
import numpy as np
import caffelite as cl

def started(rows, columns):
    x, w, linear = cl.Tensor(np.ones((rows, columns), np.float32)), np.ones((columns, 2), int), cl.Linear(columns, 40)
    before = len(os.listdir("/proc/self/task"))
    {forward}
    return len(os.listdir("/proc/self/task")) - before

cl.set_num_threads(2)
print(started(2000, 2), started({rows}, {columns}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "1"]


# ---- PureTorch ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turned", [False, True])
def test_gradients_do_not_share_a_buffer(turned):
    a, b, dy = parameter([5.0]), parameter([7.0]), np.array([1.0])
    y = (a + b) + (a * 2) if turned else (a * 2) + (a + b)
    y.backward(dy)
    assert (a.grad.tolist(), b.grad.tolist(), dy.tolist()) == ([3], [1], [1])
    assert not np.shares_memory(a.grad, b.grad)


@both_dtypes
@pytest.mark.parametrize("score", [1e3, 1e30])
def test_a_composed_loss_of_distant_scores_is_finite_like_the_fused_one(score, dtype):
    values, labels = np.array([[score, 0], [0, score], [0, 0]], dtype), np.array([1, 1, 0])
    onehot = np.eye(2, dtype=dtype)[labels]
    scores, loss = cl.Tensor(values, requires_grad=True), cl.SoftmaxLoss()
    value = -(scores.log_softmax() * onehot).sum(axis=1).mean()
    value.backward()
    assert value.item() == pytest.approx(loss.forward(values, labels), rel=1e-6)
    np.testing.assert_allclose(scores.grad, loss.backward(), rtol=1e-6)
    assert scores.softmax().data.tolist() == [[1, 0], [0, 1], [0.5, 0.5]]


def test_a_gradient_that_is_added_stays_the_callers():
    a, g = parameter([1.0]), np.array([2.0])
    a.add_grad(g)
    a.add_grad(g)
    assert (a.grad.tolist(), g.tolist()) == ([4], [2])


def test_repeated_indices_lose_no_gradient():
    table = parameter([[1, 2], [3, 4], [5, 6]])
    y = table[[0, 2, 0]] * np.array([[1.0], [10.0], [100.0]])
    (y.sum() + table[0, [1, 1]].sum() + table[0].sum()).backward()
    assert table.grad.tolist() == [[102, 104], [0, 0], [10, 10]]


def test_momentum_is_not_ignored():
    assert steps([1, 1], lr=1, momentum=0.9) == [-1, -2.9]
    model, plain = classifier(2, 8, 3), classifier(2, 8, 3)
    train(model, X, Y, momentum=0.9, epochs=2)
    train(plain, X, Y, momentum=0.0, epochs=2)
    assert bits(model) != bits(plain)


# ---- phitodeep ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"lr": 0.5}, [1.5, 1.0]),
        ({"lr": 0.25}, [1.75, 1.5]),
        ({"lr": 0.5, "momentum": 0.5}, [1.5, 0.75]),
        ({"lr": 0.5, "weight_decay": 0.5}, [1.0, 0.25]),
        ({"lr": 0.5, "momentum": 0.5, "nesterov": True}, [1.25, 0.375]),
        ({"lr": 0.5, "momentum": 0.5, "weight_decay": 0.5}, [1.0, -0.25]),
    ],
)
def test_every_setting_reaches_the_optimizer(options, expected):
    assert steps([1, 1], start=2.0, **options) == expected


@pytest.mark.parametrize("rule", [cl.Adam, cl.AdamW])
@pytest.mark.parametrize(
    "option", [{}, {"lr": 0.5}, {"betas": (0.5, 0.999)}, {"betas": (0.9, 0.5)}, {"eps": 0.5}, {"weight_decay": 0.5}]
)
def test_every_setting_reaches_adam(rule, option):
    gradients, options = [1.0, 3.0], {"lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1} | option
    w, m, v, expected = np.array([2.0]), np.zeros(1), np.zeros(1), []
    lr, (beta1, beta2), eps, decay = options.values()
    for t, g in enumerate(gradients, 1):
        w, m, v = reference.adam(w, [g], m, v, t, lr, beta1, beta2, eps, decay, decoupled=rule is cl.AdamW)
        expected.append(w.item())
    assert steps(gradients, start=2.0, rule=rule, **options) == pytest.approx(expected, rel=1e-12)


def test_every_setting_reaches_the_model_that_mlp_builds():
    model = cl.MLP(2, [5, 3], cl.Tanh, seed=7, dtype=np.float64)
    same = cl.Model([cl.Linear(2, 5), cl.Tanh(), cl.Linear(5, 3)], seed=7, dtype=np.float64)
    assert repr(model) == repr(same)
    assert bits(model) == bits(same)
    assert {p.dtype for p in model.parameters()} == {np.dtype(np.float64)}


def test_a_new_learning_rate_reaches_the_optimizer():
    p = parameter([0.0])
    optimizer = cl.SGD([p], lr=1)
    optimizer.lr = 0.25
    p.add_grad([1.0])
    optimizer.step()
    assert p.data.tolist() == [-0.25]


def test_gradients_are_divided_by_the_batch_size_once():
    def gradient(times):
        model = classifier(2, 8, 3, dtype=np.float64)
        train(model, np.tile(X, (times, 1)), np.tile(Y, times), lr=1e-300, batch_size=10_000)
        return np.concatenate([p.grad.ravel() for p in model.parameters()])

    np.testing.assert_allclose(gradient(4), gradient(1), rtol=1e-10, atol=1e-15)
    weight, x = np.zeros((2, 2)), np.array([[1.0, 2.0], [3.0, 4.0]])
    model = cl.Model([cl.Linear(2, 2, bias=False, initializer=lambda shape, rng: weight)], dtype=np.float64)
    train(model, x, [0, 0], lr=1, momentum=0)
    assert model.parameters()[0].data.tolist() == [[1, -1], [1.5, -1.5]]  # Σ xᵢ (onehot − 1/2) / 2


@pytest.mark.parametrize("axis", [None, 0, 1, (0, 2)])
def test_a_mean_divides_its_gradient_once(axis):
    x = parameter(np.ones((4, 3, 2)))
    mean = x.mean(axis=axis)
    mean.backward(np.ones(mean.shape))
    np.testing.assert_allclose(x.grad, np.full(x.shape, mean.size / x.size), rtol=1e-12)


@both_dtypes
@pytest.mark.parametrize("size", [20.0, 800.0, 1e30, np.inf])
def test_tanh_of_large_numbers_is_1_and_its_gradient_0(size, dtype):
    values, dy = np.array([[size, -size, 0.0]], dtype), np.full((1, 3), 2, dtype)
    function, x = cl.Tanh(), cl.Tensor(values, requires_grad=True)
    model = cl.Model([cl.Tanh()], dtype=dtype)
    y = x.tanh()
    y.backward(dy)
    outputs = [function.forward(values), y.data, cl.tanh(x).data, model.predict(values), model.forward(values)]
    gradients = [function.backward(dy), x.grad, model.backward(dy)]
    assert [output.tolist() for output in outputs] == [[[1, -1, 0]]] * 5
    assert [gradient.tolist() for gradient in gradients] == [[[0, 0, 2]]] * 3
    assert {array.dtype for array in (*outputs, *gradients)} == {np.dtype(dtype)}


def test_weights_are_drawn_on_both_sides_of_zero():
    model = cl.Model([cl.Linear(100, 200)], seed=0)
    for layer in (cl.Linear(100, 200), model.functions[0]):
        for values in (layer.weight.data, layer.bias.data):
            assert -0.1 <= values.min() < -0.08
            assert 0.08 < values.max() <= 0.1
            assert abs(values.mean()) < 0.02


def test_an_epoch_draws_no_row_twice_and_drops_no_remainder():
    generator = cl.DataGenerator(np.arange(103), batch_size=10, seed=0)
    for _ in range(3):
        assert sorted(np.concatenate(list(generator)).tolist()) == list(range(103))


def test_a_fit_takes_every_row_once_in_every_epoch():
    class Noting(cl.ReLU):
        def forward(self, x):
            batches.append(x[:, 0].astype(int).tolist())
            return super().forward(x)

    batches = []
    model = cl.Model([Noting(), cl.Linear(1, 2)], seed=0)
    for shuffle in (True, False):
        batches.clear()
        train(model, np.arange(103)[:, None], np.zeros(103, int), lr=1e-300, batch_size=10, epochs=3, shuffle=shuffle)
        assert [len(batch) for batch in batches] == [*[10] * 10, 3] * 3
        for epoch in (batches[:11], batches[11:22], batches[22:]):
            assert sorted(itertools.chain(*epoch)) == list(range(103))
