"""fit_many and predict_many: many small models at once, each as `fit` and `predict` treat it, on several threads.

`shared_programs.py` says which models share a recording, and `pool.py` has the threads. Each training runs the loop of
`Model.fit` (`training/loop.py`), with its validation and its early stopping.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from caffelite.core.arrays import as_indices, check_bool, check_positive_integer, make_rng, raise_bad_index
from caffelite.core.function import Function
from caffelite.core.tensor import Tensor
from caffelite.data.conversion import to_contiguous
from caffelite.data.frames import is_frame, input_column_names
from caffelite.data.generator import Batch, DataGenerator, unpack_single, merge_single_rows
from caffelite.data.out_of_core import Source
from caffelite.model import predict as predicting
from caffelite.model.many.pool import Stop, for_each
from caffelite.model.many.shared_programs import Form, Parts, StandIn
from caffelite.model.model import Model
from caffelite.optimizers import Optimizer, TrainingDiverged
from caffelite.training import inputs as door
from caffelite.training.callbacks.base import Callbacks, EarlyStopping, Training
from caffelite.training.callbacks.listeners import Called, ShownTogether, Validation
from caffelite.training.callbacks.progress import Progress
from caffelite.training.epochs.dispatch import epochs_of
from caffelite.training.epochs.evaluation import Evaluation
from caffelite.training.history import History
from caffelite.training.loop import Listener, Loop
from caffelite.training.metrics.base import Metric, OfOutput, named
from caffelite.training.objective import Objective
from caffelite.training.process_group import ONE_PROCESS
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
        For the splits and the orders, the same in all models. Without it, each model draws from its own stream, as in
        `fit`.
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
        Each training ends after this many epochs in a row without a better `val_loss`. Its model then gets the
        parameters of its best epoch: `EarlyStopping("val_loss", patience=patience, restore_best=True)`.
    verbose : 0, 1, 2 or "auto"
        As for `fit`. It counts the epochs of all models, and shows the results of the model that was the last to tell.

    Returns a History for each model.

    Raises
    ------
    ValueError, TypeError, IndexError
        Before the first step. The message has the model's number if the error is about one model.
    TrainingDiverged
        If a loss or a gradient is not finite, after all other models are trained. That model's parameters are as they
        were before that step, or with `patience` as in its best epoch. `histories` has every model's History, `history`
        the History of the first diverged model.
    KeyboardInterrupt
        On Ctrl-C. Each model has taken a whole number of steps. `histories` has every model's History.
    """
    epochs, shuffle, split = check_positive_integer("epochs", epochs), check_bool("shuffle", shuffle), validation_split
    if isinstance(seed, np.random.Generator | np.random.BitGenerator):
        raise TypeError(f"seed: expected an integer or None, got {seed!r}, which gives each model another order")
    make_rng("seed", seed)
    ways = (split != 0) + (validation_data is not None) + (validation_rows is not None)
    if ways > 1:
        raise ValueError("fit_many takes one of validation_data, validation_split and validation_rows")
    if patience is not None:
        patience = check_positive_integer("patience", patience)
        if ways == 0:
            raise ValueError("patience watches val_loss: give validation_data, validation_split or validation_rows")
    plan = Plan(epochs, shuffle, seed, split, named(metrics), patience)
    fits = _checked(models, loss, optimizers, batch_size, plan)
    _give_data(fits, Given("x", x, y, sample_weight), rows, validation_rows, validation_data)
    for i, fit in enumerate(fits):
        with _naming(i):
            fit.prepare()
    histories, stop = [fit.history for fit in fits], Stop()
    progress = Progress(verbose, epochs * len(fits), None, of=f"{len(fits)} models, epoch")
    lock, is_shown = threading.Lock(), verbose != 0

    def train(i: int, stand_in: StandIn | None) -> None:
        form = fits[i].form
        shown = [ShownTogether(progress, lock, each=verbose == 2)] if is_shown else []
        with nullcontext(form.parts) if stand_in is None else stand_in.of(form) as parts:
            fits[i].train(parts, shown, stop)

    try:
        with progress:
            for_each([fit.form for fit in fits], train, stop)
        _raise_if_diverged(fits)
    except (KeyboardInterrupt, TrainingDiverged) as error:
        error.histories = histories  # type: ignore[union-attr]
        raise
    for fit in fits:
        door.warn_of_overflow(fit.model)
    return histories


