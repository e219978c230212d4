"""fit_many and predict_many: many small models at once, each as `fit` and `predict` treat it, on several threads.

`shared_programs.py` says which models share a recording, and `pool.py` has the threads. Each model is trained by the
loop of `Model.fit` (`training/loop.py`), with its own validation and early stopping.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from caffelite._kernels import EpochHook
from caffelite.core.arrays import as_indices, check_bool, check_positive_integer, make_rng, raise_bad_index
from caffelite.core.function import Function
from caffelite.core.tensor import Tensor
from caffelite.data.conversion import to_contiguous
from caffelite.data.frames import ColumnNames, column_names, is_frame, open_frame
from caffelite.data.generator import Batch, DataGenerator, merge_single_rows, unpack_single
from caffelite.data.out_of_core import Source
from caffelite.data.split import draw_split, num_held_out
from caffelite.model import predict as predicting
from caffelite.model.many.pool import StopFlag, lock_trainings, run_jobs
from caffelite.model.many.shared_programs import Parts, SharedModel, Signature
from caffelite.model.model import Model
from caffelite.optimizers import Optimizer, TrainingDiverged
from caffelite.training.callbacks.base import LoopHook, Training
from caffelite.training.callbacks.callback_list import CallbackList
from caffelite.training.callbacks.early_stopping import EarlyStopping
from caffelite.training.callbacks.progress import Progress
from caffelite.training.epochs import make_epochs
from caffelite.training.epochs.evaluation import Evaluation
from caffelite.training.history import History
from caffelite.training.inputs import (
    EVAL_OPTIONS,
    UserData,
    as_losses,
    check_columns,
    check_indices,
    check_optimizer,
    check_rows,
    make_batches,
    model_inputs,
    prepare_data,
    remember_columns,
    trains_batch_norm,
    unpack_validation_data,
    warn_of_overflow,
)
from caffelite.training.loop import Loop
from caffelite.training.metrics.base import resolve_metrics
from caffelite.training.objective import Objective
from caffelite.training.step import EvaluationStep, Step


def fit_many(
    models: Iterable[Model],
    x: Any,
    y: Any,
    *,
    loss: Function | Iterable[Function],
    optimizers: Iterable[Optimizer],
    epochs: int = 1,
    batch_size: int | Iterable[int] = 32,
    shuffle: bool = True,
    seed: int | None = None,
    rows: Iterable[Any] | None = None,
    sample_weight: Any = None,
    validation_data: Any = None,
    validation_split: float = 0.0,
    validation_rows: Iterable[Any] | None = None,
    metrics: Iterable[Any] = (),
    patience: int | None = None,
    verbose: int | str = "auto",
) -> list[History]:
    """Train many small models on the same data at once, on `get_num_threads()` threads.

    Each model, its optimizer and its History end with the same bits as after `model.fit(x, y, …, verbose=0)`, on any
    number of threads. Use it for many seeds, learning rates or folds. It is fastest if the models differ only in the
    values of their parameters and the numbers of their optimizers, and have no Functions of your own.

    Parameters
    ----------
    models : iterable of Model
        Any models that share no parameters or buffers with each other.
    x, y : array-like (n, …), or tuples of them
        As for `fit`; checked and converted once.
    loss : Function, or a list with one for each model
        For several targets, a Function such as `Losses([l1, l2])`.
    optimizers : iterable of Optimizer
        One for each model.
    batch_size : int, or a list with one for each model
    epochs, shuffle, metrics
        As for `fit`. Metrics of your own are called on several threads.
    seed : int, optional
        Used for the splits and the shuffling, the same for all models. Without it, each model draws from its own
        stream, as in `fit`.
    rows : iterable of array-like of int, optional
        The rows that each model gets, as if it got x[rows] and y[rows]:
        `[train for train, test in KFold(5).split(x)]`. A row may occur several times. None means all rows.
    sample_weight : array-like (n,), optional
        The weight of each row, as for `fit`.
    validation_data : (x, y) or (x, y, weights), optional
        Evaluated after each epoch, the same for all models.
    validation_split : float in [0, 1)
        The share of its rows that each model is evaluated on, as in `fit`.
    validation_rows : iterable of array-like of int, optional
        The rows of x that each model is evaluated on: `[test for train, test in KFold(5).split(x)]`.
    patience : int, optional
        Each run ends after this many epochs in a row without a better `val_loss`. Its model then gets the parameters of
        its best epoch: `EarlyStopping("val_loss", patience=patience, restore_best=True)`.
    verbose : 0, 1, 2 or "auto"
        As for `fit`. It counts the epochs of all models, and shows the latest results of any model.

    Returns a History for each model.

    Raises
    ------
    ValueError, TypeError, IndexError
        Before the first step. The message gives the model's number if the error is about one model.
    TrainingDiverged
        If a loss or a gradient is not finite; raised after all other models are trained. That model's parameters are as
        they were before that step or, with `patience`, as in its best epoch. `histories` has every model's History, and
        `history` that of the first model that diverged.
    KeyboardInterrupt
        On Ctrl-C, after the current step of each model. `histories` has every model's History.
    """
    plan = Plan(epochs, shuffle, seed, validation_split, metrics, patience)
    plan.check((validation_split != 0) + (validation_data is not None) + (validation_rows is not None))
    fits = _make_fits(models, loss, optimizers, batch_size, plan)
    data = SharedData("x", x, y, sample_weight)
    _set_data(fits, data, rows, validation_rows, validation_data)
    for i, fit in enumerate(fits):
        with _name_model(i):
            fit.prepare()
    histories, stop = [fit.history for fit in fits], StopFlag()
    progress = Progress(verbose, plan.epochs * len(fits), None, unit=f"{len(fits)} models, epoch")
    lock, is_shown = threading.Lock(), verbose != 0

    def train(i: int, shared_model: SharedModel | None) -> None:
        signature = fits[i].signature
        hooks = [SharedProgress(progress, lock, plan.epochs)] if is_shown else []
        with nullcontext(signature.parts) if shared_model is None else shared_model.borrow_values(signature) as parts:
            fits[i].train(parts, hooks, stop)

    try:
        with progress, lock_trainings([fit.model for fit in fits]):
            for fit in fits:
                remember_columns(fit.model, data.names)
            run_jobs([fit.signature for fit in fits], train, stop)
        _raise_if_diverged(fits)
    except (KeyboardInterrupt, TrainingDiverged) as error:
        error.histories = histories  # type: ignore[union-attr]
        raise
    for fit in fits:
        warn_of_overflow(fit.model)
    return histories


def predict_many(models: Iterable[Model], x: Any, *, batch_size: int = 1024) -> list[Any]:
    """Return the outputs of each model for the rows of x, computed at once on `get_num_threads()` threads.

    They have the same bits as `model.predict(x)`. Models of the same structure share one recording, and x is converted
    once. `np.mean(predict_many(models, x), axis=0)` is the prediction of an ensemble.

    Raise the errors of `predict`, before the first output. The message gives the model's number. Data have to be in
    memory.
    """
    signatures = [Signature(Parts(model)) for model in _check_models(models)]
    batch_size, data = check_positive_integer("batch_size", batch_size), SharedData("predict", x)
    batches: list[Batch] = []
    for i, signature in enumerate(signatures):
        with _name_model(i):
            batches.append(data.convert(signature))
    outputs: list[Any] = [None] * len(signatures)

    def predict(i: int, shared_model: SharedModel | None) -> None:
        parts = signatures[i].parts if shared_model is None else shared_model.load_values(signatures[i])
        outputs[i] = predicting.predict_arrays(parts.model, batches[i].inputs, batch_size)

    run_jobs(signatures, predict, StopFlag())
    return outputs


# ---- training --------------------------------------------------------------------------------------------------------


@dataclass
class Plan:
    """The options that all training runs have in common."""

    epochs: int
    shuffle: bool
    seed: int | None
    split: float  # the share of the rows to evaluate
    metrics: Any  # after `check`, the metrics by their names
    patience: int | None

    def check(self, num_validations: int) -> None:
        """Raise ValueError or TypeError for impossible options, given the number of ways to validate."""
        self.epochs = check_positive_integer("epochs", self.epochs)
        self.shuffle = check_bool("shuffle", self.shuffle)
        if isinstance(self.seed, np.random.Generator | np.random.BitGenerator):
            raise TypeError(
                f"seed: expected an integer or None, got {self.seed!r}, which gives each model a different order"
            )
        make_rng("seed", self.seed)
        if num_validations > 1:
            raise ValueError("fit_many takes one of validation_data, validation_split and validation_rows")
        if self.patience is not None:
            self.patience = check_positive_integer("patience", self.patience)
            if num_validations == 0:
                raise ValueError("patience watches val_loss: give validation_data, validation_split or validation_rows")
        self.metrics = resolve_metrics(self.metrics)


class Fit:
    """The training of one model: its parts and its results."""

    data: Batch  # all rows, converted
    validation: DataGenerator | None = None  # the validation data, if they are given
    rows: np.ndarray  # the rows that the model gets
    held_out = 0  # the number of them to evaluate
    divergence: TrainingDiverged | None = None

    def __init__(self, model: Model, optimizer: Optimizer, loss: Function, batch_size: int, plan: Plan) -> None:
        self.model, self.optimizer, self.loss, self.batch_size, self.plan = model, optimizer, loss, batch_size, plan
        self.signature = Signature(Parts(model, optimizer, loss))

    def prepare(self) -> None:
        """Check the metrics and the split. Warn of a rate of 0 and of a schedule that ends early."""
        split = self.plan.split
        if split != 0:
            self.held_out = num_held_out(len(self.rows), split)
        names = Objective(self.loss, self.plan.metrics, set()).names
        self.history = History.empty(names, split != 0 or self.validation is not None)
        full, last = divmod(len(self.rows) - self.held_out, self.batch_size)
        merges_last = last == 1 and full > 0 and trains_batch_norm(self.model)
        self.optimizer.warn_of_rates(self.plan.epochs * (full + (last > 0) - merges_last))

    def check_weights(self, what: str, rows: np.ndarray) -> None:
        """Raise ValueError if there are weights, and all of these rows weigh 0."""
        weights = self.data.weights
        if weights is not None and not weights[rows].any():
            raise ValueError(f"{what}: all of {len(rows)} rows have sample_weight 0")

    def train(self, parts: Any, progress: list[SharedProgress], stop: StopFlag) -> None:
        """Train the model, or the SharedModel that has its values, as `Model.fit` does."""
        model, optimizer, loss = parts
        epochs, metrics = self.plan.epochs, self.plan.metrics
        warned_reasons = model._model_state.programs.warned_reasons
        batches, validation = self._batches()
        step = Step(model, Objective(loss, metrics, warned_reasons), optimizer)
        hooks: list[LoopHook] = []
        if validation is not None:
            evaluation_step = EvaluationStep(model, Objective(loss, metrics, warned_reasons))
            hooks.append(Evaluation(evaluation_step, validation, epochs))
        hooks += progress
        if self.plan.patience is not None:
            early_stopping = CallbackList([EarlyStopping(patience=self.plan.patience)])
            hooks.append(early_stopping.attach(Training(model, optimizer, loss, self.history, metrics=metrics)))
        loop = Loop(epochs, hooks, self.history, stop)
        try:
            loop.run(lambda: make_epochs(step, batches, epochs, stop))
        except TrainingDiverged as error:
            self.divergence = error

    def _batches(self) -> tuple[DataGenerator, DataGenerator | None]:
        """Return the batches to train on, and those to evaluate, as `fit` draws them."""
        plan, state, rows, validation = self.plan, self.model._model_state, self.rows, self.validation
        rng = state.rng if plan.seed is None else make_rng("seed", plan.seed)
        if self.held_out:
            split_rng = state.find_split_rng(len(rows), rng, reseed=plan.seed is not None)
            training, held_out = draw_split(len(rows), self.held_out, split_rng)
            for part in (training, held_out):
                self.check_weights("validation_split", rows[part])
            validation = make_batches(self.data, EVAL_OPTIONS).restrict(rows[held_out])
            rows = rows[training]
        batches = DataGenerator.from_batch(self.data, self.batch_size, plan.shuffle, rng).restrict(rows)
        return (merge_single_rows(batches) if trains_batch_norm(self.model) else batches), validation


class SharedProgress(LoopHook):
    """Shows the progress of one of several training runs, which share a Progress and its lock.

    `progress.epochs` counts the epochs of all runs.
    """

    def __init__(self, progress: Progress, lock: threading.Lock, max_epochs: int) -> None:
        self.progress, self.lock, self.epochs_left = progress, lock, max_epochs

    def next_python_epoch(self, done: int, epoch_hooks: list[EpochHook] | None) -> float:
        return self.progress.next_python_epoch(done, epoch_hooks)

    def step(self, count: int, loss: Callable[[], float]) -> None:
        with self.lock:
            self.progress.step(count, lambda: math.nan)

    def epoch(self, count: int, history: History) -> None:
        self.epochs_left -= count
        with self.lock:
            self.progress.epoch(count, history)

    def end(self) -> None:
        """Leave out the epochs that an early end has saved."""
        with self.lock:
            self.progress.epochs -= self.epochs_left


def _raise_if_diverged(fits: list[Fit]) -> None:
    numbers = [i for i, fit in enumerate(fits) if fit.divergence is not None]
    if numbers:
        first, *rest = numbers
        too = f"; so did {', '.join(map(str, rest))}" if rest else ""
        error = TrainingDiverged(f"model {first} diverged: {fits[first].divergence}{too}")
        error.history = fits[first].history  # type: ignore[attr-defined]
        raise error


# ---- data ------------------------------------------------------------------------------------------------------------


class SharedData:
    """Rows that all models get: converted once for each kind of model, and checked once for models of the same key.

    `expected` are the columns that frames must have, if a model does not know its columns.
    """

    def __init__(self, name: str, x: Any, y: Any = None, weights: Any = None, expected: ColumnNames = None) -> None:
        self.name, self.expected = name, expected
        self.x, self.y, self.weights = open_frame(x, name), open_frame(y, "y"), weights
        self.names = column_names(self.x)
        self._converted: dict[tuple[Any, ...], Batch] = {}
        self._checked: set[tuple[Any, ...]] = set()

    def convert(self, signature: Signature) -> Batch:
        """Return the rows as arrays that the model and its loss take."""
        model, key = signature.parts.model, signature.key
        reader = model.frame_reader
        kind = model.dtype, model.input_dtype, model.takes_indices, None if reader is None else reader.columns
        if reader is None or not is_frame(self.x):
            check_columns(model, self.name, self.names, self.expected)
        if key not in self._checked:
            converted = self._converted.get(kind)
            if converted is None:
                self._converted[kind] = self._copy_in_order(self._check(signature.parts, self.x, self.y, self.weights))
            else:
                self._check(
                    signature.parts,
                    unpack_single(converted.inputs),
                    unpack_single(converted.targets),
                    converted.weights,
                )
            if key is not None:
                self._checked.add(key)
        return self._converted[kind]

    def _check(self, parts: Parts, x: Any, y: Any, weights: Any) -> Batch:
        model, _, loss = parts
        if loss is not None:
            given = UserData(x, y, weights, name=self.name, column_names=self.expected)
            return prepare_data(model, given, loss)[0]
        inputs, _ = model_inputs(model, self.name, x)
        check_rows(model, self.name, inputs)
        check_indices(model, self.name, inputs)
        return Batch(inputs, ())

    def _copy_in_order(self, data: Batch) -> Batch:
        if Source in map(type, data.columns()):
            raise ValueError(f"{self.name}: expected data that are in memory; np.array(x) reads them")
        return Batch(tuple(map(to_contiguous, data.inputs)), tuple(map(to_contiguous, data.targets)), data.weights)


def _set_data(fits: list[Fit], data: SharedData, rows: Any, validation_rows: Any, validation_data: Any) -> None:
    """Give each training its data."""
    if _is_one_per_model(data.x, len(fits)) and _is_one_per_model(data.y, len(fits)):
        raise TypeError(
            f"x and y are lists of {len(fits)} arrays, and there are {len(fits)} models. All models get the same x and "
            "y: select the rows of each with rows=. If each array is a row, give np.array(x) and np.array(y)"
        )
    rows = [None] * len(fits) if rows is None else _list_per_model("rows", rows, len(fits))
    held_out = None if validation_rows is None else _list_per_model("validation_rows", validation_rows, len(fits))
    validation = None
    if validation_data is not None:
        arrays = unpack_validation_data(validation_data, "(x, y) or (x, y, weights)")
        validation = SharedData("validation_data's x", *arrays, expected=data.names)
    for i, (fit, indices) in enumerate(zip(fits, rows, strict=True)):
        with _name_model(i):
            fit.data = data.convert(fit.signature)
            count = fit.data.rows
            fit.rows = np.arange(count) if indices is None else _check_rows("rows", indices, count)
            fit.check_weights("rows", fit.rows)
            if held_out is not None:
                rows_to_evaluate = _check_rows("validation_rows", held_out[i], count)
                fit.check_weights("validation_rows", rows_to_evaluate)
                fit.validation = make_batches(fit.data, EVAL_OPTIONS).restrict(rows_to_evaluate)
            if validation is not None:
                fit.validation = make_batches(validation.convert(fit.signature), EVAL_OPTIONS)


def _is_one_per_model(data: Any, count: int) -> bool:
    """Return whether data are a list of `count` arrays, perhaps meant as one for each model."""
    return isinstance(data, list) and len(data) == count and all(isinstance(a, np.ndarray) and a.ndim for a in data)


def _check_rows(name: str, values: Any, n: int) -> np.ndarray:
    """Return the indices of given rows, int64, below n."""
    if isinstance(values, tuple) and len(values) == 2 and all(isinstance(part, np.ndarray) for part in values):
        raise TypeError(f"{name}: got a pair of arrays; for folds, give rows=[train for train, test in folds]")
    if getattr(values, "dtype", None) == np.bool_:
        raise TypeError(f"{name}: expected the indices of rows, got a mask; np.flatnonzero(mask) gives its indices")
    rows = as_indices(values, name)
    if rows.ndim != 1 or not rows.size:
        raise ValueError(f"{name}: expected the indices of some rows, (m,), got shape {rows.shape}")
    if (rows.view(np.uint64) >= n).any():
        raise_bad_index(name, n - 1, rows.shape, rows.dtype, rows)
    return rows


# ---- checks ----------------------------------------------------------------------------------------------------------


def _make_fits(models: Any, loss: Any, optimizers: Any, batch_size: Any, plan: Plan) -> list[Fit]:
    """Return a Fit for each model. ValueError or TypeError, naming the model, if one of them is not possible."""
    models = _check_models(models)
    optimizers = _list_per_model("optimizers", optimizers, len(models))
    is_one = isinstance(loss, Function | str) or not isinstance(
        loss, Iterable
    )  # `as_losses` refuses what is not a loss
    losses = [loss] * len(models) if is_one else _list_per_model("loss", loss, len(models))
    sizes = _list_per_model("batch_size", batch_size, len(models)) if isinstance(batch_size, Iterable) else None
    size = check_positive_integer("batch_size", batch_size) if sizes is None else 0
    fits: list[Fit] = []
    owners: dict[int, int] = {}  # the model's number, by the ids of what its training changes
    for i, model in enumerate(models):
        with _name_model(i):
            losses[i] = as_losses(losses[i])
            check_optimizer(model, optimizers[i])
            rows_per_batch = size if sizes is None else check_positive_integer("batch_size", sizes[i])
        fits.append(Fit(model, optimizers[i], losses[i], rows_per_batch, plan))
        for changed in _list_changes(fits[i]):
            if owners.setdefault(id(changed), i) != i:
                raise ValueError(f"models {owners[id(changed)]} and {i} share {_describe(changed)}; each needs its own")
    return fits


def _list_changes(fit: Fit) -> list[Any]:
    """List everything that training changes."""
    model, optimizer, loss = fit.model, fit.optimizer, fit.loss
    buffers = *model.buffers().values(), *loss.buffers().values()
    return [optimizer, *model.parameters(), *optimizer.parameters, *loss.parameters(), *buffers]


def _describe(changed: Any) -> str:
    """Describe one item of `_list_changes`."""
    if isinstance(changed, np.ndarray):
        return f"a buffer {changed.shape}"
    return f"the parameter {changed._description()}" if isinstance(changed, Tensor) else repr(changed)


def _check_models(values: Any) -> list[Model]:
    """Return the given models as a list. ValueError if there are none."""
    models = _to_list("models", values)
    if not models:
        raise ValueError("models: expected one or more, got none")
    for i, model in enumerate(models):
        if not isinstance(model, Model):
            raise TypeError(f"model {i}: expected a Model, got {model!r}")
    return models


def _to_list(name: str, values: Any) -> list[Any]:
    if isinstance(values, Model) or not isinstance(values, Iterable):
        raise TypeError(f"{name}: expected a list with one for each model, got {values!r}")
    return list(values)


def _list_per_model(name: str, values: Any, n: int) -> list[Any]:
    """Return what is given as a list. ValueError unless it has one item for each of n models."""
    items = _to_list(name, values)
    if len(items) != n:
        raise ValueError(f"{name}: expected one for each of {n} models, got {len(items)}")
    return items


@contextmanager
def _name_model(i: int) -> Iterator[None]:
    """Raise errors of the body again, with the number of the model."""
    try:
        yield
    except (ValueError, TypeError, IndexError) as error:
        kind = next(kind for kind in (ValueError, TypeError, IndexError) if isinstance(error, kind))
        raise kind(f"model {i}: {error}") from error
