"""The steps that `fit` and `evaluate` take: recorded for each shape of batch, replayed after that.

A step is an ordinary function of a batch, written with Functions, a loss and an optimizer. It adds what it measures to the
sums of its epoch, in memory. Where the data are in memory too, it also fetches its batch by itself, so that many epochs
are replayed in one go.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.data import DataGenerator, as_targets
from caffelite.interrupts import InterruptsBetweenSteps
from caffelite.metrics import Metric, accuracy
from caffelite.optimizers import Optimizer, TrainingDiverged
from caffelite.program import Program
from caffelite.progress import Progress
from caffelite.recording import Recording, call_python
from caffelite.tensor import Tensor, as_real, inference

ATTENTION = 0.05  # seconds of replay after which Python gets to see to the bar and to Ctrl-C
MAX_PROGRAMS = 16


class Programs:
    """A model's Programs by what they were recorded for; the least recently used go when there are too many."""

    def __init__(self) -> None:
        self._programs: OrderedDict[Any, Program] = OrderedDict()
        self._lock = threading.Lock()
        self.cursor = np.zeros(5, dtype=np.int64)  # through which steps find their batch and their sums
        self.in_use = threading.RLock()  # the cursor, and the Programs that use it

    def find(self, *key: Any) -> Program:
        """The Program recorded for this key, or a new one that has recorded nothing yet."""
        with self._lock:
            program = self._programs.setdefault(key, Program())
            self._programs.move_to_end(key)
            while len(self._programs) > MAX_PROGRAMS:
                self._programs.popitem(last=False)
            return program


class Steps:
    """Steps of a model over batches; they train if there is an optimizer, else they evaluate."""

    def __init__(self, model: Any, loss: Any, metrics: dict[str, Metric], optimizer: Optimizer | None = None) -> None:
        self.model, self.loss, self.metrics, self.optimizer = model, loss, metrics, optimizer
        self.programs: Programs = model._programs
        self.cursor = self.programs.cursor

    # ---- a step -------------------------------------------------------------------------------------------------

    def step(self, x: np.ndarray, y: np.ndarray) -> None:
        """One step on a batch."""
        if self.optimizer is None:
            with inference():
                outputs = self.model(x)
                value = self.loss(outputs, y)
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
            if metric is accuracy and outputs.ndim == 2 and y.dtype == np.int64 and y.shape == (rows,):
                kernels.add_correct(self.cursor, slot, outputs.data, y)
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
        used = (self.loss, self.optimizer, *self.metrics.values())
        shapes = (rows, x.shape[1:], x.dtype, y.shape[1:], y.dtype)
        program = self.programs.find(step.__name__, self.model.structure(), tuple(map(id, used)), *shapes)
        program.used = used  # as long as the Program lives, their ids are theirs
        return program

    # ---- many steps ---------------------------------------------------------------------------------------------

    def train(
        self,
        batches: Iterable,
        epochs: int,
        epoch_done: Callable[[dict[str, float]], bool],
        attended: bool,
        interrupts: InterruptsBetweenSteps,
        progress: Progress,
    ) -> None:
        """Train for so many epochs, or until `epoch_done`, which gets the results of each, returns True.

        It is called in time, after its epoch, if it is `attended`; else it may be told of several epochs at once.
        """
        if type(batches) is DataGenerator:
            return self._train_in_memory(batches, epochs, epoch_done, attended, interrupts, progress)
        for epoch in range(epochs):
            sums = np.zeros(2 + len(self.metrics))
            for i, (x, y) in enumerate(converted(batches, self.model.dtype)):
                with interrupts.held(), self.programs.in_use:
                    self.cursor[4] = kernels.address(sums)
                    self._checked(lambda x=x, y=y: self._replay(x, y), epoch, i)
                progress.steps_done(1)
            if epoch_done(self._means(sums, f"in epoch {epoch + 1}")):
                return

    def _train_in_memory(
        self,
        data: DataGenerator,
        epochs: int,
        epoch_done: Callable[[dict[str, float]], bool],
        attended: bool,
        interrupts: InterruptsBetweenSteps,
        progress: Progress,
    ) -> None:
        run = InMemory(self, data, epochs)
        done = 0

        def tell() -> bool:
            nonlocal done
            done += 1
            return epoch_done(self._means(run.sums[done - 1], ""))

        while done < epochs:
            with interrupts.held():
                steps = run.steps
                try:
                    run.go(done + 1 if attended else epochs)
                finally:
                    progress.steps_done(run.steps - steps)
                    while not attended and done < run.epoch:
                        tell()
            if attended and done < run.epoch and tell():
                return

    def evaluate(self, batches: Iterable) -> dict[str, float]:
        """The means over all batches."""
        if type(batches) is DataGenerator:
            run = InMemory(self, batches, 1)
            while run.epoch < 1:
                run.go(1)
            return self._means(run.sums[0], "")
        sums = np.zeros(2 + len(self.metrics))
        for x, y in converted(batches, self.model.dtype):
            with self.programs.in_use:
                self.cursor[4] = kernels.address(sums)
                self._replay(x, y)
        return self._means(sums, "to evaluate")

    def _replay(self, x: np.ndarray, y: np.ndarray) -> None:
        self.program(self.step, x, y, len(x)).run(self.step, x, y)

    def _checked(self, step: Callable[[], None], epoch: int, batch: int) -> None:
        try:
            step()
        except TrainingDiverged as error:
            raise TrainingDiverged(f"epoch {epoch + 1}, batch {batch + 1}: {error}") from None

    def _means(self, sums: np.ndarray, where: str) -> dict[str, float]:
        if sums[0] == 0:
            raise ValueError(f"there were no batches {where}; an iterator gives its batches only once")
        return dict(zip(["loss", *self.metrics], (sums[1:] / sums[0]).tolist(), strict=True))


