"""Losses that are functions, their targets, and learned Tensors that no optimizer has."""

import random
import warnings

import numpy as np
import pytest

import caffelite as cl
from tests.program.user_code import FORMS, LABELS, VALUES, X, net

# ---- losses that are functions ----


@pytest.mark.parametrize("value", [1.0, np.float32(1), None])
def test_a_loss_has_to_return_a_tensor(value):
    model = net()
    before = [p.data.copy() for p in model.parameters()]
    with pytest.raises(TypeError, match="has to return a Tensor"):
        model.fit(
            X, LABELS, loss=lambda o, y: value, optimizer=cl.SGD(model.parameters(), lr=0.1), verbose=0
        )  # fmt: skip
    for p, values in zip(model.parameters(), before, strict=True):
        np.testing.assert_array_equal(p.data, values)


def test_weights_go_to_a_function_that_takes_them():
    def loss(o, y, w):
        return (((o - y) ** 2).sum(axis=1) * w).sum() / w.sum()

    model, weights = net(1), np.linspace(0, 1, 48).astype(np.float32)
    options = {"optimizer": cl.SGD(model.parameters(), lr=0.1), "sample_weight": weights, "verbose": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.NotRecorded)
        model.fit(X, VALUES, loss=loss, **options)
    with pytest.raises(TypeError, match="takes no weights"):
        model.fit(X, VALUES, loss=lambda o, y: o.mean(), **options)


def test_a_function_is_a_loss_by_hand_too():
    loss = FORMS["a_function_of_functions"][0]()[1]
    model = net(1)
    expected = model.evaluate(X, VALUES, loss=loss)["loss"]
    assert expected == pytest.approx(loss(model(X), VALUES).item())


def test_something_other_than_a_loss_raises():
    for loss in (None, 3, "mse", cl.MSELoss):
        with pytest.raises(TypeError, match="loss: expected a Function"):
            net(1).evaluate(X, VALUES, loss=loss)


# ---- what gets a gradient and is not trained ----


def add_a_layer(model):
    model.add(cl.Linear(3, 3))


def replace_a_layer(model):
    model.functions[2] = cl.Linear(8, 3)


def replace_a_weight(model):
    model.functions[2].weight = cl.Tensor(np.ones((8, 3)), requires_grad=True)


def thaw(model):
    model.functions[0].requires_grad = True


def random_loss(scores, labels):
    """Which is not recorded."""
    return cl.SoftmaxLoss()(scores, labels) * random.uniform(0.9, 1.1)


@pytest.mark.filterwarnings("ignore::caffelite.NotRecorded")
@pytest.mark.parametrize("loss", [cl.SoftmaxLoss(), random_loss])
@pytest.mark.parametrize("change", [add_a_layer, replace_a_layer, replace_a_weight, thaw])
def test_a_layer_that_a_callback_adds_is_named_if_no_optimizer_has_it(change, loss):
    model = net()
    model.functions[0].requires_grad = change is not thaw
    optimizer = cl.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)

    def in_the_middle(epoch, history):
        if epoch == 1:  # when no step is recorded any more
            change(model)

    with pytest.warns(cl.TrainingWarning, match=r"not trained: [023].weight"):
        model.fit(X, LABELS, loss=loss, optimizer=optimizer, epochs=4, callbacks=[in_the_middle], verbose=0)


def test_a_learned_tensor_of_the_loss_is_named_if_no_optimizer_has_it():
    class WeightedLoss(cl.Model):
        def __init__(self):
            super().__init__()
            self.log_variance = cl.Tensor(0.0, requires_grad=True)

        def call(self, o, y):
            return ((o - y) ** 2).mean() * (-self.log_variance).exp() + self.log_variance

    model, loss = net(1), WeightedLoss()
    with pytest.warns(cl.TrainingWarning, match="not trained: Tensor"):
        model.fit(X, VALUES, loss=loss, optimizer=cl.SGD(model.parameters(), lr=0.1), verbose=0)
    both = cl.SGD([*model.parameters(), *loss.parameters()], lr=0.1)
    model.fit(X, VALUES, loss=loss, optimizer=both, epochs=3, verbose=0)
    assert loss.log_variance.item() != 0


class GraphFunction(cl.Function):
    """y = x², with a graph of its own over a Tensor that `forward` keeps for `backward`."""

    def forward(self, x):
        self.leaf = cl.Tensor(x, requires_grad=True)
        self.square = self.leaf * self.leaf
        return self.square.data

    def backward(self, dy):
        self.square.backward(dy)
        return self.leaf.grad


class BiasModel(cl.Model):
    """A model that makes a Tensor to differentiate by in each step."""

    def __init__(self):
        super().__init__(seed=0)
        self.f = cl.Linear(6, 3)

    def call(self, x):
        self.bias = cl.Tensor([0, 0, 0], requires_grad=True)
        return self.f(x) + self.bias


@pytest.mark.filterwarnings("ignore::caffelite.NotRecorded")
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("loss", [cl.SoftmaxLoss(), random_loss])
@pytest.mark.parametrize(
    "make",
    [lambda: cl.Model([cl.Linear(6, 4), GraphFunction(), cl.Linear(4, 3)], seed=0), BiasModel],
    ids=["forward", "call"],
)
def test_a_tensor_that_a_step_makes_needs_no_optimizer(make, loss, accumulate):
    model = make()
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", cl.TrainingWarning)
        model.fit(X, LABELS, loss=loss, optimizer=optimizer, epochs=3, accumulate=accumulate, verbose=0)
    before, after = (net.evaluate(X, LABELS, loss=cl.SoftmaxLoss())["loss"] for net in (make(), model))
    assert after < before


