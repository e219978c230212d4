"""The steps that `fit` and `evaluate` take: recorded for each shape of batch, replayed after that.

A step is an ordinary function of a batch, written with Functions, a loss and an optimizer. It adds what it measures
to the sums of its epoch, in memory. Where the data are in memory too, it also fetches its batch by itself, so that
many epochs are replayed in one go.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from caffelite import _kernels as kernels
from caffelite.arrays import as_real
from caffelite.data import DataGenerator, as_targets
from caffelite.interrupts import InterruptsBetweenSteps
from caffelite.metrics import Metric, accuracy
from caffelite.modes import inference
from caffelite.optimizers import Optimizer, TrainingDiverged
from caffelite.program import Program
from caffelite.progress import Progress
from caffelite.recording import PythonCall, Recording, call_python
from caffelite.tensor import Tensor

ATTENTION = 0.05  # seconds of replay after which Python gets to see to the bar and to Ctrl-C
MAX_PROGRAMS = 16


class Programs:
    """A model's Programs by what they were recorded for; the least recently used go when there are too many."""

    def __init__(self) -> None:
        self._programs: OrderedDict[Any, Program] = OrderedDict()
        self._lock = threading.Lock()
        self.cursor = np.zeros(5, dtype=np.int64)  # through which steps find their batch and their sums
        self._cursor_lock = threading.RLock()

    @contextmanager
    def using_cursor(self) -> Iterator[None]:
        """Have the cursor, and the Programs that go by it, for oneself; it is given back as it was."""
        with self._cursor_lock:
            before = self.cursor.copy()
            try:
                yield
            finally:
                self.cursor[:] = before

    def find(self, used: tuple, *key: Any) -> Program:
        """The Program of a step that uses these objects, for this key; a new one if there is none yet."""
        key = (*map(id, used), *key)
        with self._lock:
            program = self._programs.setdefault(key, Program())
            program.used = used  # as long as the Program lives, their ids are theirs
            self._programs.move_to_end(key)
            while len(self._programs) > MAX_PROGRAMS:
                self._programs.popitem(last=False)
            return program


class Steps:
    """Steps of a model over batches; they train if there is an optimizer, else they evaluate."""

    def __init__(self, model: Any, loss: Any, metrics: dict[str, Metric], optimizer: Optimizer | None = None) -> None:
        self.model, self.loss, self.metrics, self.optimizer = model, loss, metrics, optimizer
        self.names = ["loss", *metrics]
        self.programs: Programs = model._programs
        self.cursor = self.programs.cursor

    # ---- a step -------------------------------------------------------------------------------------------------

    def step(self, x: np.ndarray, y: np.ndarray) -> None:
        """One step on a batch."""
        if self.optimizer is None:
            with inference():
                outputs = self.model(x)
                self.measure(outputs, self.loss(outputs, y), y)
        else:
            self.optimizer.zero_grad()
            outputs = self.model(x)
            value = self.loss(outputs, y)
            guard(value)
            value.backward()
            self.optimizer.step()
            self.measure(outputs, value, y)

    def measure(self, outputs: Tensor, value: Tensor, y: np.ndarray) -> None:
        """Add the loss and the metrics of a batch to the sums of the epoch."""
        rows = len(outputs)
        kernels.add_mean(self.cursor, 1, value.data, rows)
        for slot, (name, metric) in enumerate(self.metrics.items(), start=2):
            if metric is accuracy and outputs.ndim == 2 and y.dtype.kind in "iu" and y.shape == (rows,):
                labels = y if y.dtype == np.int64 else kernels.convert(y, np.int64)
                kernels.add_correct(self.cursor, slot, outputs.data, labels)
            else:
                mean = call_python(name, lambda *batch, of=metric: np.float64(of(*batch)), outputs.data, y)
                kernels.add_mean(self.cursor, slot, np.asarray(mean), rows)
        kernels.advance(self.cursor, rows)

    def fetch_and_step(self, x: np.ndarray, y: np.ndarray) -> None:
        """One step on the batch that the cursor points to, which is copied into x and y."""
        kernels.take_batch(self.cursor, 0, x)
        kernels.take_batch(self.cursor, 1, y)
        self.step(x, y)

    def program(self, step: Callable[..., Any], x: np.ndarray, y: np.ndarray, rows: int) -> Program:
        """The Program for steps on batches of so many rows of x and y."""
        used = (*self.model.all_functions(), self.loss, self.optimizer, *self.metrics.values())
        return self.programs.find(
            used, step.__name__, self.model.structure(), rows, x.shape[1:], x.dtype, y.shape[1:], y.dtype
        )

    # ---- many steps ---------------------------------------------------------------------------------------------

    def train(
        self, batches: Iterable, epochs: int, interrupts: InterruptsBetweenSteps, progress: Progress, attended: bool
    ) -> Iterator[np.ndarray]:
        """Train for so many epochs and yield their results, a row of loss and metrics for each epoch.

        If somebody attends to them, a row comes before the next epoch begins; else many may come at once, later.
        """
        if type(batches) is DataGenerator:
            run = InMemory(self, batches, epochs, interrupts)
            done = 0
            while done < epochs:
                stopped, steps = None, run.steps
                try:
                    with interrupts.held():
                        run.go(done + 1 if attended else epochs)
                except (KeyboardInterrupt, TrainingDiverged) as error:
                    stopped = error
                progress.steps_done(run.steps - steps)
                if done < run.epoch and (stopped is None or not attended):
                    yield means(run.sums[done : run.epoch])
                    done = run.epoch
                if stopped is not None:
                    raise stopped
            return
        for epoch in range(epochs):
            sums = np.zeros(2 + len(self.metrics))
            for i, (x, y) in enumerate(converted(batches, self.model.dtype)):
                with interrupts.held(), located(Position(epoch, i)):
                    self._replay(x, y, sums)
                progress.steps_done(1)
            if sums[0] == 0:
                raise ValueError(f"there were no batches in epoch {epoch + 1}; an iterator gives its batches only once")
            yield means(sums[None])

    def evaluate(self, batches: Iterable) -> dict[str, float]:
        """The means over all batches."""
        if type(batches) is DataGenerator:
            run = InMemory(self, batches, 1)
            while run.epoch < 1:
                run.go(1)
            return dict(zip(self.names, means(run.sums)[0].tolist(), strict=True))
        sums = np.zeros(2 + len(self.metrics))
        for x, y in converted(batches, self.model.dtype):
            self._replay(x, y, sums)
        if sums[0] == 0:
            raise ValueError("there were no batches to evaluate; an iterator gives its batches only once")
        return dict(zip(self.names, means(sums[None])[0].tolist(), strict=True))

    def _replay(self, x: np.ndarray, y: np.ndarray, sums: np.ndarray) -> None:
        with self.programs.using_cursor():
            self.cursor[4] = kernels.address(sums)
            self.program(self.step, x, y, len(x)).run(self.step, x, y)