class InMemory:
    """Epochs over a DataGenerator's arrays: steps are recorded where there is no Program yet, else replayed at length."""

    def __init__(self, steps: Steps, data: DataGenerator, epochs: int) -> None:
        self.of = steps
        self.x, self.y = as_real(data.x, steps.model.dtype, "x"), as_targets(data.y, steps.model.dtype)
        if self.y.dtype.kind in "iu":
            self.y = self.y.astype(np.int64, copy=False)
        self.sums = np.zeros((epochs, 2 + len(steps.metrics)))
        full_batches = len(self.x) // data.batch_size
        self.rows = [data.batch_size, len(self.x) % data.batch_size]  # of a full batch, and of a short last one
        with Recording() as recording:
            if data.shuffle:
                kernels.shuffle(data._order, data._state)
        shuffle = recording.entries[0] if data.shuffle else None
        order = data._order
        self.epochs = kernels.Epochs(self.x, self.y, order, shuffle, self.sums, steps.cursor, len(data), full_batches)

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
        epoch, batch, step = self.epochs.epoch, self.epochs.batch, self.of.fetch_and_step
        with self.of.programs.in_use:
            programs = [self.of.program(step, self.x, self.y, rows) if rows else None for rows in self.rows]
            due = programs[batch >= self.epochs.full_batches]
            assert due is not None
            try:
                if not due.is_current():
                    self.epochs.by_hand(lambda: due.record(step, *self._batch(batch)))
                    return
                current = [None if p is None or not p.is_current() else p for p in programs]
                self.epochs.full, self.epochs.last = [None if p is None else p.tape for p in current]
                stopped = self.epochs.run(epochs, ATTENTION)
                for program in current:
                    if program is not None:
                        program.finish()
                if stopped is not None:
                    epoch, batch = self.epochs.epoch, self.epochs.batch
                    self._raise_what_stopped(batch)
            except TrainingDiverged as error:
                raise TrainingDiverged(f"epoch {epoch + 1}, batch {batch + 1}: {error}") from None

    def _batch(self, batch: int) -> tuple[np.ndarray, np.ndarray]:
        """Room for the batch."""
        rows = self.rows[batch >= self.epochs.full_batches]
        return np.empty((rows, *self.x.shape[1:]), self.x.dtype), np.empty((rows, *self.y.shape[1:]), self.y.dtype)

    def _raise_what_stopped(self, batch: int) -> None:
        """Run the step that stopped a replay by itself, to raise what it raises; bad labels by the caller's rows."""
        if hasattr(self.of.loss, "check_targets"):
            self.of.loss.check_targets(self.y, self.of.model.output_shape(self.x.shape))
        self.epochs.by_hand(lambda: self.of.fetch_and_step(*self._batch(batch)))
        raise RuntimeError("a step stopped in a replay and not when run by itself")


def guard(value: Tensor) -> None:
    """Raise TrainingDiverged unless all elements, a loss usually, are finite."""
    if not kernels.all_finite(value.data):
        raise TrainingDiverged(f"the loss is {value.item()}")


def converted(batches: Iterable, dtype: np.dtype) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches (x, y) as arrays, x and float targets in the model's dtype, integer ones int64."""
    for batch in batches:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise TypeError(f"expected batches (x, y), got {type(batch).__name__}")
        x, y = as_real(batch[0], dtype, "a batch's x"), as_targets(batch[1], dtype)
        if x.ndim == 0 or y.ndim == 0 or len(x) != len(y) or len(x) == 0:
            raise ValueError(f"got a batch with x of shape {x.shape} and y of shape {y.shape}")
        yield x, y.astype(np.int64, copy=False) if y.dtype.kind in "iu" else y
