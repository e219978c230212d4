"""Python state and randomness in any form: `fit`, `predict`, `capture` and `fit_many` compute as the loop by hand."""

import os
import random
import threading
import time
import types
import warnings

import numpy as np
import pytest

import caffelite as cl
from tests.program.state_forms import FORMS, outside

X = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(32, 1)).astype(np.float32)
EPOCHS = 6
CASES = [(name, place) for name, form in FORMS.items() for place in form.places]


class Training:
    """A fresh model and loss of a form. Its state is the model (place "call"), or belongs to the loss."""

    def __init__(self, name, place):
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        self.form = FORMS[name]
        if place == "call":
            self.model, self.loss = make_model(self.form.init(), self.form.apply), mean_of_squares
            self.state = self.model
        else:
            self.model, self.state = make_model({}, lambda self, h: h), types.SimpleNamespace(**self.form.init())
            self.loss = make_loss(self.state, self.form.apply)
        self.optimizer = cl.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        getattr(self.state, "optimizers", []).append(self.optimizer)

    def after_epoch(self, epoch):
        if self.form.after_epoch is not None:
            self.form.after_epoch(self.state, epoch)

    def metrics(self):
        return [lambda o, y: self.form.metric(self.state, o, y)] if self.form.metric else []

    def weights(self):
        return np.concatenate([p.data.ravel() for p in self.model.parameters()])

    # ---- ways to train --------------------------------------------------------------------------------------------

    def train_by_hand(self):
        """Return the losses of the steps."""
        losses = []
        for epoch in range(EPOCHS):
            outputs = []
            for i in range(0, 32, 8):
                self.optimizer.zero_grad()
                outputs.append(self.model(X[i : i + 8]))
                loss = self.loss(outputs[-1], Y[i : i + 8])
                loss.backward()
                self.optimizer.step()
                losses.append(loss.item())
            for metric in self.metrics():
                metric(np.concatenate([o.data for o in outputs]), Y)
            self.after_epoch(epoch)
        return losses

    def fit(self, epochs=EPOCHS, callbacks=(), x=X, y=Y, **options):
        """Return the losses of the epochs."""
        if y is not None:
            options |= {"batch_size": 8, "shuffle": False}
        history = self.model.fit(
            x, y, loss=self.loss, optimizer=self.optimizer, epochs=epochs, metrics=self.metrics(), verbose=0,
            callbacks=callbacks, **options,
        )  # fmt: skip
        return history["loss"]

    def fit_once(self):
        callbacks = [lambda epoch, history: self.after_epoch(epoch)]
        return self.fit(callbacks=callbacks if self.form.after_epoch else ())

    def fit_with_a_callback(self):
        return self.fit(callbacks=[lambda epoch, history: self.after_epoch(epoch)])

    def fit_each_epoch(self):
        losses = []
        for epoch in range(EPOCHS):
            losses += self.fit(1)
            self.after_epoch(epoch)
        return losses

    def fit_batches(self):
        """Train on batches of a generator, whose code is the callback."""
        training, epochs = self, iter(range(EPOCHS))

        class Batches:
            def __iter__(self):
                for i in range(0, 32, 8):
                    yield X[i : i + 8], Y[i : i + 8]
                if not training.form.metric:
                    training.after_epoch(next(epochs))

        return self.fit(x=Batches(), y=None)


def make_model(attributes, apply):
    class FormNet(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.hidden, self.out = cl.Linear(4, 3), cl.Linear(3, 1)
            for name, value in attributes.items():
                assert not hasattr(self, name)
                setattr(self, name, value)

        def call(self, x):
            return self.out(apply(self, self.hidden(x).tanh()))

    return FormNet()


def make_loss(state, apply):
    return lambda outputs, targets: (apply(state, outputs - targets) ** 2).mean()


def mean_of_squares(outputs, targets):
    d = outputs - targets
    return (d * d).mean()


def check_warnings(caught, most=1):
    """At most one warning says that the step runs in Python, and there are no others."""
    assert [w.category for w in caught if w.category is not cl.NotRecorded] == []
    assert len(caught) <= most, [str(w.message) for w in caught]


def check_training(name, place, way, most=1):
    if FORMS[name].is_random:
        check_random_training(name, place, way)
        return
    by_hand = Training(name, place)
    losses = by_hand.train_by_hand()
    training = Training(name, place)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        epoch_losses = getattr(training, way)()
    np.testing.assert_array_equal(training.weights(), by_hand.weights())
    np.testing.assert_allclose(epoch_losses, np.reshape(losses, (EPOCHS, 4)).mean(axis=1), rtol=1e-5)
    check_warnings(caught, most)


def check_random_training(name, place, way):
    """Check that each epoch has another loss. Nothing is learned, so only the numbers drawn make the difference."""
    training = Training(name, place)
    training.optimizer.lr = 1e-300
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.NotRecorded)
        losses = getattr(training, way)()
    assert len(set(losses)) == EPOCHS


