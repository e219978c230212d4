"""One call of `fit`: run the training loop with its listeners, from the start or from a checkpoint."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from caffelite._support.interrupts import InterruptsBetweenSteps
from caffelite._support.tracebacks import short_traceback
from caffelite.core.arrays import check_positive, check_positive_integer, make_rng
from caffelite.core.modes import model_precision
from caffelite.optimizers import Optimizer, TrainingDiverged
from caffelite.training import inputs, step
from caffelite.training.callbacks.averaging import StepWithAverages
from caffelite.training.callbacks.base import Callbacks, Training
from caffelite.training.callbacks.checkpoints import Checkpoints, Start, started, streams_of
from caffelite.training.callbacks.listeners import Averages, Called, EndingSchedule, Shown, Validation
from caffelite.training.callbacks.progress import Progress
from caffelite.training.epochs.accumulation import accumulated
from caffelite.training.epochs.base import Epochs, State
from caffelite.training.epochs.dispatch import epochs_of
from caffelite.training.epochs.evaluation import Evaluation
from caffelite.training.history import History
from caffelite.training.loop import Listener
from caffelite.training.metrics.base import Metric, OfOutput, named
from caffelite.training.objective import Objective
from caffelite.training.process_group import ONE_PROCESS, Team, optimizer_and_team


@contextmanager
def fitting(
    model: Any,
    loss: Any,
    optimizer: Any,
    epochs: Any,
    metrics: Iterable[Any],
    clip_norm: float | None,
    accumulate: int,
    callbacks: Iterable[Callable[[int, History], Any]],
    resume: Any,
    seed: Any,
    precision: Any,
) -> Iterator[Fitting]:
    """Check the options that need no data, and yield the training. If it does not begin, all is as it was before."""
    rule, team = optimizer_and_team(optimizer)
    with (
        model_precision(model, precision),
        team.entered(),
        started(resume, model, rule, called := Callbacks(callbacks)) as start,
    ):
        until, measures = check_positive_integer("epochs", epochs, math.inf), named(metrics)
        clip_norm = None if clip_norm is None else check_positive("clip_norm", clip_norm)
        accumulate = check_positive_integer("accumulate", accumulate)
        loss = inputs.as_loss(loss)
        inputs.check_optimizer(model, rule)
        rng = model._own.rng if seed is None else make_rng("seed", seed)
        team.share_streams(model._own.rng, rng)
        if start is not None:
            start.read(team, rng)
        yield Fitting(model, loss, measures, rule, until, clip_norm, accumulate, called, team, start, rng)


class Fitting:
    """A training that is about to begin. Its random numbers come from the model's stream and from `rng`."""

    def __init__(
        self,
        model: Any,
        loss: Any,
        metrics: dict[str, Metric | OfOutput],
        optimizer: Optimizer,
        until: int,
        clip_norm: float | None,
        accumulate: int,
        called: Callbacks,
        team: Team,
        start: Start | None,
        rng: np.random.Generator,
    ) -> None:
        self.model, self.loss, self.metrics, self.optimizer = model, loss, metrics, optimizer
        self.until, self.accumulate, self.called = until, accumulate, called
        self.team, self.start, self.rng = team, start, rng
        self.step = team.step(model, Objective(loss, metrics, model._own.programs.warned_of), optimizer, clip_norm)
        self.needs_checkpoints = bool(called.callbacks) or start is not None or team is not ONE_PROCESS
        self.streams = streams_of(model, rng) if self.needs_checkpoints else {}  # before any random number is drawn

    def run(self, batches: Iterable, validation: Iterable | None, columns: Any, verbose: int | str) -> History:
        """Train on `batches`, and evaluate `validation` after each epoch.

        `columns` are the column names of the data frames. The model remembers them.
        """
        model, team, optimizer, until = self.model, self.team, self.optimizer, self.until
        self.step, batches = accumulated(self.step, team, batches, self.accumulate)
        if self.called.averages:
            self.step = StepWithAverages(self.step, self.called.averages)
        history = History.of(self.step.objective.names, validation is not None)
        listeners: list[Listener] = [Averages(self.called.averages)]
        if validation is not None:
            objective = Objective(self.loss, self.metrics, model._own.programs.warned_of)
            evaluation = Evaluation(team.evaluation_step(model, objective), validation, team, times=until)
            listeners.append(Validation(evaluation))
        resumed = checkpoints = None
        if self.needs_checkpoints:
            checkpoints, resumed = self._checkpoints(history, batches, validation)
        count = _length(batches)
        count = None if count is None else self.step.steps_in(count)
        first = 0 if resumed is None else self.step.steps_in(resumed.batch)
        if team.leads:
            done = 0 if resumed is None or count is None else resumed.epoch * count + first
            optimizer._schedule_state.warn_if_short(None if count is None else until * count - done)
        inputs.remember_columns(model, columns)
        if verbose != 0 and team.leads:
            listeners.append(Shown(Progress(verbose, until, count, history.epochs, first), each=verbose == 2))
        if count is None and team.leads:
            listeners.append(EndingSchedule(optimizer))
        if checkpoints is not None:
            restore = None if self.start is None else functools.partial(self.start.restore_callbacks, checkpoints)
            training = checkpoints.training._replace(
                write=checkpoints.write,
                validation=validation,
                loss_so_far=checkpoints.loss_so_far,
                steps_per_epoch=count,
                waited=functools.partial(_waited, listeners),
                as_at_the_end=self.called.as_at_the_end,
            )
            listeners.append(Called(self.called, training, restore))

        def make_epochs() -> Epochs:
            epochs = epochs_of(self.step, team, batches, until, interrupts)
            if checkpoints is not None:
                checkpoints.epochs = epochs
            if resumed is not None:
                epochs.restore(resumed)
            return epochs

        try:
            with short_traceback(step.__file__), InterruptsBetweenSteps() as interrupts, team.holding(interrupts):
                team.loop(model, until, listeners, history, interrupts).run(make_epochs)
        except (KeyboardInterrupt, TrainingDiverged) as error:
            error.history = history  # type: ignore[union-attr]
            raise
        finally:
            listeners.clear()  # a Training knows them, and one of them knows it: so the data are free at once
            if checkpoints is not None:
                checkpoints.epochs = None
        return history

    def _checkpoints(
        self, history: History, batches: Iterable, validation: Iterable | None
    ) -> tuple[Checkpoints, State | None]:
        """Return the writer of checkpoints, and the position in the data if the training continues from one."""
        team, metrics, until = self.team, self.metrics, self.until
        training = Training(self.model, self.optimizer, self.loss, history, None, team, metrics, batches, until)
        checkpoints = Checkpoints(training, self.step, batches, validation, self.called, self.streams)
        checkpoints.begin()
        start, data = self.start, (batches, validation)
        if start is not None:
            start.keep(*data)
        facts = functools.partial(checkpoints.facts_of_fit, self.until, start is not None)
        self.team.begin(self.model, self.optimizer, data, facts)
        return checkpoints, None if start is None else start.restore(checkpoints)


def _waited(listeners: list[Listener], seconds: float) -> None:
    for listener in listeners:
        listener.waited(seconds)


def _length(batches: Iterable) -> int | None:
    """Return the number of batches in an epoch, or None if it is not known."""
    try:
        return len(batches)  # type: ignore[arg-type]
    except TypeError:  # it has no length, or wraps an iterable without one
        return None
