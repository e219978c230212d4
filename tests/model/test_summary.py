"""The summary of a model."""

import pickle
import re

import numpy as np
import pytest

import caffelite as cl
from tests.conftest import classifier


def summary_rows(summary):
    """Return the cells of a summary that are not empty, line by line."""
    return [re.split(r" {2,}", line.strip()) for line in summary.splitlines()[2:]]


def test_the_summary_lists_functions_shapes_and_parameters():
    assert summary_rows(classifier(2, 100, 3).summary()) == [
        ["0", "Linear(2, 100)", "(n, 100)", "300", "1.2 kB", "200", "400 B"],
        ["1", "ReLU()", "(n, 100)", "0", "0 B", "0", "400 B"],
        ["2", "Linear(100, 3)", "(n, 3)", "303", "1.2 kB", "300", "12 B"],
        ["total", "603", "2.4 kB", "500", "812 B"],
    ]


def test_the_summary_takes_the_shape_of_a_row_if_it_is_unknown():
    model = cl.Model([cl.ReLU()])
    assert "?" in model.summary()
    assert "(n, 8, 8)" in model.summary(input_shape=(8, 8))
    with pytest.raises(ValueError, match=r"2.*5|5.*2"):
        classifier(2, 3).summary(input_shape=(5,))
    with pytest.raises(ValueError, match=r"the shape of a row of one input, got \(\(2,\), \(3,\)\)"):
        classifier(2, 3).summary(((2,), (3,)))
    with pytest.raises(ValueError, match=r"Conv1d\(3, 4, 5\) got shape \(n, 3\)"):
        cl.Model([cl.Conv1d(3, 4, 5)]).summary((3,))
    assert summary_rows(cl.Model().summary()) == [["total", "0", "0 B", "?", "?"]]


class Skipping(cl.Model):
    """y = x + f(x), f a convolution: its output's shape is known from images alone."""

    def __init__(self, channels):
        super().__init__()
        self.f = cl.Conv2d(channels, channels, 3, padding=1)

    def call(self, x):
        return x + self.f(x)


@pytest.mark.parametrize(
    "within", [lambda f: f, cl.Residual, lambda f: cl.Model([f])], ids=["bare", "residual", "model"]
)
def test_a_model_that_writes_call_follows_a_convolution_before_there_are_images(within):
    model = cl.Model([cl.Conv2d(1, 4, 3), within(Skipping(4)), cl.GlobalAvgPool(), cl.Linear(4, 3)], seed=0)
    assert [row[2:3] + row[-2:] for row in summary_rows(model.summary())[1:3]] == [["?", "?", "?"]] * 2
    assert "(n, 4, 6, 6)" in model.summary((1, 8, 8)).splitlines()[3]
    assert model.predict(np.ones((5, 1, 8, 8), np.float32)).shape == (5, 3)
    with pytest.raises(ValueError, match=r"has to know all lengths but the first; got rows of \(4, None, None\)"):
        model.functions[1].output_shape((None, 4, None, None))
    with pytest.raises(ValueError, match=r"Conv2d\(4, 4, 3, padding=1\) got shape \(5, 2, 6, 6\)"):
        cl.Model([cl.Conv2d(1, 2, 3), within(Skipping(4))]).predict(np.ones((5, 1, 8, 8), np.float32))


def test_the_summary_of_a_function_that_raises_for_zeros_has_question_marks():
    class Root(cl.Function):
        def forward(self, x):
            if (x <= 0).any():
                raise ArithmeticError("zeros have no gradient")
            self.y = np.sqrt(x)
            return self.y

        def backward(self, dy):
            return dy / 2 / self.y

    assert summary_rows(cl.Model([Root(), cl.Linear(4, 3)]).summary((4,))) == [
        ["0", "Root()", "(n, 4)", "0", "0 B", "?", "?"],
        ["1", "Linear(4, 3)", "(n, 3)", "15", "60 B", "?", "?"],
        ["total", "15", "60 B", "?", "?"],
    ]