def check_random_steps(name, place):
    """Check that each step has a loss of its own."""
    training = Training(name, place)
    training.optimizer.lr = 1e-300
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.NotRecorded)
        history = training.model.fit(
            X, Y, loss=training.loss, optimizer=training.optimizer, epochs=24, batch_size=32, verbose=0
        )
    assert len(set(history["loss"])) == 24


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    outside.folder = tmp_path_factory.mktemp("forms")


every_case = pytest.mark.parametrize(("name", "place"), CASES)
every_case_in_call = pytest.mark.parametrize("name", [name for name, place in CASES if place == "call"])


def test_there_are_two_hundred_forms():
    assert len(FORMS) >= 200


@pytest.mark.parametrize("name", FORMS)
def test_the_numbers_of_a_form_change(name):
    form, outputs = FORMS[name], set()
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    state = types.SimpleNamespace(hidden=cl.Linear(4, 3), **form.init())
    values = np.linspace(-1, 2, 24, dtype=np.float32).reshape(8, 3)
    getattr(state, "optimizers", []).append(cl.SGD([cl.Tensor(values, requires_grad=True)], lr=0.05))
    for step in range(24):
        h = cl.Tensor(values, requires_grad=True)
        out = form.apply(state, h)
        out.sum().backward()
        outputs.add(out.data.tobytes() + h.grad.tobytes())
        if form.metric:
            form.metric(state, values, values)
        if form.after_epoch and step % 4 == 3:
            form.after_epoch(state, step // 4)
    assert len(outputs) > 1


@every_case
def test_fit_trains_as_the_loop_by_hand(name, place):
    check_training(name, place, "fit_once")
    if FORMS[name].is_random:
        check_random_steps(name, place)


@pytest.mark.parametrize(("name", "place"), [case for case in CASES if not FORMS[case[0]].after_epoch])
def test_fit_with_a_callback_in_each_epoch_trains_as_the_loop_by_hand(name, place):
    check_training(name, place, "fit_with_a_callback")


@every_case
def test_a_fit_for_each_epoch_trains_as_the_loop_by_hand(name, place):
    check_training(name, place, "fit_each_epoch", most=EPOCHS)


@pytest.mark.parametrize(("name", "place"), [case for case in CASES if not FORMS[case[0]].metric])
def test_fit_on_batches_of_a_generator_trains_as_the_loop_by_hand(name, place):
    check_training(name, place, "fit_batches")


@every_case_in_call
def test_each_prediction_is_that_by_hand(name):
    def predict(by_hand):
        training, outputs = Training(name, "call"), []
        with cl.no_grad():
            for epoch in range(EPOCHS):
                outputs.append(training.model(X).data.copy() if by_hand else training.model.predict(X))
                training.after_epoch(epoch)
        return outputs

    expected = predict(by_hand=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.NotRecorded)
        outputs = predict(by_hand=False)
    if FORMS[name].is_random:
        assert len({o.tobytes() for o in outputs}) == EPOCHS
        return
    for actual, truth in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(actual, truth, rtol=1e-5, atol=1e-6)


@every_case_in_call
def test_capture_raises_or_replays_as_by_hand(name):
    """A replay continues after the calls that traced the step: one or two of them."""
    numbers, training = [], Training(name, "call")
    try:
        program = cl.capture(lambda x: training.model(x), X)
        for i in range(12):
            numbers.append(np.array(program(X)))
            if i % 2:
                training.after_epoch(i // 2)
    except TypeError:
        pass  # at once, or as soon as something has changed
    if FORMS[name].is_random:
        assert len({n.tobytes() for n in numbers}) == len(numbers)
        return
    assert numbers == [] or any(are_close(numbers, call_by_hand(name, start)) for start in (0, 1, 2))


def call_by_hand(name, start):
    training, numbers = Training(name, "call"), []
    for _ in range(start):
        training.model(X)
    for i in range(12):
        numbers.append(training.model(X).data.copy())
        if i % 2:
            training.after_epoch(i // 2)
    return numbers


def are_close(numbers, expected):
    return all(np.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(numbers, expected, strict=False))


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, place in CASES
        if place == "call"
        and not (FORMS[name].is_shared or FORMS[name].is_random or FORMS[name].after_epoch or FORMS[name].metric)
    ],
)
def test_models_that_train_at_once_train_as_by_hand(name):
    by_hand = Training(name, "call")
    by_hand.train_by_hand()
    trainings = [Training(name, "call") for _ in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.NotRecorded)
        cl.fit_many(
            [t.model for t in trainings], X, Y, loss=mean_of_squares, optimizers=[t.optimizer for t in trainings],
            epochs=EPOCHS, batch_size=8, shuffle=False, verbose=0,
        )  # fmt: skip
    for training in trainings:
        np.testing.assert_array_equal(training.weights(), by_hand.weights())


# ---- changes outside of Python that caffelite runs ------------------------------------------------------------------


class FileChange:
    """A file that somebody makes while a training runs."""

    def __init__(self, folder, monkeypatch):
        self.path = folder / "flag"

    def read(self):
        return 0.0 if os.path.exists(self.path) else 1.0

    def change(self):
        self.path.write_text("changed")


class ClockChange:
    """A time that passes."""

    def __init__(self, folder, monkeypatch):
        self.end = None

    def read(self):
        return 0.0 if self.end is not None and time.monotonic() > self.end else 1.0

    def start(self, seconds):
        self.end = time.monotonic() + seconds

    def change(self):
        pass


class EnvironmentChange:
    """An environment variable that another thread sets."""

    def __init__(self, folder, monkeypatch):
        monkeypatch.setenv("CAFFELITE_FLAG", "1.0")

    def read(self):
        return float(os.environ["CAFFELITE_FLAG"])

    def change(self):
        os.environ["CAFFELITE_FLAG"] = "0.0"


class AttributeChange:
    """An attribute that another thread sets."""

    def __init__(self, folder, monkeypatch):
        self.value = 1.0

    def read(self):
        return self.value

    def change(self):
        self.value = 0.0


@pytest.mark.parametrize("kind", [FileChange, ClockChange, EnvironmentChange, AttributeChange])
def test_a_change_outside_takes_effect_by_the_next_doubling_and_a_warning_names_the_steps(kind, tmp_path, monkeypatch):
    """A loss is 0 from the change on. Until caffelite runs the step in Python again, it cannot see the change."""
    change = kind(tmp_path, monkeypatch)

    def loss(outputs, targets):
        return ((outputs - targets) ** 2).mean() * change.read()

    x = np.random.default_rng(0).normal(size=(512, 4)).astype(np.float32)

    def fit(epochs):
        model = cl.MLP(4, [256, 256, 1], seed=0)  # so large that it is hardly slower in Python
        optimizer = cl.SGD(model.parameters(), lr=1e-6)
        return model.fit(x, x[:, :1], loss=loss, optimizer=optimizer, epochs=epochs, batch_size=512, verbose=0)

    start = time.perf_counter()
    fit(20)
    seconds = (time.perf_counter() - start) / 20
    epochs, delay = max(60, int(1.5 / seconds)), max(0.3, 10 * seconds)  # after the steps that are confirmed
    timer = threading.Timer(delay, change.change)
    timer.start()
    getattr(change, "start", lambda seconds: None)(delay)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        losses = fit(epochs)["loss"]
    timer.join()
    check_warnings(caught)
    assert losses[0] > 0
    assert losses[-1] == 0.0
    if kind is not AttributeChange:  # a change of an attribute is seen at once
        assert len(caught) == 1
        assert any(word.strip(",.;:").replace(",", "").isdigit() for word in str(caught[0].message).split())
        assert "step" in str(caught[0].message)
