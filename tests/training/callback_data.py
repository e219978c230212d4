"""Data and callbacks that several test files use."""

import numpy as np
from caffelite.callbacks import Training

import caffelite as cl
from tests.conftest import classifier

X, Y = cl.datasets.spiral(points_per_class=20, seed=0)
VALIDATION = cl.datasets.spiral(points_per_class=20, seed=1)


class Rows:
    """A source: an array that is read block by block."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __len__(self):
        return len(self.array)

    def __getitem__(self, rows):
        return self.array[rows]


class Noting:
    """A callback that notes what happens to it."""

    def __init__(self, name, notes, begin=None, call=None, end=None):
        self.name, self.notes, self.raises = name, notes, {"begin": begin, "call": call, "end": end}

    def _note(self, what):
        self.notes.append((what, self.name))
        if self.raises[what] is not None:
            raise self.raises[what]

    def begin(self, training):
        self.training = training
        self._note("begin")

    def __call__(self, epoch, history):
        self._note("call")

    def end(self):
        self._note("end")


def play_values(callback, values, monitor="val_loss", model=None, optimizer=None):
    """Return what a callback returns for each of these values of what it monitors, until it ends the training."""
    model = model if model is not None else classifier(2, 3)
    optimizer = optimizer if optimizer is not None else cl.SGD(model.parameters(), lr=1.0)
    history = cl.History({"loss": [], monitor: []})
    callback.begin(Training(model, optimizer, cl.SoftmaxLoss(), history))
    returned = []
    for epoch, value in enumerate(values):
        for column in history.values():
            column.append(value)
        returned.append(callback(epoch, history))
        if returned[-1]:
            break
    return returned


def with_buffers():
    """Return a model with parameters, running means, and a counter of draws."""
    return cl.Model([cl.Linear(2, 8), cl.BatchNorm(8), cl.Dropout(0.2), cl.ReLU(), cl.Linear(8, 3)], seed=0)


def same(state, other):
    return state.keys() == other.keys() and all(np.array_equal(state[name], other[name]) for name in state)


class StopTraining(Exception):
    """A training is stopped where a killed one would be."""


class StopAt:
    """Stops a training when it has been between two steps so many times."""

    def __init__(self, count):
        self.left = count

    def between_steps(self):
        self.left -= 1
        if self.left == 0:
            raise StopTraining

    def __call__(self, epoch, history):
        pass
