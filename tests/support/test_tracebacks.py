"""What a user sees if his own code raises in a training: where it was called, in a few frames."""

import sys
import traceback

import numpy as np
import pytest

import caffelite as cl

X, Y = np.zeros((8, 4), np.float32), np.arange(8) % 4


def fail(*_):
    raise ZeroDivisionError("by the user")


class Raising(cl.Function):
    forward = backward = fail


class RaisingBackward(cl.Function):
    def forward(self, x):
        return x

    backward = fail


class RaisingStep(cl.SGD):
    step = fail


class UserModel(cl.Model):
    call = fail


def batches():
    yield X, Y
    fail()


class Batches:
    __iter__ = staticmethod(batches)


def ending(epoch, history):
    return fail() if epoch == 1 else None


STEP = "in the step of epoch 1, batch 1, called by fit"
RAISED = {
    "a Function": ({"last": Raising()}, STEP),
    "a Function's backward": ({"last": RaisingBackward()}, STEP),
    "a loss": ({"loss": fail}, STEP),
    "an optimizer": ({"kind": RaisingStep}, STEP),
    "a callback": ({"callbacks": [ending], "epochs": 3}, "in a callback after epoch 2, called by fit"),
    "batches": ({"data": (Batches(),)}, "in the making of epoch 1, batch 2, called by fit"),
}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python shows notes from 3.11 on")
@pytest.mark.parametrize("what", RAISED)
def test_an_exception_of_the_users_code_has_few_frames_of_caffelite(what):
    options, note = dict(RAISED[what][0]), RAISED[what][1]
    model = cl.Model([cl.Linear(4, 4), *[options.pop(name) for name in ("last",) if name in options]], seed=0)
    options = {"loss": cl.SoftmaxLoss(), "verbose": 0, **options}
    optimizer = options.pop("kind", cl.SGD)(model.parameters(), lr=0.1)
    with pytest.raises(ZeroDivisionError, match="by the user") as raised:
        model.fit(*options.pop("data", (X, Y)), optimizer=optimizer, **options)
    assert raised.value.__notes__ == [note]
    files = [frame.filename for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert sum("caffelite/" in file and "tests" not in file for file in files) <= 6
    assert files[-1] == __file__


def test_a_replayed_step_names_its_batch_too():
    calls = []

    class Third(cl.Function):
        def forward(self, x):
            calls.append(1)
            return fail() if len(calls) > 5 else x

        def backward(self, dy):
            return dy

    model = cl.Model([cl.Linear(4, 4), Third()], seed=0)
    with pytest.raises(ZeroDivisionError) as raised:
        model.fit(
            X, Y, loss=cl.SoftmaxLoss(), optimizer=cl.SGD(model.parameters(), lr=0.1), batch_size=4, epochs=5, verbose=0
        )
    (note,) = raised.value.__notes__
    assert note.startswith("in the step of epoch")


def test_an_exception_of_caffelites_own_keeps_all_its_frames_and_has_no_note():
    model = cl.Model([cl.Linear(4, 3)], seed=0)
    with pytest.raises(ValueError, match="label 3") as raised:
        model.fit(X, Y, loss=cl.SoftmaxLoss(), optimizer=cl.SGD(model.parameters(), lr=0.1), verbose=0)
    assert not hasattr(raised.value, "__notes__")
    assert len(traceback.extract_tb(raised.value.__traceback__)) > 3


def count_visible_frames(run, kind):
    """Return how many of caffelite's frames IPython and pytest show. They always show the last one, too."""
    with pytest.raises(kind) as raised:
        run()
    frames = [frame for frame, _ in traceback.walk_tb(raised.value.__traceback__) if frame.f_globals is not globals()]
    return sum("__tracebackhide__" not in frame.f_locals for frame in frames)


def test_ipython_and_pytest_skip_caffelites_frames_of_an_error_about_arguments():
    model = cl.Model([cl.Linear(4, 3)], seed=0)
    options = {"loss": cl.SoftmaxLoss(), "optimizer": cl.SGD(model.parameters(), lr=0.1), "verbose": 0}
    assert count_visible_frames(lambda: model.fit(X, Y, **options), ValueError) == 0
    assert count_visible_frames(lambda: model.fit(X * np.nan, Y % 3, **options), cl.TrainingDiverged) == 0
    assert count_visible_frames(lambda: model.evaluate(X, Y, loss=cl.SoftmaxLoss()), ValueError) == 0
    assert count_visible_frames(lambda: model.predict(X[0]), ValueError) == 0
    assert count_visible_frames(lambda: model.predict(X, batch_size=0), ValueError) == 0


def test_frames_around_the_users_code_and_of_a_mistake_in_caffelite_are_not_skipped(monkeypatch):
    model = cl.Model([cl.Linear(4, 4)], seed=0)
    options = {"loss": cl.SoftmaxLoss(), "optimizer": cl.SGD(model.parameters(), lr=0.1), "verbose": 0}
    callback = [lambda epoch, history: model.predict(X[:, 0])]
    assert count_visible_frames(lambda: model.fit(X, Y, callbacks=callback, **options), ValueError) > 0
    monkeypatch.setattr("caffelite.training.inputs.check_weights", lambda loss, weights: {}[loss])
    assert count_visible_frames(lambda: model.fit(X, Y, **options), KeyError) > 0