def predict_many(models: Iterable[Model], x: Any, *, batch_size: int = 1024) -> list[Any]:
    """Return the outputs of each model for the rows of x, computed at once on `get_num_threads()` threads.

    They have the bits of `model.predict(x)`. Models of the same structure share one recording, and x is converted once.
    `np.mean(predict_many(models, x), axis=0)` is the prediction of an ensemble.

    Raises the errors of `predict`, before the first output. The message has the model's number. The data have to be in
    memory.
    """
    forms = [Form(Parts(model)) for model in _listed_models(models)]
    batch_size, given = check_positive_integer("batch_size", batch_size), Given("predict", x)
    batches: list[Batch] = []
    for i, form in enumerate(forms):
        with _naming(i):
            batches.append(given.for_model(form))
    outputs: list[Any] = [None] * len(forms)

    def predict(i: int, stand_in: StandIn | None) -> None:
        parts = forms[i].parts if stand_in is None else stand_in.with_values_of(forms[i])
        outputs[i] = predicting.outputs(parts.model, batches[i].inputs, batch_size)

    for_each(forms, predict, Stop())
    return outputs


# ---- training --------------------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """The options that all trainings have in common."""

    epochs: int
    shuffle: bool
    seed: int | None
    split: float  # the share of the rows to evaluate
    metrics: dict[str, Metric | OfOutput]
    patience: int | None


class Fit:
    """The training of one model: its parts and its results."""

    data: Batch  # all rows, converted
    validation: DataGenerator | None = None  # the validation data, if they are given
    rows: np.ndarray  # the rows that the model gets
    held_out = 0  # the number of them to evaluate
    diverged: TrainingDiverged | None = None

    def __init__(self, model: Model, optimizer: Optimizer, loss: Function, batch_size: int, plan: Plan) -> None:
        self.model, self.optimizer, self.loss, self.batch_size, self.plan = model, optimizer, loss, batch_size, plan
        self.form = Form(Parts(model, optimizer, loss))

    def prepare(self) -> None:
        """Check the metrics and the split. Warn of a schedule that ends before the training."""
        split = self.plan.split
        if split != 0:
            self.held_out = door.count_to_hold_out(len(self.rows), split)
        names = Objective(self.loss, self.plan.metrics, set()).names
        self.history = History.of(names, split != 0 or self.validation is not None)
        full, last = divmod(len(self.rows) - self.held_out, self.batch_size)
        joins = last == 1 and full > 0 and door.trains_batch_norm(self.model)
        self.optimizer._schedule_state.warn_if_short(self.plan.epochs * (full + (last > 0) - joins))

    def check_weights(self, what: str, rows: np.ndarray) -> None:
        """Raise ValueError if there are weights, and all of these rows weigh 0."""
        weights = self.data.weights
        if weights is not None and not weights[rows].any():
            raise ValueError(f"{what}: all of {len(rows)} rows have sample_weight 0")

    def train(self, parts: Any, shown: list[ShownTogether], stop: Stop) -> None:
        """Train the model, or the stand-in that has its values, as `Model.fit` does."""
        model, optimizer, loss = parts
        epochs, metrics, warned_of = self.plan.epochs, self.plan.metrics, model._own.programs.warned_of
        batches, validation = self._batches()
        step = Step(model, Objective(loss, metrics, warned_of), optimizer)
        listeners: list[Listener] = []
        if validation is not None:
            of_evaluation = EvaluationStep(model, Objective(loss, metrics, warned_of))
            listeners.append(Validation(Evaluation(of_evaluation, validation, times=epochs)))
        listeners += shown
        if self.plan.patience is not None:
            callbacks = Callbacks([EarlyStopping(patience=self.plan.patience)])
            listeners.append(Called(callbacks, Training(model, optimizer, loss, self.history, metrics=metrics)))
        loop = Loop(epochs, listeners, self.history, stop)
        try:
            loop.run(lambda: epochs_of(step, ONE_PROCESS, batches, epochs, stop))
        except TrainingDiverged as error:
            self.diverged = error

    def _batches(self) -> tuple[DataGenerator, DataGenerator | None]:
        """Return the batches to train on, and those to evaluate, as `fit` draws them."""
        plan, own, rows, validation = self.plan, self.model._own, self.rows, self.validation
        rng = own.rng if plan.seed is None else make_rng("seed", plan.seed)
        if self.held_out:
            drawn_from = own.stream_of_split(len(rows), rng, drawn_anew=plan.seed is not None)
            training, held_out = door.training_and_held_out(len(rows), self.held_out, drawn_from)
            for part in (training, held_out):
                self.check_weights("validation_split", rows[part])
            validation = door.batches_of(self.data, door.IN_ORDER).restrict(rows[held_out])
            rows = rows[training]
        batches = DataGenerator.from_batch(self.data, self.batch_size, plan.shuffle, rng).restrict(rows)
        return (merge_single_rows(batches) if door.trains_batch_norm(self.model) else batches), validation


