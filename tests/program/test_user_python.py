"""A user's loss or `call` may do what it likes: `fit` trains as the loop by hand, to the bit."""

import random
import warnings

import numpy as np
import pytest

import caffelite as cl
from tests.program import user_code
from tests.program.user_code import FORMS


def by_hand(model, loss, x, y, epochs):
    """Return the training that `fit` is to do, step after step."""
    optimizer = cl.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(epochs):
        for start in range(0, len(x), 16):
            optimizer.zero_grad()
            loss(model(x[start : start + 16]), y[start : start + 16]).backward()
            optimizer.step()
    return [p.data.copy() for p in model.parameters()]


def make_seeded(make):
    """Return a model and a loss, the global random streams being as they are at first."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    return make()


@pytest.mark.parametrize("name", FORMS)
def test_fit_trains_as_the_loop_by_hand_recorded_or_with_one_warning(name):
    make, recorded, x, y = FORMS[name]
    expected = by_hand(*make_seeded(make), x, y, epochs=4)
    model, loss = make_seeded(make)
    optimizer = cl.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(x, y, loss=loss, optimizer=optimizer, epochs=4, batch_size=16, shuffle=False, verbose=0)
    for p, values in zip(model.parameters(), expected, strict=True):
        np.testing.assert_array_equal(p.data, values)
    assert len(caught) == (0 if recorded else 1), [str(warning.message) for warning in caught]
    for warning in caught:
        assert warning.category is cl.NotRecorded
        assert warning.filename in (__file__, user_code.__file__)
