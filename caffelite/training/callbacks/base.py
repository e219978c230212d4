"""Hooks of the training loop, and the Training that a user's callbacks get."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

from caffelite._kernels import EpochHook
from caffelite._support.text_table import shorten
from caffelite._support.warnings import warn
from caffelite.core.function import Function
from caffelite.files.safetensors import HeaderSizeError
from caffelite.files.state import BaseModel
from caffelite.training.history import History
from caffelite.training.metrics.base import Metric, OutputMetric

MAX_TEXT = 400  # letters of a model or a loss


@contextmanager
def warn_on_write_error(what: str, *errors: type[Exception]) -> Iterator[None]:
    """Inside, a file that cannot be written is a RuntimeWarning: a full disk does not end training.

    So are other `errors`.
    """
    caught: tuple[type[Exception], ...] = (OSError, HeaderSizeError, *errors)
    try:
        yield
    except caught as error:
        warn(f"{what}: {error}; the training continues", RuntimeWarning)


class LoopHook:
    """Work between the steps of training. A method that is not overridden does nothing.

    The training loop runs epochs without Python until `next_python_epoch` or `steps_until_due` of a hook says that
    Python is needed. Then it calls all hooks: `step`, `epoch` if epochs were completed, and `between_steps`. A user's
    callbacks are one LoopHook, `CallbackList`.
    """

    def begin(self) -> bool | None:
        """Act before the first step. Return True to end the training there."""

    def next_python_epoch(self, done: int, epoch_hooks: list[EpochHook] | None) -> float:
        """Return the epoch after which this hook next needs Python, if `done` epochs are done.

        `epoch_hooks` has the compiled calls that follow each epoch. If this hook appends one that does its work, it
        needs no Python. None means that the epochs make no such calls.
        """
        return math.inf

    def steps_until_due(self) -> float:
        """Return after how many more steps, at least 1, `between_steps` must be called."""
        return math.inf

    def step(self, count: int, loss: Callable[[], float]) -> None:
        """Act when `count` more steps are done. `loss()` is the epoch's mean loss so far, NaN before its first step."""

    def results(self, epochs: int) -> Sequence[Sequence[float]]:
        """Return this hook's numbers for the history: for each quantity, one for each of the last `epochs` epochs."""
        return ()

    def epoch(self, count: int, history: History) -> bool | None:
        """Act when `count` more epochs are done and in the history. Return True to end the training."""

    def between_steps(self) -> bool | None:
        """Act between two steps, when all state of the training is complete and may be saved.

        Return True to end the training.
        """

    def end(self) -> None:
        """Act when training is over, even if an exception ended it."""

    def __enter__(self) -> LoopHook:
        self.begin()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.end()


class Training(NamedTuple):
    """The training run, as a callback's `begin` gets it."""

    model: BaseModel  #: The model to train.
    optimizer: Any  #: The optimizer that updates the model; None in `caffelite.minimize`.
    loss: Function  #: The loss to minimize.
    history: History  #: Loss and metrics, epoch by epoch.
    write: Any = None  #: Writes a checkpoint to a path: from `between_steps`, or after an epoch.
    processes: Any = None  #: The processes that share each batch. None if there is only one.
    metrics: Mapping[str, Metric | OutputMetric] = {}  #: The metrics, by name.
    batches: Any = None  #: The training data: a DataGenerator, or another iterable of batches.
    epochs: int | None = None  #: The number of epochs, including those before. None if unknown.
    validation: Any = None  #: The data for the evaluation after each epoch, or None.
    loss_so_far: Callable[[], float] | None = None  #: Returns the current epoch's mean loss, NaN before its first step.
    steps_per_epoch: int | None = None  #: None if unknown.
    steps_before: int = 0  #: The steps of earlier runs that this one continues; 0 if unknown.
    exclude_time: Callable[[float], None] | None = None  #: Call it with the seconds of a wait: no step took them.
    averaged_weights: Callable[[], AbstractContextManager[None]] = nullcontext  #: Inside, the weights are averages.

    @property
    def is_main(self) -> bool:
        """Whether this process writes files. If there are several processes, only the first does."""
        return self.processes is None or self.processes.is_main

    def broadcast(self, value: bool) -> bool:
        """Return the first process's value on all processes, for decisions that depend on time, for example."""
        return value if self.processes is None else bool(self.processes.broadcast(value))

    def describe_settings(self) -> dict[str, Any]:
        """Return the settings in which training runs may differ, by name, as numbers and short strings."""
        settings, optimizer = dict[str, Any](), self.optimizer
        if optimizer is not None:
            numbers = {name: float(optimizer.groups[0][name]) for name in optimizer.hyper_names}
            settings |= {"optimizer": type(optimizer).__name__, **numbers}
            if optimizer._schedule_state[0] is not None:
                settings["lr"] = "schedule"
        settings["batch size"] = getattr(self.batches, "batch_size", None)
        settings["parameters"] = sum(p.size for p in self.model.parameters())
        settings["dtype"] = str(self.model.dtype)
        return settings | {name: shorten(repr(getattr(self, name)), MAX_TEXT) for name in ("loss", "model")}