def _raise_if_diverged(fits: list[Fit]) -> None:
    diverged = [i for i, fit in enumerate(fits) if fit.diverged is not None]
    if diverged:
        first, *others = diverged
        too = f"; so did {', '.join(map(str, others))}" if others else ""
        error = TrainingDiverged(f"model {first} diverged: {fits[first].diverged}{too}")
        error.history = fits[first].history  # type: ignore[attr-defined]
        raise error


# ---- data ------------------------------------------------------------------------------------------------------------


class Given:
    """Rows that all models get: converted once for each kind of model, and checked once for models made alike.

    `expected` are the columns that frames must have, if a model does not know its columns.
    """

    def __init__(self, name: str, x: Any, y: Any = None, weights: Any = None, expected: door.Names = None) -> None:
        self.name, self.x, self.y, self.weights, self.expected = name, x, y, weights, expected
        self.names = input_column_names(x)
        self._converted: dict[tuple, Batch] = {}
        self._checked: set[tuple] = set()

    def for_model(self, form: Form) -> Batch:
        """Return the rows as arrays that the model and its loss take."""
        model, text = form.parts.model, form.text
        first = door.columns_of(model)
        kind = model.dtype, model.input_dtype, model.takes_indices, None if first is None else first.columns
        if first is None or not is_frame(self.x):
            door.check_columns(model, self.name, self.names, self.expected)
        if text not in self._checked:
            known = self._converted.get(kind)
            if known is None:
                self._converted[kind] = self._in_memory(self._check(form.parts, self.x, self.y, self.weights))
            else:
                self._check(form.parts, unpack_single(known.inputs), unpack_single(known.targets), known.weights)
            if text is not None:
                self._checked.add(text)
        return self._converted[kind]

    def _check(self, parts: Parts, x: Any, y: Any, weights: Any) -> Batch:
        model, _, loss = parts
        if loss is not None:
            return door.checked(model, self.name, x, y, weights, loss, self.expected)[0]
        inputs, _ = door.model_inputs(model, self.name, x)
        door.check_rows(model, self.name, inputs)
        door.check_indices(model, self.name, inputs)
        return Batch(inputs, ())

    def _in_memory(self, data: Batch) -> Batch:
        if Source in map(type, data.columns()):
            raise ValueError(f"{self.name}: expected data that are in memory; np.array(x) reads them")
        return Batch(tuple(map(to_contiguous, data.inputs)), tuple(map(to_contiguous, data.targets)), data.weights)


def _give_data(fits: list[Fit], given: Given, rows: Any, validation_rows: Any, validation_data: Any) -> None:
    """Give each training its data."""
    if _is_one_for_each(given.x, len(fits)) and _is_one_for_each(given.y, len(fits)):
        raise TypeError(
            f"x and y are lists of {len(fits)} arrays, and there are {len(fits)} models. All models get the same x and "
            "y: select the rows of each by rows=. If each array is a row, give np.array(x) and np.array(y)"
        )
    rows = [None] * len(fits) if rows is None else _for_each("rows", rows, len(fits))
    held_out = None if validation_rows is None else _for_each("validation_rows", validation_rows, len(fits))
    to_evaluate = None
    if validation_data is not None:
        evaluated = door.rows_to_evaluate(validation_data, "(x, y) or (x, y, weights)")
        to_evaluate = Given("validation_data's x", *evaluated, expected=given.names)
    for i, (fit, its_rows) in enumerate(zip(fits, rows, strict=True)):
        with _naming(i):
            fit.data = given.for_model(fit.form)
            count = fit.data.rows
            fit.rows = np.arange(count) if its_rows is None else _rows("rows", its_rows, count)
            fit.check_weights("rows", fit.rows)
            if held_out is not None:
                rows_to_evaluate = _rows("validation_rows", held_out[i], count)
                fit.check_weights("validation_rows", rows_to_evaluate)
                fit.validation = door.batches_of(fit.data, door.IN_ORDER).restrict(rows_to_evaluate)
            if to_evaluate is not None:
                fit.validation = door.batches_of(to_evaluate.for_model(fit.form), door.IN_ORDER)
    for fit in fits:
        door.remember_columns(fit.model, given.names)


