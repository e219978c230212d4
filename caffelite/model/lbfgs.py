"""minimize: train a model by L-BFGS, on all rows at once. Imported only when it is used, since it needs SciPy.

SciPy minimizes a function of one float64 vector. Here the vector holds the trainable parameters, and the function is
the loss over all rows. Forward and backward are recorded as a Program. Each evaluation copies the vector into the
parameters, replays the Program and copies the gradients out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from caffelite._support.extras import install_command
from caffelite._support.interrupts import InterruptsBetweenSteps
from caffelite.core.arrays import check_positive, check_positive_integer
from caffelite.core.function import Function
from caffelite.data.frames import column_names, open_frame
from caffelite.model.model import Model
from caffelite.optimizers import TrainingDiverged
from caffelite.program import Program
from caffelite.training import inputs
from caffelite.training.callbacks.base import Training
from caffelite.training.callbacks.callback_list import CallbackList
from caffelite.training.callbacks.checkpoint import Checkpoint
from caffelite.training.callbacks.early_stopping import ReduceLROnPlateau
from caffelite.training.callbacks.progress import Progress
from caffelite.training.epochs.divergence import describe_nonfinite, first_nonfinite_gradient
from caffelite.training.history import History
from caffelite.training.objective import Objective as Loss

try:
    from scipy.optimize import OptimizeResult
    from scipy.optimize import minimize as scipy_minimize
except ImportError as error:
    raise ImportError(f"minimize needs SciPy: {install_command('scipy')}") from error


class Minimization(History):
    """The History of `minimize`: the loss after each iteration, without penalties, and how the search ended.

    objective : float
        The value that was minimized, penalties included, at the end.
    converged : bool
        Whether it ended because nothing was left to gain.
    message : str
        Why it ended: SciPy's message, or that a callback ended it.
    evaluations : int
        How often the loss and its gradient were computed.
    """

    objective: float
    converged: bool
    message: str
    evaluations: int


def minimize(
    model: Model,
    x: Any,
    y: Any,
    *,
    loss: Function,
    max_iterations: int = 1000,
    max_evaluations: int = 15_000,
    tolerance: float = 1e-5,
    callbacks: Iterable[Callable[[int, History], Any]] = (),
    verbose: int | str = "auto",
    sample_weight: Any = None,
) -> Minimization:
    """Minimize the loss over all rows by L-BFGS, starting from the current parameters.

    On small data sets, L-BFGS gets further than gradient descent and needs no learning rate. Each iteration is a line
    search along a direction computed from the last ten gradients. The trainable parameters form one vector; frozen ones
    do not change. The search is SciPy's L-BFGS-B, which stores and computes in float64 for any dtype of the model. But
    a float32 loss has only seven digits. When steps become smaller than that, the line search ends "abnormally"; only a
    float64 model gets further. D. C. Liu and J. Nocedal, "On the limited memory BFGS method for large scale
    optimization", Mathematical Programming 45, 1989.

    Parameters
    ----------
    x, y, sample_weight : array-like (n, …), (n, …), (n,)
        As for `Model.fit`. They are copied, and kept in memory with the outputs of all Functions for all rows.
    loss : Function
        As for `fit`. With `Penalized`, the penalties are minimized too.
    max_iterations, max_evaluations : int
        The search ends after this many iterations, or after the iteration that reaches this many evaluations of the
        loss.
    tolerance : float
        The search ends if no element of the gradient is larger than this. It also ends if an iteration has lowered the
        loss by at most 2.2·10⁻⁹ · max(loss, 1).
    callbacks, verbose
        As for `fit`, with iterations instead of epochs. A callback sees the parameters after the iteration. There is no
        optimizer, so Checkpoint and ReduceLROnPlateau can't be used.

    Functions behave as in training. BatchNorm uses the statistics of all rows and updates its running ones as in `fit`.
    The loss must be the same each time it is computed, so Dropout can't be used.

    Raises
    ------
    ValueError
        If nothing is trainable, or if the same parameters give two different losses. Also raised, as by `fit`, for data
        and options that cannot be used. Nothing has changed by then.
    TrainingDiverged
        If the loss or a gradient is not finite. Has `history`.
    KeyboardInterrupt
        On Ctrl-C. Has `history`.

    After an exception, the parameters are the same as after the last completed iteration.
    """
    if not isinstance(model, Model):
        raise TypeError(f"minimize takes a Model, got {model!r}")
    max_iterations = check_positive_integer("max_iterations", max_iterations)
    max_evaluations = check_positive_integer("max_evaluations", max_evaluations)
    tolerance, callback_list = check_positive("tolerance", tolerance), CallbackList(callbacks)
    for callback in callback_list.callbacks:
        if isinstance(callback, Checkpoint | ReduceLROnPlateau):
            raise ValueError(f"minimize has no optimizer, and {type(callback).__name__} needs one; use fit")
    loss = inputs.as_losses(loss)
    x = open_frame(x, "x")
    given = inputs.UserData(x, y, sample_weight)
    (batch,) = inputs.as_batches(model, given, loss, batch_size=sys.maxsize, shuffle=False)  # all rows as one batch
    inputs.remember_columns(model, column_names(x))
    objective = FlatLoss(model, loss, batch)
    history = Minimization({"loss": []})
    progress = Progress(verbose, max_iterations, None, unit="iteration")
    options = {"maxiter": max_iterations, "maxfun": max_evaluations, "gtol": tolerance}
    with InterruptsBetweenSteps() as interrupts, callback_list.attach(Training(model, None, loss, history)), progress:
        try:
            with interrupts.defer():
                objective.check_repeatable()
            result, is_stopped = _search(objective, interrupts, history, callback_list, progress, options)
        except TrainingDiverged as error:
            error.args = (f"iteration {history.epochs + 1}: {error}",)
            error.history = history  # type: ignore[attr-defined]
            raise
        except KeyboardInterrupt as error:
            error.history = history  # type: ignore[attr-defined]
            raise
        finally:
            with interrupts.defer():
                objective.restore()
    history.objective, history.converged = float(result.fun), bool(result.success)
    history.message = "a callback ended it" if is_stopped else str(result.message)
    history.evaluations = int(result.nfev)
    return history


def _search(
    objective: FlatLoss,
    interrupts: InterruptsBetweenSteps,
    history: Minimization,
    callback_list: CallbackList,
    progress: Progress,
    options: Mapping[str, Any],
) -> tuple[OptimizeResult, bool]:
    """Run SciPy's search from the current parameters. Also return whether a callback ended it."""
    errors: list[StopIteration] = []  # by a callback: SciPy would treat it as its own signal to stop
    is_stopped = False

    def finish_iteration(intermediate_result: OptimizeResult) -> None:
        """Note the end of an iteration; SciPy calls this."""
        nonlocal is_stopped
        objective.accept(intermediate_result.x)
        history["loss"].append(objective.loss)
        progress.step(1, lambda: objective.loss)
        progress.epoch(1, history)
        try:
            is_stopped = callback_list(history.epochs - 1, history)
        except StopIteration as error:
            errors.append(error)
            raise
        if is_stopped:
            raise StopIteration

    result = scipy_minimize(
        lambda vector: objective.evaluate(vector, interrupts),
        objective.last_vector,
        jac=True,
        method="L-BFGS-B",
        callback=finish_iteration,
        options=options,
    )
    if errors:
        raise errors[0]
    return result, is_stopped


