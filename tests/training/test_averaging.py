"""AverageWeights: a moving average of the weights."""

import copy
import pickle

import numpy as np
import pytest
from caffelite.callbacks import AverageWeights, Checkpoint, EarlyStopping

import caffelite as cl
from tests.conftest import bits, classifier, train
from tests.training.callback_data import StopTraining

X, Y = cl.datasets.spiral(points_per_class=20, seed=0)
VALIDATION = cl.datasets.spiral(points_per_class=20, seed=1)
BATCHES = [(X[i : i + 8], Y[i : i + 8]) for i in range(0, 60, 8)]


def make_net(dtype=np.float64):
    return cl.Model(
        [cl.Linear(2, 8), cl.BatchNorm(8), cl.ReLU(), cl.Dropout(0.2), cl.Linear(8, 3)], seed=2, dtype=dtype
    )


def copy_parameters(model):
    return [p.data.copy() for p in model.parameters()]


def by_hand(model, decay, epochs, optimizer):
    """Return the weights and their averages after each epoch of the loop by hand."""
    loss, average, found = cl.SoftmaxLoss(), copy_parameters(model), []
    for _ in range(epochs):
        for x, y in BATCHES:
            optimizer.zero_grad()
            loss(model(x.astype(model.dtype)), y).backward()
            optimizer.step()
            average = [a + (1 - decay) * (w - a) for a, w in zip(average, copy_parameters(model), strict=True)]
        found.append((copy_parameters(model), average))
    return found


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("data", [lambda: (X, Y), lambda: (BATCHES, None)], ids=["in memory", "streamed"])
def test_the_model_ends_with_the_average_over_all_steps(data, dtype):
    x, y = data()
    by_fit, trained, hand = (make_net(dtype) for _ in range(3))
    options = {"epochs": 3} if y is None else {"epochs": 3, "batch_size": 8, "shuffle": False}
    adam = [cl.Adam(model.parameters(), lr=0.05) for model in (by_fit, trained, hand)]
    history = train(by_fit, x, y, optimizer=adam[0], callbacks=[AverageWeights(0.9)], **options)
    assert history == train(trained, x, y, optimizer=adam[1], **options)
    weights, average = by_hand(hand, 0.9, 3, adam[2])[-1]
    for p, w, q, a in zip(trained.parameters(), weights, by_fit.parameters(), average, strict=True):
        assert (p.data == w).all()
        np.testing.assert_allclose(q.data, a, rtol=0, atol=1e-12 if dtype == np.float64 else 1e-6)
    for name, array in trained.buffers().items():  # as after the last step
        assert (by_fit.buffers()[name] == array).all()
    assert np.abs(average[0] - weights[0]).max() > 1e-3


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_average_has_the_same_bits_replayed_in_python_and_on_any_threads(threads, restored_threads):
    cl.set_num_threads(threads)
    recorded, eager = classifier(2, 300, 3), classifier(2, 300, 3)
    train(recorded, X, Y, epochs=3, batch_size=8, callbacks=[AverageWeights(0.99)])

    def loss(outputs, targets):
        float(outputs.data[0, 0])  # a step that looks at values is not recorded
        return cl.SoftmaxLoss()(outputs, targets)

    with pytest.warns(cl.NotRecorded):
        train(eager, X, Y, epochs=3, batch_size=8, loss=loss, callbacks=[AverageWeights(0.99)])
    assert bits(recorded) == bits(eager)
    assert bits(recorded) == bits_on_one_thread()


def bits_on_one_thread(found=[]):  # noqa: B006 (computed once)
    if not found:
        cl.set_num_threads(1)
        model = classifier(2, 300, 3)
        train(model, X, Y, epochs=3, batch_size=8, callbacks=[AverageWeights(0.99)])
        found.append(bits(model))
    return found[0]


