"""find_lr: the learning rate range test."""

import copy

import numpy as np
import pytest

import caffelite as cl
from caffelite.model.lr_finder import RateTest
from tests.conftest import bits, classifier

X, Y = cl.datasets.spiral(points_per_class=60, seed=0)


def everything(model, optimizer, generator=None):
    """All that a test of rates could change, gradients and random streams included."""
    state = [
        bits(model),
        repr(optimizer.state_dict()),
        repr(optimizer.groups),
        model._model_state.rng.bit_generator.state,
    ]
    state += [array.tobytes() for array in model.buffers().values()]
    state += [None if p.grad is None else p.grad.tobytes() for p in model.parameters()]
    if generator is not None:
        state += [generator._order.tobytes(), generator._shuffle_state.tobytes(), generator._epochs]
    return state


def make_trained_model(dtype=np.float32):
    """Return a model with all kinds of state, after some steps, with gradients."""
    model = cl.Model(seed=0, dtype=dtype)
    model.add(cl.Linear(2, 16)).add(cl.BatchNorm(16)).add(cl.Dropout(0.1)).add(cl.ReLU()).add(cl.Linear(16, 3))
    optimizer = cl.Adam(model.parameters(), lr=cl.schedules.cosine(0.01, steps=100))
    model.fit(X, Y, loss=cl.SoftmaxLoss(), optimizer=optimizer, verbose=0)
    return model, optimizer


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("as_generator", [False, True])
def test_the_model_the_optimizer_and_random_streams_are_left_as_they_were(as_generator, dtype):
    model, optimizer = make_trained_model(dtype)
    generator = cl.DataGenerator(X, Y, seed=3)
    before = everything(model, optimizer, generator)
    data = (generator,) if as_generator else (X, Y)
    found = cl.find_lr(model, *data, loss=cl.SoftmaxLoss(), optimizer=optimizer)
    assert everything(model, optimizer, generator) == before
    again = cl.find_lr(model, *data, loss=cl.SoftmaxLoss(), optimizer=optimizer)
    np.testing.assert_array_equal(found.losses, again.losses)


def test_all_is_left_as_it_was_after_an_exception_too():
    model, optimizer = make_trained_model()

    class Fails(cl.SoftmaxLoss):
        steps = 0

        def forward(self, *inputs):
            type(self).steps += 1
            if self.steps == 10:
                raise ZeroDivisionError
            return super().forward(*inputs)

    before = everything(model, optimizer)
    with pytest.raises(ZeroDivisionError):
        cl.find_lr(model, X, Y, loss=Fails(), optimizer=optimizer)
    assert everything(model, optimizer) == before


def test_a_step_is_taken_with_each_rate():
    model = classifier(2, 16, 3)
    other = copy.deepcopy(model)
    found = cl.find_lr(
        model, X, Y, loss=cl.SoftmaxLoss(), optimizer=cl.SGD(model.parameters(), lr=3.0), low=1e-3, high=0.1, steps=9
    )
    np.testing.assert_allclose(found.lrs, np.geomspace(1e-3, 0.1, 9))
    losses, optimizer = [], cl.SGD(other.parameters(), lr=0.0)
    generator = cl.DataGenerator(X, Y, batch_size=32, seed=0)  # 180 rows: six batches, then others
    for lr, (x, y) in zip(found.lrs, [*generator, *generator], strict=False):
        optimizer.lr = lr
        losses.append(other.fit([(x, y)], loss=cl.SoftmaxLoss(), optimizer=optimizer, verbose=0)["loss"][0])
    np.testing.assert_array_equal(found.losses, losses)


@pytest.mark.parametrize(
    ("make", "least", "most"),
    [(lambda ps: cl.SGD(ps, lr=1.0, momentum=0.9), 0.003, 0.3), (lambda ps: cl.Adam(ps), 0.003, 0.2)],
)
def test_the_suggestion_is_a_rate_that_trains(make, least, most):
    for seed in range(3):
        model = classifier(2, 100, 3, seed=seed)
        found = cl.find_lr(model, X, Y, loss=cl.SoftmaxLoss(), optimizer=make(model.parameters()))
        assert least < found.suggestion < most
        optimizer = make(model.parameters())
        optimizer.lr = found.suggestion
        history = model.fit(
            X, Y, loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs=60, metrics=["accuracy"], verbose=0
        )
        assert history["accuracy"][-1] > 0.8


def test_it_ends_when_the_loss_has_risen_far_or_the_training_diverges():
    model = classifier(2, 16, 3)
    options = {"loss": cl.SoftmaxLoss(), "optimizer": cl.SGD(model.parameters(), lr=0.1)}
    for high in (1e4, 1e38):
        found = cl.find_lr(model, X, Y, high=high, **options)
        assert 5 < len(found.lrs) == len(found.losses) == len(found.smoothed) < 100
        assert np.isfinite(found.losses).all()


def test_a_low_loss_at_the_very_beginning_is_not_a_suggestion():
    lrs = np.geomspace(1e-7, 10, 100)
    losses = np.where(lrs < 0.01, 0.7, np.where(lrs < 1, 0.65, 5.0))
    losses[:2] = 0.5, 0.55  # of batches that happened to be easy
    assert RateTest(lrs, losses).suggestion == pytest.approx(0.1, rel=0.3)


def test_a_loss_that_never_falls_gives_no_suggestion():
    model = classifier(2, 3)
    zeros = np.zeros((64, 2)), np.zeros((64, 3))
    for p in model.parameters():
        p.data = np.zeros(p.shape)
    found = cl.find_lr(model, *zeros, loss=cl.MSELoss(), optimizer=cl.SGD(model.parameters(), lr=0.1))
    assert found.suggestion is None
    assert repr(found) == "RateTest(suggestion=None, 100 steps)"
    found.plot()


def test_the_plot_has_the_losses_and_the_suggestion():
    model = classifier(2, 16, 3)
    found = cl.find_lr(model, X, Y, loss=cl.SoftmaxLoss(), optimizer=cl.Adam(model.parameters()))
    (axes,) = found.plot().axes
    assert [line.get_label() for line in axes.get_lines()] == [
        "loss",
        "smoothed",
        f"suggestion {found.suggestion:.2g}",
    ]
    assert axes.get_xscale() == "log"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"low": 0}, ValueError),
        ({"low": 1.0, "high": 1.0}, ValueError),
        ({"steps": 1}, ValueError),
        ({"steps": 2.5}, TypeError),
        ({"y": None}, TypeError),
        ({"y": Y[:7]}, ValueError),
        ({"y": Y + 9}, ValueError),
        ({"batch_size": 0}, ValueError),
        ({"loss": "softmax"}, TypeError),
        ({"optimizer": 0.1}, TypeError),
    ],
)
def test_bad_arguments_raise(options, error):
    model = classifier(2, 3)
    options = {"x": X, "y": Y, "loss": cl.SoftmaxLoss(), "optimizer": cl.Adam(model.parameters()), **options}
    with pytest.raises(error):
        cl.find_lr(model, **options)


def test_a_generator_refuses_a_batch_size_that_is_not_its_own():
    model, generator = classifier(2, 3), cl.DataGenerator(X, Y, batch_size=10, seed=0)
    given = {"loss": cl.SoftmaxLoss(), "optimizer": cl.SGD(model.parameters(), lr=0.1), "steps": 2}
    with pytest.raises(ValueError, match=r"batch_size=5 needs x and y as arrays.* leave out batch_size"):
        cl.find_lr(model, generator, **given, batch_size=5)
    cl.find_lr(model, generator, **given, batch_size=10)