class InMemory:
    """Epochs over a DataGenerator's arrays: steps are recorded where there is no Program yet, else replayed in bulk."""

    def __init__(
        self, steps: Steps, data: DataGenerator, epochs: int, interrupts: InterruptsBetweenSteps | None = None
    ) -> None:
        self.of = steps
        self.x, self.y = as_real(data.x, steps.model.dtype, "x"), as_targets(data.y, steps.model.dtype)
        self.sums = np.zeros((epochs, 2 + len(steps.metrics)))
        short = 0 if data.drop_last else len(self.x) % data.batch_size
        self.rows = [data.batch_size, short]  # of a full batch, and of the last one
        with Recording() as recording:  # the order of the first epoch, and how to make the next ones
            if data.shuffle:
                kernels.shuffle(data._order, data._state)
        shuffle = recording.entries[0] if data.shuffle else None
        assert not isinstance(shuffle, PythonCall)
        self.epochs = kernels.Epochs(
            self.x,
            self.y,
            data._order,
            shuffle,
            self.sums,
            steps.cursor,
            len(data),
            len(self.x) // data.batch_size,
            None if interrupts is None else interrupts.pending,
        )

    @property
    def epoch(self) -> int:
        """How many epochs are done."""
        return self.epochs.epoch

    @property
    def steps(self) -> int:
        """How many steps are done."""
        return self.epochs.epoch * self.epochs.batches + self.epochs.batch

    def go(self, epochs: int) -> None:
        """Go on, for a while, towards so many epochs."""
        step = self.of.fetch_and_step
        with self.of.programs.using_cursor(), located(self.epochs):
            programs = [self.of.program(step, self.x, self.y, rows) if rows else None for rows in self.rows]
            current = [program if program is not None and program.is_current() else None for program in programs]
            due = self.epochs.batch >= self.epochs.full_batches  # 1: the short last batch
            if current[due] is None:
                new = programs[due]
                assert new is not None
                self.epochs.by_hand(lambda: new.record(step, *self._batch()))
                return
            self.epochs.full, self.epochs.last = [None if program is None else program.tape for program in current]
            try:
                stopped = self.epochs.run(epochs, ATTENTION)
            finally:
                for program in current:
                    if program is not None:
                        program.replayed()
            if stopped is not None:
                self._raise_why(stopped)

    def _batch(self) -> tuple[np.ndarray, np.ndarray]:
        """Room for the batch that is due."""
        rows = self.rows[self.epochs.batch >= self.epochs.full_batches]
        return np.empty((rows, *self.x.shape[1:]), self.x.dtype), np.empty((rows, *self.y.shape[1:]), self.y.dtype)

    def _raise_why(self, stopped: kernels.Kernel) -> None:
        """Raise what a step raises where this kernel stops it; for bad labels, by the caller's rows."""
        if stopped.name == "check_labels" and hasattr(self.of.loss, "check_targets"):
            self.of.loss.check_targets(self.y, self.of.model.output_shape(self.x.shape))
        stopped.raise_why()


@contextmanager
def located(at: Any) -> Iterator[None]:
    """Inside, a TrainingDiverged says in which epoch and batch, `at.epoch` and `at.batch`, counted from 1."""
    try:
        yield
    except TrainingDiverged as error:
        raise TrainingDiverged(f"epoch {at.epoch + 1}, batch {at.batch + 1}: {error}") from None


class Position(NamedTuple):
    """Where a training is, counted from 0."""

    epoch: int
    batch: int


def means(sums: np.ndarray) -> np.ndarray:
    """Row-weighted means, a row for each epoch, from sums that begin with the number of rows."""
    return sums[:, 1:] / sums[:, :1]


def guard(value: Tensor) -> None:
    """Raise TrainingDiverged unless all elements, a loss usually, are finite."""
    array = value.data.view(np.ndarray)

    def diverged() -> None:
        raise TrainingDiverged(f"the loss is {array.item()}")

    kernels.require(kernels.all_finite(value.data), diverged)


def converted(batches: Iterable, dtype: np.dtype) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches (x, y) as arrays, x and float targets in the model's dtype."""
    for batch in batches:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise TypeError(f"expected batches (x, y), got {type(batch).__name__}")
        x, y = as_real(batch[0], dtype, "a batch's x"), as_targets(batch[1], dtype)
        if x.ndim == 0 or y.ndim == 0 or len(x) != len(y) or len(x) == 0:
            raise ValueError(f"got a batch with x of shape {x.shape} and y of shape {y.shape}")
        yield x, y
