"""`fit`: the steps it makes, their bits, and the order of rows."""

import numpy as np
import pytest

import caffelite as cl
from tests.conftest import bits, classifier, train
from tests.training.numpy_parts import DTYPES, SquaredError, Through, X, Y, by_hand


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-3), (np.float64, 1e-9)])
@pytest.mark.parametrize("nesterov", [False, True])
def test_a_hundred_steps_equal_a_numpy_loop_in_float64(dtype, tolerance, nesterov):
    x, y = cl.datasets.spiral(points_per_class=100, seed=0)
    model = classifier(2, 100, 3, dtype=dtype)
    w1, b1, w2, b2 = weights = [p.data.astype(np.float64) for p in model.parameters()]
    optimizer = cl.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3, nesterov=nesterov)
    history = train(model, x, y, optimizer=optimizer, epochs=100, batch_size=len(x))

    x, velocity, losses = x.astype(np.float64), [np.zeros_like(w) for w in weights], []
    for _ in range(100):
        h = np.maximum(x @ w1 + b1, 0)
        p = np.exp(h @ w2 + b2)
        p /= p.sum(axis=1, keepdims=True)
        losses.append(-np.log(p[np.arange(len(y)), y]).mean())
        d = (p - np.eye(3)[y]) / len(y)
        dh = (d @ w2.T) * (h > 0)
        for w, v, g in zip(weights, velocity, [x.T @ dh, dh.sum(axis=0), h.T @ d, d.sum(axis=0)], strict=True):
            g += 1e-3 * w
            v[...] = 0.9 * v + g
            w -= 0.1 * (g + 0.9 * v if nesterov else v)

    got = np.concatenate([p.data.ravel() for p in model.parameters()]).astype(np.float64)
    expected = np.concatenate([w.ravel() for w in weights])
    assert np.linalg.norm(got - expected) <= tolerance * np.linalg.norm(expected)
    np.testing.assert_allclose(history["loss"], losses, rtol=tolerance)


@DTYPES
def test_the_textbook_loop_gives_the_bits_of_fit(dtype):
    x = X.astype(dtype)
    fitted = classifier(2, 16, 8, 3, dtype=dtype)
    train(fitted, x, Y, epochs=5, batch_size=len(x), shuffle=False)
    assert bits(by_hand(classifier(2, 16, 8, 3, dtype=dtype), x, Y, 5)) == bits(fitted)


def test_the_textbook_loop_over_batches_gives_the_bits_of_fit():
    fitted = classifier(2, 16, 3)
    train(fitted, X, Y, epochs=2, batch_size=16, shuffle=False)
    model, loss = classifier(2, 16, 3), cl.SoftmaxLoss()
    optimizer = cl.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        for i in range(0, len(X), 16):
            optimizer.zero_grad()
            loss.forward(model.forward(X[i : i + 16]), Y[i : i + 16])
            model.backward(loss.backward())
            optimizer.step()
    assert bits(model) == bits(fitted)


def test_the_graph_gives_the_bits_of_fit():
    fitted = classifier(2, 16, 3)
    train(fitted, X, Y, epochs=3, batch_size=len(X), shuffle=False)
    model, loss = classifier(2, 16, 3), cl.SoftmaxLoss()
    optimizer = cl.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        loss(model(cl.Tensor(X)), Y).backward()
        optimizer.step()
    assert bits(model) == bits(fitted)


def test_a_spiral_is_learned():
    x, y = cl.datasets.spiral(points_per_class=100, seed=0)
    model = classifier(2, 100, 3)
    history = train(model, x, y, lr=0.1, epochs=300)
    assert history["loss"][-1] < 0.1 < history["loss"][0]
    assert (model.predict(x).argmax(axis=1) == y).mean() > 0.97


@DTYPES
def test_two_runs_give_the_same_bits_and_the_same_history(dtype):
    runs = []
    for _ in range(2):
        model = classifier(2, 16, 3, dtype=dtype)
        history = train(model, X, Y, epochs=3, validation_split=0.2, metrics=["accuracy"])
        runs.append((bits(model), dict(history)))
    assert runs[0] == runs[1]


def test_the_seeds_of_the_model_and_of_fit_take_effect():
    def train_bits(stream, seed):
        model = classifier(2, 16, 3, seed=stream)
        model.load_state_dict(classifier(2, 16, 3).state_dict())
        train(model, X, Y, seed=seed)
        return bits(model)

    assert train_bits(0, None) != train_bits(1, None)
    assert train_bits(0, seed=1) == train_bits(1, seed=1) != train_bits(0, seed=2)


def test_fit_goes_on_from_the_present_parameters():
    model, whole = classifier(2, 16, 3), classifier(2, 16, 3)
    for _ in range(3):
        train(model, X, Y, momentum=0.0, shuffle=False)
    train(whole, X, Y, momentum=0.0, shuffle=False, epochs=3)
    assert bits(model) == bits(whole)


def test_the_short_last_batch_is_trained_on():
    model, by_batches = classifier(2, 16, 3), classifier(2, 16, 3)
    train(model, X, Y, batch_size=25, shuffle=False)
    train(by_batches, [(X[:25], Y[:25]), (X[25:50], Y[25:50]), (X[50:], Y[50:])])
    assert bits(model) == bits(by_batches)


def test_the_order_of_the_rows_changes_from_epoch_to_epoch():
    orders = []

    def order(outputs, targets):
        orders.append(targets.ravel().tolist())
        return 0

    rows = np.arange(20.0)[:, None]
    train(
        cl.Model([cl.Linear(1, 1)]),
        rows,
        rows,
        lr=1e-300,
        loss=SquaredError(),
        metrics=[order],
        epochs=3,
        batch_size=20,
    )
    assert all(sorted(each) == list(range(20)) for each in orders)
    assert len({tuple(each) for each in [*orders, range(20)]}) == 4


def test_training_is_training_and_evaluating_is_not():
    seen = []
    model = cl.Model([cl.Linear(2, 3), Through(lambda: seen.append(cl.is_training()))])
    train(model, X, Y, batch_size=len(X), validation_data=(X, Y))
    model.predict(X)
    model.evaluate(X, Y, loss=cl.SoftmaxLoss())
    model.forward(X)
    assert seen == [True, False, False, False, True]