class FlatLoss:
    """The loss over all rows, and its gradient, as a function of the trainable parameters: one float64 vector."""

    def __init__(self, model: Model, loss: Function, batch: Any) -> None:
        self.model, self.objective = model, Loss(loss, {}, model._model_state.programs.warned_reasons)
        self.batch, _ = inputs.prepare_batch(model, batch, loss)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise ValueError("minimize: there is nothing to train; the model has no parameters or all are frozen")
        self.program = Program(self._forward_and_backward)
        self.last_vector = self._vector()  # the parameters after the last iteration

    def evaluate(self, vector: np.ndarray, interrupts: InterruptsBetweenSteps) -> tuple[float, np.ndarray]:
        """Return the loss with its penalties, and the gradient; TrainingDiverged if they are not finite."""
        with interrupts.defer():
            self._set(vector)
            return self._compute()

    def accept(self, vector: np.ndarray) -> None:
        """Take these as the parameters after an iteration. They are the last ones that the iteration evaluated."""
        self.last_vector = vector.copy()

    def restore(self) -> None:
        """Give the parameters their values after the last iteration."""
        self._set(self.last_vector)

    def check_repeatable(self) -> None:
        """Raise ValueError unless the same parameters give the same loss and gradient twice."""
        buffers = self.model.buffers().values()
        old_values = [buffer.copy() for buffer in buffers]
        try:
            first, second = self._compute(), self._compute()
        finally:
            for buffer, values in zip(buffers, old_values, strict=True):
                buffer[...] = values
        if first[0] != second[0] or not np.array_equal(first[1], second[1]):
            raise ValueError(
                "minimize: the same parameters gave another loss the second time, so there is no single loss to "
                "minimize. Leave out Dropout and all other random Functions, or use fit"
            )

    def _compute(self) -> tuple[float, np.ndarray]:
        value, mean = self.program()
        self.loss = float(mean.item())  # without penalties
        if not np.isfinite(value).all():
            raise TrainingDiverged(f"the loss is {value.item()}{describe_nonfinite(self.batch)}")
        gradient = self._gradient()
        if not np.isfinite(gradient).all():
            name = first_nonfinite_gradient(self.model)
            raise TrainingDiverged(f"the gradient of {name} is not finite{describe_nonfinite(self.batch)}")
        return float(value.item()), gradient

    def _forward_and_backward(self) -> tuple[np.ndarray, np.ndarray]:
        for p in self.model.parameters():
            p.zero_grad()
        value = self.objective.compute_loss(self.model(*self.batch.inputs), self.batch)
        value.backward()
        return value.data, self.objective.last_loss()

    def _vector(self) -> np.ndarray:
        return np.concatenate([p.data.reshape(-1) for p in self.parameters], dtype=np.float64)

    def _gradient(self) -> np.ndarray:
        gradients = [np.zeros(p.size) if p.grad is None else p.grad.reshape(-1) for p in self.parameters]
        return np.concatenate(gradients, dtype=np.float64)

    def _set(self, vector: np.ndarray) -> None:
        ends = np.cumsum([p.size for p in self.parameters])[:-1]
        for p, part in zip(self.parameters, np.split(vector, ends), strict=True):
            p.data = part.reshape(p.shape)
