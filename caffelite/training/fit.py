"""One call of `fit`: run the training loop with its callbacks, from the start or from a checkpoint."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from caffelite._support.interrupts import InterruptsBetweenSteps
from caffelite._support.tracebacks import short_traceback
from caffelite._support.warnings import warn
from caffelite.core.arrays import make_rng
from caffelite.core.modes import model_precision
from caffelite.data.frames import ColumnNames
from caffelite.data.generator import is_replayed
from caffelite.data.lengths import cut_batch
from caffelite.files.state import BaseModel
from caffelite.optimizers import Optimizer, TrainingDiverged
from caffelite.training import inputs, step
from caffelite.training.callbacks.advice import ScaleWarning, find_merged_layers, warn_of_guessing
from caffelite.training.callbacks.averaging import AveragingHook, AveragingStep
from caffelite.training.callbacks.base import LoopHook, Training
from caffelite.training.callbacks.callback_list import CallbackList
from caffelite.training.callbacks.early_stopping import EarlyStopping
from caffelite.training.callbacks.progress import Progress
from caffelite.training.callbacks.resume import Resumption, TrainingCheckpoint, rng_states
from caffelite.training.epochs.accumulation import apply_accumulation
from caffelite.training.epochs.base import Epochs, EpochState, name_parameters
from caffelite.training.history import History
from caffelite.training.objective import Objective
from caffelite.training.options import FitOptions
from caffelite.training.process_group import SINGLE_PROCESS, ProcessGroup, unwrap_optimizer


def fit(model: BaseModel, x: Any, y: Any, options: FitOptions) -> History:
    """Train a model, see `Model.fit`. If the training does not begin, all is as it was before."""
    options.optimizer, processes = unwrap_optimizer(options.optimizer)
    with (
        model._model_state.lock_training(),
        model_precision(model.dtype, options.precision),
        processes.training_context(),
        _resume(model, options, callbacks := CallbackList(options.callbacks)) as start,
    ):
        options.check()
        options.loss = inputs.as_losses(options.loss)
        inputs.check_optimizer(model, options.optimizer)
        rng = model._model_state.rng if options.seed is None else make_rng("seed", options.seed)
        processes.share_rngs(model._model_state.rng, rng)
        if start is not None:
            start.read(processes, rng)
        run = TrainingRun(model, options, callbacks, processes, start, rng)
        history = run.train(*inputs.make_training_batches(model, options, x, y, rng))
    inputs.warn_of_overflow(model)
    return history


def _resume(
    model: BaseModel, options: FitOptions, callbacks: CallbackList
) -> AbstractContextManager[Resumption | None]:
    """Return a context with the start from a checkpoint, or None at the beginning."""
    if options.resume is None:
        return nullcontext()
    return Resumption(options.resume, model, options.optimizer, callbacks)


class TrainingRun:
    """A training that is about to begin. Its random numbers come from the model's stream and from `rng`."""

    progress: Progress | None = None  # shows the training, if wanted

    def __init__(
        self,
        model: BaseModel,
        options: FitOptions,
        callback_list: CallbackList,
        processes: ProcessGroup,
        start: Resumption | None,
        rng: np.random.Generator,
    ) -> None:
        self.model, self.options, self.callback_list = model, options, callback_list
        self.processes, self.start = processes, start
        self.step = processes.make_step(model, self._make_objective(), options.optimizer, options.clip_norm)
        self.needs_checkpoints = bool(callback_list.callbacks) or start is not None or processes is not SINGLE_PROCESS
        self.rng_states = rng_states(model, rng) if self.needs_checkpoints else {}  # before any random number is drawn

    def train(self, batches: Iterable[Any], validation: Iterable[Any] | None, column_names: ColumnNames) -> History:
        """Train on `batches`, and evaluate `validation` after each epoch.

        The model remembers `column_names`, the names of the data frames' columns.
        """
        options, processes, average = self.options, self.processes, self.callback_list.average
        if options.accumulate > 1:
            processes.check_accumulate(options.accumulate)
            self.step, batches = apply_accumulation(self.step, batches, options.accumulate)
        if average is not None:
            self.step = AveragingStep(self.step, average)
        self.history = History.empty(self.step.objective.names, validation is not None)
        self.model._model_state.programs.begin_training()
        checkpoints = position = None
        if self.needs_checkpoints:
            checkpoints, position = self._open_checkpoints(batches, validation)
        hooks = self._make_hooks(batches, validation, checkpoints, position)
        if processes.is_main and not self.model._model_state.has_advice:
            for finding in find_merged_layers(self.model):
                self.step.objective.warn_once(finding)
        self.model._model_state.has_advice = True
        inputs.remember_columns(self.model, column_names)

        def make_epochs() -> Epochs:
            epochs = processes.make_epochs(self.step, batches, options.epochs, interrupts)
            row_check = epochs.objective.row_check
            if row_check is not None and validation is not None and is_replayed(validation):
                rows = cut_batch(inputs.convert_generator(self.model, validation), validation.lengths)
                row_check.pending.append(("validation_data's x", rows))
            if checkpoints is not None:
                checkpoints.epochs = epochs
            if position is not None:
                epochs.restore(position)
            return epochs

        try:
            with (
                short_traceback(step.__file__),
                InterruptsBetweenSteps() as interrupts,
                processes.defer_interrupts(interrupts),
            ):
                processes.make_loop(self.model, options.epochs, hooks, self.history, interrupts).run(make_epochs)
        except (KeyboardInterrupt, TrainingDiverged) as error:
            error.history = self.history  # type: ignore[union-attr]
            raise
        finally:
            hooks.clear()  # so the data are free at once, also after an exception
            if checkpoints is not None:
                checkpoints.epochs = None
        if processes.is_main and not any(getattr(c, "restore_best", False) for c in self.callback_list.callbacks):
            warn_of_guessing(self.model, options.loss, self.history, self._count_steps(batches) or 0)
        return self.history

    def _make_objective(self) -> Objective:
        return Objective(self.options.loss, self.options.metrics, self.model._model_state.programs.warned_reasons)

    def _open_checkpoints(
        self, batches: Iterable[Any], validation: Iterable[Any] | None
    ) -> tuple[TrainingCheckpoint, EpochState | None]:
        """Return the writer of checkpoints, and the position in the data if the training continues from one."""
        checkpoints = TrainingCheckpoint(
            self.step, self.history, batches, validation, self.callback_list, self.processes.is_main, self.rng_states
        )
        if self.start is not None:
            self.start.save_data_states(batches, validation)
        fingerprint = functools.partial(checkpoints.fit_fingerprint, self.options.epochs, self.start is not None)
        self.processes.sync_state(self.model, self.options.optimizer, (batches, validation), fingerprint)
        return checkpoints, None if self.start is None else self.start.restore(checkpoints)

    def _make_hooks(
        self,
        batches: Iterable[Any],
        validation: Iterable[Any] | None,
        checkpoints: TrainingCheckpoint | None,
        position: EpochState | None,
    ) -> list[LoopHook]:
        """Return the hooks of the training loop: averaging, validation, reports and the user's callbacks."""
        options, average = self.options, self.callback_list.average
        hooks: list[LoopHook] = [] if average is None else [AveragingHook(average)]
        if validation is not None:
            evaluation = self.processes.make_evaluation(self.model, self._make_objective(), validation, options.epochs)
            hooks.append(evaluation)
        hooks.append(GradientWarning(self.model, options.optimizer, self.processes.is_main))
        if self.processes is SINGLE_PROCESS and not self.model._model_state.has_advice:
            hooks.append(ScaleWarning(self.model, batches))
        num_steps = self._count_steps(batches)
        hooks += self._make_reports(num_steps, position) if self.processes.is_main else []
        if checkpoints is not None:
            training = Training(
                self.model,
                options.optimizer,
                options.loss,
                self.history,
                write=checkpoints.write,
                processes=self.processes,
                metrics=options.metrics,
                batches=batches,
                epochs=options.epochs,
                validation=validation,
                loss_so_far=checkpoints.loss_so_far,
                steps_per_epoch=num_steps,
                steps_before=self._count_steps_before(num_steps, position),
                exclude_time=self._exclude_time,
                averaged_weights=self.callback_list.averaged_weights,
            )
            restore = None if self.start is None else functools.partial(self.start.restore_callbacks, checkpoints)
            hooks.append(self.callback_list.attach(training, restore))
        return hooks

    def _count_steps(self, batches: Iterable[Any]) -> int | None:
        """Return the number of steps in an epoch, or None if it is not known."""
        try:
            return self.step.count_steps(len(batches))  # type: ignore[arg-type]
        except TypeError:  # it has no length, or wraps an iterable without one
            return None

    def _count_steps_before(self, num_steps: int | None, position: EpochState | None) -> int:
        """Return the number of steps before `position`, 0 if it is not known."""
        if position is None or num_steps is None:
            return 0
        return position.epoch * num_steps + self.step.count_steps(position.batch)

    def _make_reports(self, num_steps: int | None, position: EpochState | None) -> list[LoopHook]:
        """Return what shows the progress and warns of a schedule that ends early. Warn now of what is known now."""
        options, optimizer, reports = self.options, self.options.optimizer, list[LoopHook]()
        epoch, first_step = (0, 0) if position is None else (position.epoch, self.step.count_steps(position.batch))
        optimizer.warn_of_rates(None if num_steps is None else (options.epochs - epoch) * num_steps - first_step)
        if options.verbose != 0:
            self.progress = Progress(options.verbose, options.epochs, num_steps, epoch, first_step)
            self.progress.monitors = [x for x in self.callback_list.callbacks if isinstance(x, EarlyStopping)]
            reports.append(self.progress)
        if num_steps is None and (warn_at_end := optimizer._schedule_state.make_end_warning()) is not None:
            reports.append(ScheduleWarning(warn_at_end))
        return reports

    def _exclude_time(self, seconds: float) -> None:
        if self.progress is not None:
            self.progress.exclude_time(seconds)


