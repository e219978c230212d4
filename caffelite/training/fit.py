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
from caffelite.training.callbacks.averaging import AveragingStep
from caffelite.training.callbacks.base import CallbackList, Training
from caffelite.training.callbacks.checkpoints import CheckpointWriter, Resumption, resume_from, stream_states
from caffelite.training.callbacks.listeners import (
    AveragingListener,
    CallbackListener,
    ProgressListener,
    ScheduleListener,
    ValidationListener,
)
from caffelite.training.callbacks.progress import Progress
from caffelite.training.epochs.accumulation import apply_accumulation
from caffelite.training.epochs.base import Epochs, EpochState
from caffelite.training.epochs.dispatch import choose_epochs
from caffelite.training.epochs.evaluation import Evaluation
from caffelite.training.history import History
from caffelite.training.loop import Listener
from caffelite.training.metrics.base import Metric, OutputMetric, resolve_metrics
from caffelite.training.objective import Objective
from caffelite.training.process_group import SINGLE_PROCESS, ProcessGroup, unwrap_optimizer


@contextmanager
def open_run(
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
) -> Iterator[TrainingRun]:
    """Check the options that need no data, and yield the training. If it does not begin, all is as it was before."""
    optimizer, processes = unwrap_optimizer(optimizer)
    with (
        model_precision(model, precision),
        processes.training_context(),
        resume_from(resume, model, optimizer, callback_list := CallbackList(callbacks)) as start,
    ):
        max_epochs, metrics_by_name = check_positive_integer("epochs", epochs, math.inf), resolve_metrics(metrics)
        clip_norm = None if clip_norm is None else check_positive("clip_norm", clip_norm)
        accumulate = check_positive_integer("accumulate", accumulate)
        loss = inputs.as_loss(loss)
        inputs.check_optimizer(model, optimizer)
        rng = model._state.rng if seed is None else make_rng("seed", seed)
        processes.share_streams(model._state.rng, rng)
        if start is not None:
            start.read(processes, rng)
        yield TrainingRun(
            model,
            loss,
            metrics_by_name,
            optimizer,
            max_epochs,
            clip_norm,
            accumulate,
            callback_list,
            processes,
            start,
            rng,
        )