def _is_one_for_each(data: Any, count: int) -> bool:
    """Return whether data are a list of `count` arrays, perhaps meant as one for each model."""
    return isinstance(data, list) and len(data) == count and all(isinstance(a, np.ndarray) and a.ndim for a in data)


def _rows(name: str, given: Any, n: int) -> np.ndarray:
    """Return the indices of given rows, int64, below n."""
    if isinstance(given, tuple) and len(given) == 2 and all(isinstance(part, np.ndarray) for part in given):
        raise TypeError(f"{name}: got a pair of arrays; for folds, give rows=[train for train, test in folds]")
    if getattr(given, "dtype", None) == np.bool_:
        raise TypeError(f"{name}: expected the indices of rows, got a mask; np.flatnonzero(mask) gives its indices")
    rows = as_indices(given, name)
    if rows.ndim != 1 or not rows.size:
        raise ValueError(f"{name}: expected the indices of some rows, (m,), got shape {rows.shape}")
    if (rows.view(np.uint64) >= n).any():
        raise_bad_index(name, n - 1, rows.shape, rows.dtype, rows)
    return rows


# ---- checks ----------------------------------------------------------------------------------------------------------


def _checked(models: Any, loss: Any, optimizers: Any, batch_size: Any, plan: Plan) -> list[Fit]:
    """Return the trainings. ValueError or TypeError, naming the model, if one of them is not possible."""
    models = _listed_models(models)
    optimizers = _for_each("optimizers", optimizers, len(models))
    is_one = isinstance(loss, Function | str) or not isinstance(loss, Iterable)  # `as_loss` refuses what is not a loss
    losses = [loss] * len(models) if is_one else _for_each("loss", loss, len(models))
    sizes = _for_each("batch_size", batch_size, len(models)) if isinstance(batch_size, Iterable) else None
    size = check_positive_integer("batch_size", batch_size) if sizes is None else 0
    fits: list[Fit] = []
    owners: dict[int, int] = {}  # the model's number, by the ids of what its training changes
    for i, model in enumerate(models):
        with _naming(i):
            losses[i] = door.as_loss(losses[i])
            door.check_optimizer(model, optimizers[i])
            its_size = size if sizes is None else check_positive_integer("batch_size", sizes[i])
        fits.append(Fit(model, optimizers[i], losses[i], its_size, plan))
        for its_own in _changed_by(fits[i]):
            if owners.setdefault(id(its_own), i) != i:
                raise ValueError(f"models {owners[id(its_own)]} and {i} share {_name(its_own)}; each needs its own")
    return fits


def _changed_by(fit: Fit) -> list[Any]:
    """List everything that a training changes."""
    model, optimizer, loss = fit.model, fit.optimizer, fit.loss
    buffers = *model.buffers().values(), *loss.buffers().values()
    return [optimizer, *model.parameters(), *optimizer.parameters, *loss.parameters(), *buffers]


def _name(changed: Any) -> str:
    """Describe one item of `_changed_by`."""
    if isinstance(changed, np.ndarray):
        return f"a buffer {changed.shape}"
    return f"the parameter {changed._description()}" if isinstance(changed, Tensor) else repr(changed)


def _listed_models(given: Any) -> list[Model]:
    """Return the given models as a list. ValueError if there are none."""
    models = _listed("models", given)
    if not models:
        raise ValueError("models: expected one or more, got none")
    for i, model in enumerate(models):
        if not isinstance(model, Model):
            raise TypeError(f"model {i}: expected a Model, got {model!r}")
    return models


def _listed(name: str, given: Any) -> list[Any]:
    if isinstance(given, Model) or not isinstance(given, Iterable):
        raise TypeError(f"{name}: expected a list with one for each model, got {given!r}")
    return list(given)


def _for_each(name: str, given: Any, n: int) -> list[Any]:
    """Return what is given as a list. ValueError unless it has one item for each of n models."""
    listed = _listed(name, given)
    if len(listed) != n:
        raise ValueError(f"{name}: expected one for each of {n} models, got {len(listed)}")
    return listed


@contextmanager
def _naming(i: int) -> Iterator[None]:
    """Raise errors of the body again, with the number of the model."""
    try:
        yield
    except (ValueError, TypeError, IndexError) as error:
        kind = next(kind for kind in (ValueError, TypeError, IndexError) if isinstance(error, kind))
        raise kind(f"model {i}: {error}") from error