class GradientWarning(LoopHook):
    """Warns, after the first step, of parameters to be trained that have no part in the loss.

    All processes return to Python after the same step, and the main one warns.
    """

    def __init__(self, model: BaseModel, optimizer: Optimizer, is_main: bool) -> None:
        self.model, self.is_main, self.has_begun = model, is_main, False
        self.suspects = [p for p in optimizer.parameters if p.requires_grad and not p._has_gradient]

    def steps_until_due(self) -> float:
        return 1 if self.suspects else math.inf

    def step(self, count: int, loss: Callable[[], float]) -> None:
        self.has_begun |= count > 0
        self._warn(loss)

    def epoch(self, count: int, history: History) -> None:
        """Warn after an epoch of a single step, too: `step` gets no loss of it."""
        self._warn(lambda: history["loss"][-1])

    def _warn(self, loss: Callable[[], float]) -> None:
        if not self.suspects or not self.has_begun or math.isnan(loss()):  # no batch has counted so far
            return
        untouched = [p for p in self.suspects if p.requires_grad and not p._has_gradient]
        self.suspects = []
        if untouched and self.is_main:
            for name in name_parameters(self.model, untouched):
                warn(f"{name} gets no gradient: it has no part in the loss")


class ScheduleWarning(LoopHook):
    """Warns when a schedule has ended, if the number of steps is not known before."""

    def __init__(self, warn_at_end: Callable[[], None]) -> None:
        self.warn_at_end = warn_at_end

    def between_steps(self) -> None:
        self.warn_at_end()
