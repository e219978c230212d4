"""attributions: integrated gradients beside their formula, and what they add up to."""

import warnings

import numpy as np
import pytest

import caffelite as cl

RNG = np.random.default_rng(0)
DTYPES = [np.float32, np.float64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("baseline", [0, -0.5, RNG.normal(size=4), RNG.normal(size=(6, 4))])
def test_a_polynomial_has_the_attributions_of_its_formula(baseline, dtype):
    class Polynomial(cl.Model):
        def call(self, x):
            return x[:, 0] ** 3 + x[:, 1] * x[:, 2]

    x = RNG.normal(size=(6, 4))
    b = np.broadcast_to(baseline, x.shape)
    a = cl.attributions(Polynomial(dtype=dtype), x, baseline=baseline, steps=400)
    expected = np.stack(
        [
            x[:, 0] ** 3 - b[:, 0] ** 3,
            (x[:, 1] - b[:, 1]) * (x[:, 2] + b[:, 2]) / 2,
            (x[:, 2] - b[:, 2]) * (x[:, 1] + b[:, 1]) / 2,
            np.zeros(6),
        ],
        axis=1,
    )
    assert a.dtype == np.float64
    np.testing.assert_allclose(a, expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_attributions_add_up_to_the_difference_of_the_outputs(dtype):
    model = cl.MLP(20, [64, 64, 3], seed=0, dtype=dtype)
    x = RNG.normal(size=(50, 20))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        a = cl.attributions(model, x, steps=5)
    y, y0 = model.predict(x), model.predict(np.zeros((1, 20)))
    assert a.shape == (50, 20, 3)
    assert abs(a.sum(axis=1) - (y - y0)).max() <= 1e-3 * abs(y).max()
    one = cl.attributions(model, x, output=1, steps=1600)
    assert one.shape == (50, 20)
    np.testing.assert_allclose(one.sum(axis=1), (y - y0)[:, 1], atol=1e-3 * abs(y).max())


def test_steps_are_doubled_only_as_far_as_needed(monkeypatch):
    from caffelite.attribution import integrated_gradients

    asked, integrate = [], integrated_gradients._integrate
    monkeypatch.setattr(integrated_gradients, "_integrate", lambda *a: asked.append((len(a[1]), a[3])) or integrate(*a))

    class Cube(cl.Model):
        def call(self, x):
            return (x**3).sum(axis=1)

    cl.attributions(Cube(dtype=np.float64), [[1.0], [1e-3]], steps=2)
    assert asked == [(2, 2), (1, 4), (1, 8), (1, 16)]  # the error is ¼ / steps²


def test_a_jump_ends_at_1600_steps_with_a_warning():
    class Step(cl.Model):
        def call(self, x):
            return (x[:, 0] * 1e6 - 3e5).sigmoid()

    with pytest.warns(UserWarning, match="the attributions of row 1 miss its output by 1 after 1,600 steps") as caught:
        a = cl.attributions(Step(), [[0.0, 0.0], [1.0, 0.0]])
    assert caught[0].filename == __file__
    assert a.shape == (2, 2)


def test_gradients_of_dropout_and_batch_norm_are_as_in_predict():
    model = cl.Model([cl.Linear(5, 8), cl.BatchNorm(8), cl.Dropout(0.9), cl.Linear(8, 1)], seed=0)
    x = RNG.normal(size=(200, 5))
    model.fit(x, x[:, :1], loss=cl.MSELoss(), optimizer=cl.SGD(model.parameters(), lr=0.01), epochs=1, verbose=0)
    gradients = [p.grad.copy() for p in model.parameters()]
    a = cl.attributions(model, x[:4])
    expected = model.predict(x[:4]) - model.predict(np.zeros((1, 5)))
    np.testing.assert_allclose(a.sum(axis=1), expected[:, 0], atol=1e-5)
    assert all(np.array_equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))


def test_images_have_attributions_of_their_shape():
    model = cl.Model([cl.Conv2d(1, 2, 3), cl.ReLU(), cl.Flatten(), cl.Linear(2 * 9, 4)], seed=0)
    x = RNG.normal(size=(3, 1, 5, 5))
    assert cl.attributions(model, x, 2).shape == (3, 1, 5, 5)
    assert cl.attributions(model, x).shape == (3, 1, 5, 5, 4)


def test_other_inputs_raise():
    model, x = cl.MLP(4, [3, 1], seed=0), RNG.normal(size=(5, 4))
    with pytest.raises(TypeError, match=r"one input of floats; cl\.explain takes any input"):
        cl.attributions(cl.Model([cl.Embedding(5, 2), cl.Flatten(), cl.Linear(4, 1)], seed=0), np.zeros((2, 2), int))
    with pytest.raises(ValueError, match=r"expected a baseline for rows \(5, 4\), got shape \(3,\)"):
        cl.attributions(model, x, baseline=np.zeros(3))
    with pytest.raises(ValueError, match="x has a number that is not finite in row 2"):
        cl.attributions(model, np.where(np.arange(5)[:, None] == 2, np.nan, x))
    with pytest.raises(ValueError, match="the baseline has a number that is not finite in row 0"):
        cl.attributions(model, x, baseline=np.inf)
    with pytest.raises(ValueError, match="steps"):
        cl.attributions(model, x, steps=0)