class TrainingRun:
    """A training that is about to begin. Its random numbers come from the model's stream and from `rng`."""

    def __init__(
        self,
        model: Any,
        loss: Any,
        metrics: dict[str, Metric | OutputMetric],
        optimizer: Optimizer,
        max_epochs: int,
        clip_norm: float | None,
        accumulate: int,
        callback_list: CallbackList,
        processes: ProcessGroup,
        start: Resumption | None,
        rng: np.random.Generator,
    ) -> None:
        self.model, self.loss, self.metrics, self.optimizer = model, loss, metrics, optimizer
        self.max_epochs, self.accumulate, self.callback_list = max_epochs, accumulate, callback_list
        self.processes, self.start, self.rng = processes, start, rng
        self.step = processes.make_step(
            model, Objective(loss, metrics, model._state.programs.warned_reasons), optimizer, clip_norm
        )
        self.needs_checkpoints = bool(callback_list.callbacks) or start is not None or processes is not SINGLE_PROCESS
        self.streams = stream_states(model, rng) if self.needs_checkpoints else {}  # before any random number is drawn

    def run(self, batches: Iterable, validation: Iterable | None, columns: Any, verbose: int | str) -> History:
        """Train on `batches`, and evaluate `validation` after each epoch.

        `columns` are the column names of the data frames. The model remembers them.
        """
        model, processes, optimizer, max_epochs = self.model, self.processes, self.optimizer, self.max_epochs
        self.step, batches = apply_accumulation(self.step, processes, batches, self.accumulate)
        if self.callback_list.averages:
            self.step = AveragingStep(self.step, self.callback_list.averages)
        history = History.empty(self.step.objective.names, validation is not None)
        listeners: list[Listener] = [AveragingListener(self.callback_list.averages)]
        if validation is not None:
            objective = Objective(self.loss, self.metrics, model._state.programs.warned_reasons)
            evaluation = Evaluation(
                processes.make_evaluation_step(model, objective), validation, processes, times=max_epochs
            )
            listeners.append(ValidationListener(evaluation))
        resume_state = checkpoints = None
        if self.needs_checkpoints:
            checkpoints, resume_state = self._make_checkpoints(history, batches, validation)
        num_steps = _num_batches(batches)
        num_steps = None if num_steps is None else self.step.count_steps(num_steps)
        first_step = 0 if resume_state is None else self.step.count_steps(resume_state.batch)
        if processes.is_main:
            steps_done = 0 if resume_state is None or num_steps is None else resume_state.epoch * num_steps + first_step
            optimizer._schedule_state.warn_if_short(None if num_steps is None else max_epochs * num_steps - steps_done)
        inputs.remember_columns(model, columns)
        if verbose != 0 and processes.is_main:
            listeners.append(
                ProgressListener(
                    Progress(verbose, max_epochs, num_steps, history.epochs, first_step), every_epoch=verbose == 2
                )
            )
        if num_steps is None and processes.is_main:
            listeners.append(ScheduleListener(optimizer))
        if checkpoints is not None:
            restore = None if self.start is None else functools.partial(self.start.restore_callbacks, checkpoints)
            training = checkpoints.training._replace(
                write=checkpoints.write,
                validation=validation,
                loss_so_far=checkpoints.loss_so_far,
                steps_per_epoch=num_steps,
                exclude_time=functools.partial(_exclude_time, listeners),
                averaged_weights=self.callback_list.averaged_weights,
            )
            listeners.append(CallbackListener(self.callback_list, training, restore))

        def make_epochs() -> Epochs:
            epochs = choose_epochs(self.step, processes, batches, max_epochs, interrupts)
            if checkpoints is not None:
                checkpoints.epochs = epochs
            if resume_state is not None:
                epochs.restore(resume_state)
            return epochs

        try:
            with (
                short_traceback(step.__file__),
                InterruptsBetweenSteps() as interrupts,
                processes.defer_interrupts(interrupts),
            ):
                processes.make_loop(model, max_epochs, listeners, history, interrupts).run(make_epochs)
        except (KeyboardInterrupt, TrainingDiverged) as error:
            error.history = history  # type: ignore[union-attr]
            raise
        finally:
            listeners.clear()  # a Training knows them, and one of them knows it: so the data are free at once
            if checkpoints is not None:
                checkpoints.epochs = None
        return history

    def _make_checkpoints(
        self, history: History, batches: Iterable, validation: Iterable | None
    ) -> tuple[CheckpointWriter, EpochState | None]:
        """Return the writer of checkpoints, and the position in the data if the training continues from one."""
        processes, metrics, max_epochs = self.processes, self.metrics, self.max_epochs
        training = Training(
            self.model, self.optimizer, self.loss, history, None, processes, metrics, batches, max_epochs
        )
        checkpoints = CheckpointWriter(training, self.step, batches, validation, self.callback_list, self.streams)
        checkpoints.snapshot()
        start, data = self.start, (batches, validation)
        if start is not None:
            start.save_data_states(*data)
        facts = functools.partial(checkpoints.fit_facts, self.max_epochs, start is not None)
        self.processes.sync_state(self.model, self.optimizer, data, facts)
        return checkpoints, None if start is None else start.restore(checkpoints)


def _exclude_time(listeners: list[Listener], seconds: float) -> None:
    for listener in listeners:
        listener.exclude_time(seconds)


def _num_batches(batches: Iterable) -> int | None:
    """Return the number of batches in an epoch, or None if it is not known."""
    try:
        return len(batches)  # type: ignore[arg-type]
    except TypeError:  # it has no length, or wraps an iterable without one
        return None