def test_the_summary_says_how_much_is_frozen():
    class CallNet(cl.Model):
        def __init__(self):
            super().__init__()
            self.linear = cl.Linear(4, 3)

        def call(self, x):
            return self.linear(x)

    sequence, called = classifier(4, 3, 3), CallNet()
    assert [row[-5] for row in summary_rows(called.summary())] == ["?", "?"]  # before there is a shape
    for model in (sequence, called):
        model.children()[0].requires_grad = False
        assert summary_rows(model.summary((4,)))[-1] == ["frozen", "15", "60 B"]


def test_the_summary_cuts_what_is_long():
    model = cl.Model([cl.MLP(10, [10] * 20)])
    assert max(map(len, model.summary().splitlines())) <= 120
    assert "Model([Linear(10, 10), ReLU(), " in model.summary()


def test_the_summary_counts_the_multiply_adds_and_the_memory_that_a_row_takes():
    class Double(cl.Function):
        def forward(self, x):
            return np.float32(2) * x

        def backward(self, dy):
            return np.float32(2) * dy

    model = cl.Model(
        [cl.Conv2d(2, 6, 3, padding=1, groups=2), cl.Residual(cl.Model([cl.Conv2d(6, 6, 1)])), cl.Flatten()]
    )
    model.add(cl.Linear(6 * 5 * 4, 3))
    products = [6 * 9 * 5 * 4, 6 * 6 * 5 * 4, 0, 6 * 5 * 4 * 3]
    rows = summary_rows(model.summary((2, 5, 4)))
    assert [row[-2] for row in rows] == [f"{n:,}" for n in (*products, sum(products))]
    assert [row[-1] for row in rows] == ["480 B", "960 B", "0 B", "12 B", "1.5 kB"]  # a view takes none
    rows = summary_rows(model.add(Double()).summary((2, 5, 4)))
    assert [row[-2] for row in rows[-3:]] == ["360", "?", "?"]
    assert [row[-1] for row in rows[-2:]] == ["12 B", "1.5 kB"]


def test_a_notebook_shows_a_model_as_its_summary():
    model = classifier(2, 3)
    assert model._repr_html_() == model.summary()._repr_html_()
    assert ">Linear(2, 3)<" in model._repr_html_()


def test_a_summary_changes_nothing():
    model = cl.Model([cl.Linear(3, 4), cl.BatchNorm(4), cl.Dropout(), cl.Residual(cl.Linear(4, 4))], seed=0)
    before, rng, types = (
        pickle.dumps(model.state_dict()),
        str(model._model_state.rng.bit_generator.state),
        list(map(type, model.functions)),
    )
    model.summary()
    assert pickle.dumps(model.state_dict()) == before
    assert str(model._model_state.rng.bit_generator.state) == rng
    assert list(map(type, model.functions)) == types
    assert all(p.grad is None for p in model.parameters())


def test_a_users_function_may_have_an_attribute_called_input_shape():
    class Flatten(cl.Function):
        def forward(self, x):
            self.input_shape = x.shape
            return x.reshape(len(x), -1)

        def backward(self, dy):
            return dy.reshape(self.input_shape)

        def output_shape(self, shape):
            return (shape[0], None)

    model = cl.Model([Flatten(), cl.Linear(4, 3)])
    before = model.summary()
    x = np.ones((5, 2, 2), np.float32)
    flatten, linear = model.functions
    assert flatten.backward(linear.backward(linear.forward(flatten.forward(x)))).shape == x.shape
    assert model.summary() == before
    assert model.add(cl.ReLU()).predict(np.ones((7, 4, 1), np.float32)).shape == (7, 3)


def test_a_shared_function_counts_once_in_the_total():
    shared = cl.Linear(4, 4)
    rows = summary_rows(cl.Model([shared, cl.ReLU(), shared]).summary())
    assert rows[-1][:2] == ["total", "20"]
    assert [row[-2] for row in rows] == ["16", "0", "16", "32"]
