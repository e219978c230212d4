"""Warnings name the user's line, however deep inside the package they are given."""

import warnings

import pytest

import caffelite as cl
from caffelite._support.warnings import warn


@pytest.mark.parametrize("how", ["fit", "fit_many", "minimize"])
def test_a_warning_names_the_users_line(how):
    x, y = cl.datasets.spiral(10, seed=0)
    model = cl.Model([cl.Linear(2, 3), cl.Softmax()], seed=0)
    optimizer = cl.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if how == "fit":
            model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=optimizer, verbose=0)
        elif how == "fit_many":
            cl.fit_many([model], x, y, loss=cl.SoftmaxLoss(), optimizers=[optimizer])
        else:
            pytest.importorskip("scipy")
            cl.minimize(model, x, y, loss=cl.SoftmaxLoss(), max_iterations=1, verbose=0)
    (warning,) = [w for w in caught if "takes scores" in str(w.message)]
    assert warning.filename == __file__
    assert issubclass(warning.category, cl.TrainingWarning)


def test_a_warning_in_a_users_function_names_the_line_there():
    def inner():
        warn("look here")

    with pytest.warns(cl.TrainingWarning, match="look here") as caught:
        inner()
    assert caught[0].lineno == inner.__code__.co_firstlineno + 1