def test_validation_and_callbacks_see_the_average_and_steps_the_weights():
    model, seen = make_net(), []
    history = train(
        model,
        BATCHES,
        epochs=3,
        validation_data=VALIDATION,
        callbacks=[
            lambda *_: seen.append(
                (copy_parameters(model), model.evaluate(*VALIDATION, loss=cl.SoftmaxLoss())["loss"])
            ),
            AverageWeights(0.9),
        ],
    )
    hand = make_net()
    expected = by_hand(hand, 0.9, 3, cl.SGD(hand.parameters(), lr=0.1, momentum=0.9))
    for (shown, loss), (_, average), of_history in zip(seen, expected, history["val_loss"], strict=True):
        assert loss == of_history
        for a, b in zip(shown, average, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("first", [True, False])
def test_early_stopping_restores_the_average_of_the_best_epoch(first):
    model, seen = make_net(), []
    stopping = EarlyStopping("val_loss", patience=2)
    callbacks = [AverageWeights(0.9), stopping] if first else [stopping, AverageWeights(0.9)]
    history = train(
        model,
        BATCHES,
        epochs=60,
        lr=1.0,
        validation_data=VALIDATION,
        callbacks=[*callbacks, lambda *_: seen.append(bits(model))],
    )
    assert stopping.best_epoch == np.argmin(history["val_loss"]) < len(seen) - 1
    assert bits(model) == seen[stopping.best_epoch]
    assert model.evaluate(*VALIDATION, loss=cl.SoftmaxLoss())["loss"] == stopping.best


@pytest.mark.parametrize("stop", [1, 5, 8, 9, 13])
@pytest.mark.parametrize("data", [lambda: (X, Y), lambda: (BATCHES, None)], ids=["in memory", "streamed"])
@pytest.mark.parametrize("seconds", [0, None])
def test_a_checkpoint_has_weights_and_average(data, stop, seconds, tmp_path):
    path = tmp_path / "checkpoint"

    def run(stop, resume=None):
        def f(step, training):
            if step == stop:
                raise StopTraining

        model = make_net()
        optimizer = cl.Adam(model.parameters(), lr=0.05)
        callbacks = [AverageWeights(0.9), Checkpoint(path, seconds=seconds), cl.callbacks.Each(1, f)]
        x, y = data()
        options = {} if y is None else {"batch_size": 8}
        train(model, x, y, optimizer=optimizer, epochs=3, callbacks=callbacks, resume=resume, **options)
        return model, optimizer.state_dict()

    model, state = run(None)
    assert bits(cl.load(path)) == bits(model)
    path.unlink()
    with pytest.raises(StopTraining):
        run(stop)
    again, its_state = run(None, path if path.exists() else None)
    assert bits(again) == bits(model)
    assert all(np.array_equal(state[name], its_state[name]) for name in state)


def test_a_checkpoint_of_another_decay_raises_and_changes_nothing(tmp_path):
    path, model = tmp_path / "checkpoint", make_net()
    train(model, X, Y, callbacks=[AverageWeights(0.9), Checkpoint(path)])
    before = bits(model)
    for callbacks, expected in (([AverageWeights(0.8)], "decay 0.8"), ([], "AverageWeights")):
        with pytest.raises(ValueError, match=expected):
            train(model, X, Y, epochs=2, callbacks=callbacks, resume=path)
        assert bits(model) == before


def test_a_training_that_diverges_leaves_the_average():
    model = classifier(2, 3)
    bad = [*BATCHES[:3], (np.full((8, 2), np.nan), Y[:8])]
    with pytest.raises(cl.TrainingDiverged):
        train(model, bad, callbacks=[AverageWeights(0.5)])
    other = classifier(2, 3)
    train(other, BATCHES[:3], callbacks=[AverageWeights(0.5)])
    assert bits(model) == bits(other)


def test_a_second_training_starts_its_average_from_the_weights_before_its_first_step():
    one, other, average = classifier(2, 3), classifier(2, 3), AverageWeights(0.9)
    for _ in range(2):
        train(one, BATCHES, callbacks=[average])
        train(other, BATCHES, callbacks=[AverageWeights(0.9)])
    assert bits(one) == bits(other)
    train(classifier(2, 5, 3), BATCHES, callbacks=[average])  # and of another model
    train(one, BATCHES, callbacks=[average])
    train(other, BATCHES, callbacks=[AverageWeights(0.9)])
    assert bits(one) == bits(other)


def test_a_parameter_that_a_callback_adds_is_averaged_from_then_on():
    model = cl.Model([cl.Linear(2, 3)], seed=0)

    class Adding:
        def begin(self, training):
            self.training = training

        def __call__(self, epoch, history):
            if epoch == 0:
                model.add(cl.Linear(3, 3))

    with pytest.warns(cl.TrainingWarning, match="not trained"):
        train(model, BATCHES, epochs=2, callbacks=[AverageWeights(0.9), Adding()])
    assert len(model.predict(X)) == 60


def test_averages_can_be_copied_and_pickled_and_are_checked():
    average = AverageWeights(0.5)
    train(classifier(2, 3), X, Y, callbacks=[average])
    for other in (copy.deepcopy(average), pickle.loads(pickle.dumps(average))):
        assert other.state_dict() == {"decay": 0.5}
    for decay in (1.0, -0.1, np.nan):
        with pytest.raises(ValueError, match="decay"):
            AverageWeights(decay)


def test_a_training_has_one_average_only():
    with pytest.raises(ValueError, match="one AverageWeights"):
        train(classifier(2, 3), X, Y, callbacks=[AverageWeights(0.9), AverageWeights(0.99)])


def test_minimize_has_no_steps_to_average():
    pytest.importorskip("scipy")
    with pytest.raises(ValueError, match="AverageWeights"):
        cl.minimize(classifier(2, 3), X, Y, loss=cl.SoftmaxLoss(), callbacks=[AverageWeights()])