@pytest.mark.filterwarnings("ignore::caffelite.NotRecorded")
def test_a_tensor_without_a_name_whose_values_change_is_named_once():
    model, offset = net(), cl.Tensor([0, 0, 0], requires_grad=True)

    def loss(scores, labels):
        return cl.SoftmaxLoss()(scores + offset, labels)

    def change(epoch, history):
        offset.data = offset.data + 1

    optimizer = cl.SGD(model.parameters(), lr=0.1)
    with pytest.warns(cl.TrainingWarning) as given:
        model.fit(X, LABELS, loss=loss, optimizer=optimizer, epochs=4, callbacks=[change], verbose=0)
    (message,) = [str(warning.message) for warning in given]
    assert message.startswith("not trained: Tensor (3,). A gradient is computed")


# ---- the shapes of targets ----


LOSSES_OF_A_VECTOR = {
    "o[:, 0]": lambda o, y: ((o[:, 0] - y) ** 2).mean(),
    "reshape": lambda o, y: ((o.reshape(-1) - y) ** 2).mean(),
    "y[:, None]": lambda o, y: ((o - y[:, None]) ** 2).mean(),
}


@pytest.mark.parametrize("loss", LOSSES_OF_A_VECTOR.values(), ids=LOSSES_OF_A_VECTOR)
def test_a_users_loss_is_trained_as_written(loss):
    models = [net(1), net(1)]
    for model, f, y in zip(models, (loss, cl.MSELoss()), (VALUES[:, 0], VALUES), strict=True):
        optimizer = cl.SGD(model.parameters(), lr=0.01)
        model.fit(X, y, loss=f, optimizer=optimizer, epochs=3, shuffle=False, verbose=0)
    for p, q in zip(*[model.parameters() for model in models], strict=True):
        np.testing.assert_allclose(p.data, q.data, rtol=1e-5, atol=1e-7)


def test_a_loss_that_broadcasts_a_column_with_a_vector_is_named_once_with_its_line():
    model, loss = net(1), lambda o, y: ((o - y) ** 2).mean()
    optimizer = cl.SGD(model.parameters(), lr=0.01)
    with pytest.warns(cl.TrainingWarning, match=r"\(n, 1\) with \(n,\).*o\[:, 0\] - y or o - y\[:, None\]") as warned:
        model.fit(X, VALUES[:, 0], loss=loss, optimizer=optimizer, epochs=3, verbose=0)
    assert len(warned) == 1
    assert (warned[0].filename, warned[0].lineno) == (__file__, loss.__code__.co_firstlineno)


class Cut(cl.Model):
    """A net whose first layer has no part in the loss."""

    def __init__(self):
        super().__init__(seed=0)
        self.a, self.b = cl.Linear(6, 4), cl.Linear(4, 1)

    def call(self, x):
        return self.b(cl.Tensor(self.a(x).data))


@pytest.mark.filterwarnings("ignore::caffelite.NotRecorded")
@pytest.mark.parametrize("batch_size", [3, len(X)])
def test_parameters_without_a_gradient_are_named_once_in_each_training(batch_size):
    model = Cut()
    for _ in range(2):
        optimizer = cl.SGD(model.parameters(), lr=0.01)
        options = {"loss": cl.MSELoss(), "optimizer": optimizer, "batch_size": batch_size, "verbose": 0}
        with pytest.warns(cl.TrainingWarning, match="gets no gradient: it has no part in the loss") as warned:
            model.fit(X, VALUES, epochs=3, **options)
        assert [str(w.message).split()[0] for w in warned] == ["a.weight", "a.bias"]


def test_a_model_with_two_parameters_of_one_name_trains_and_names_what_gets_no_gradient():
    class Twice(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.layers = {"a": {"b": cl.Linear(6, 1)}, "a.b": cl.Linear(6, 1)}

        def call(self, x):
            return self.layers["a"]["b"](x)

    model = Twice()
    with pytest.raises(ValueError, match="name"):
        model.named_parameters()
    optimizer = cl.SGD(model.parameters(), lr=0.01)
    with pytest.warns(cl.TrainingWarning, match=r"(weight|bias) gets no gradient"):
        model.fit(X, VALUES, loss=cl.MSELoss(), optimizer=optimizer, verbose=0)


@pytest.mark.filterwarnings("ignore::caffelite.NotRecorded", "error::caffelite.TrainingWarning")
def test_a_warning_of_a_missing_gradient_that_is_an_error_comes_after_one_step():
    model = Cut()
    optimizer, steps = cl.SGD(model.parameters(), lr=0.01), []
    with pytest.raises(cl.TrainingWarning, match=r"a\.weight"):
        model.fit(X, VALUES, loss=cl.MSELoss(), optimizer=optimizer, epochs=50, batch_size=8, verbose=0,
                  callbacks=[cl.callbacks.Each(1, lambda step, training: steps.append(step))])  # fmt: skip
    assert len(steps) <= 1


def test_a_model_whose_code_belongs_to_no_module_is_trained():
    """`exec` without a __name__, as some notebooks and servers call it, makes functions without a module."""
    code = """
class Twice(cl.Model):
    def __init__(self):
        super().__init__(seed=0)
        self.linear = cl.Linear(2, 1)

    def call(self, x):
        return self.linear(x) * 2
"""
    names = {"cl": cl}
    exec(code, names)
    model = names["Twice"]()
    assert type(model).call.__module__ is None
    history = model.fit(
        X[:, :2], X[:, :1], loss=cl.MSELoss(), optimizer=cl.SGD(model.parameters(), lr=0.01), epochs=2, verbose=0
    )
    assert history["loss"][1] < history["loss"][0]
    model.summary((2,))
