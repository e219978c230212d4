"""fit_many: many small models trained at once, each as `Model.fit` trains it, on several threads.

The training of a small model is short, and recording takes a large part of it. So models that are made alike share one
recording. Each thread has a stand-in, a copy of one of these models with its own Programs. The stand-in takes the
values of the next model, is trained, and gives the values back. `Form` says which models are alike, and what their
values are. A model whose steps call Python, or that is like no other, is trained itself.

A thread trains one model after the other and takes whichever is next. It runs the kernels of its steps alone. Its
replays take 50 ms at most; between them it looks whether the training has to stop.
"""

from __future__ import annotations

import contextvars
import copy
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from hashlib import sha256
from types import BuiltinFunctionType, FunctionType, NoneType
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import ARRAY_TYPES, as_indices, positive_integer, random_stream, refuse_indices
from caffelite.core.cautions import started_by, users_line
from caffelite.core.function import Function
from caffelite.core.interrupts import InterruptsBetweenSteps
from caffelite.core.modes import mode
from caffelite.core.tensor import Tensor
from caffelite.data.frames import is_frame, names_of_inputs
from caffelite.data.generator import DataGenerator, without_single_rows
from caffelite.model.model import Model
from caffelite.optimizers import Optimizer, TrainingDiverged
from caffelite.optimizers.schedules import Followed
from caffelite.training import door
from caffelite.training.history import History
from caffelite.training.in_memory import InMemory
from caffelite.training.objective import Objective
from caffelite.training.step import Step
from caffelite.training.team import ONE_PROCESS

WAKING = 0.05  # seconds of waiting after which this thread looks for a Ctrl-C: another thread may have got the signal
CONSTANTS: tuple[type, ...] = (bool, int, float, str, bytes, NoneType, frozenset, type, FunctionType)
CONSTANTS += (BuiltinFunctionType, np.dtype, np.generic)


def fit_many(
    models: Iterable[Model],
    x: Any,
    y: Any,
    *,
    loss: Function | Iterable[Function],
    optimizers: Iterable[Optimizer],
    epochs: int = 1,
    batch_size: int = 32,
    shuffle: bool = True,
    seed: int | None = None,
    rows: Iterable[Any] | None = None,
) -> list[History]:
    """Train many small models on the same data at once, on `get_num_threads()` threads.

    Each model, its optimizer and its History end with the same bits as after `model.fit(x, y, …, verbose=0)`, on any
    number of threads. Use it for many seeds, learning rates or folds. It is fastest if the models differ only in the
    values of their parameters and the numbers of their optimizers, and have no Functions of your own.

    Parameters
    ----------
    models : iterable of Model
        Any models that share no parameters or buffers with each other.
    x, y : array-like (n, …)
        As for `fit`; checked and converted once.
    loss : Function, or a list with one for each model
    optimizers : iterable of Optimizer
        One for each model.
    epochs, batch_size, shuffle
        As for `fit`.
    seed : int, optional
        For the orders, the same in all models. Without it, each model draws from its own stream, as in `fit`.
    rows : iterable of array-like of int, optional
        The rows that each model is trained on, as if it got x[rows] and y[rows]:
        `[train for train, test in KFold(5).split(x)]`. A row may occur several times. None means all rows.

    Returns a History for each model, with its losses.

    Raises
    ------
    ValueError, TypeError, IndexError
        Before the first step. The message has the model's number if the error is about one model.
    TrainingDiverged
        If a loss or a gradient is not finite, after all other models are trained. That model's parameters are as they
        were before that step. `histories` has every model's History, `history` is the first diverged one's.
    KeyboardInterrupt
        On Ctrl-C. Each model has taken a whole number of steps. `histories` has every model's History.
    """
    epochs, batch_size = positive_integer("epochs", epochs), positive_integer("batch_size", batch_size)
    if isinstance(seed, np.random.Generator | np.random.BitGenerator):
        raise TypeError(f"seed: expected an integer or None, got {seed!r}, which gives each model another order")
    random_stream("seed", seed)
    fits = _checked(models, loss, optimizers)
    _give_data(fits, x, y, rows)
    for fit in fits:
        count = fit.data.rows if fit.rows is None else len(fit.rows)
        fit.optimizer._followed.warn_if_short(epochs * -(-count // batch_size))

    def begin(fit: Fit, step: Step, stop: Stop) -> InMemory:
        rng = fit.model._own.rng if seed is None else random_stream("seed", seed)
        batches = DataGenerator(fit.data.x, fit.data.y, batch_size=batch_size, shuffle=shuffle, seed=rng)
        if fit.rows is not None:
            batches = batches.only(fit.rows)
        if door.trains_batch_norm(fit.model):
            batches = without_single_rows(batches)
        return InMemory(step, ONE_PROCESS, batches, epochs, stop)

    histories = [fit.history for fit in fits]
    try:
        _train(fits, epochs, begin)
    except (KeyboardInterrupt, TrainingDiverged) as error:
        error.histories = histories  # type: ignore[union-attr]
        raise
    for fit in fits:
        door.warn_of_overflow(fit.model)
    return histories


class Fit:
    """The training of one model: its parts and its results."""

    data: DataGenerator  # of all rows, converted
    rows: np.ndarray | None = None
    diverged: TrainingDiverged | None = None

    def __init__(self, model: Model, optimizer: Optimizer, loss: Function) -> None:
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.form = Form(model, optimizer, loss)
        self.history = History({"loss": []})

    def step(self) -> Step:
        """Return the step that trains the model itself."""
        return _step(self.model, self.loss, self.optimizer)


# ---- models that are made alike --------------------------------------------------------------------------------------


class Form:
    """A description of a training's model, optimizer and loss; and all their arrays and Tensors, in a fixed order.

    If two Forms have the same `text`, their steps do the same, each with its own arrays. `text` is None if that can't
    be known: steps call Python, or there is an object of an unknown type. The known types are Functions, Tensors,
    optimizers, arrays, constants, and containers of these. The values of an array count too if steps do not change it,
    because a step may depend on them.
    """

    def __init__(self, model: Model, optimizer: Optimizer, loss: Function) -> None:
        self.arrays: list[np.ndarray] = []
        self.tensors: list[Tensor] = []
        self._text: list[Any] = []
        self._numbers: dict[int, int] = {}  # the order in which objects were met, by their ids
        self._changing = {id(buffer) for buffer in model.buffers().values()}
        self._in_optimizer = False  # there, all arrays change
        is_known = self._note(model)
        self._in_optimizer = True
        is_known = is_known and self._note(optimizer)
        self._in_optimizer = False
        self.own = len(self.arrays)  # the model's and the optimizer's; models may share the loss
        self.text = tuple(self._text) if is_known and self._note(loss) else None

    def _note(self, x: Any) -> bool:
        """Note what x is and what is in it. Return whether all of that is known."""
        text, number = self._text, self._numbers.get(id(x))
        text.append(type(x))
        if isinstance(x, CONSTANTS):
            text.append(repr(x) if isinstance(x, float | np.floating) else x)  # since 0.0 == −0.0
            return True
        if number is not None:
            text.append(number)
            return True
        self._numbers[id(x)] = len(self._numbers)
        if type(x) in ARRAY_TYPES:
            self.arrays.append(x)
            changes = self._in_optimizer or id(x) in self._changing
            text += (x.shape, x.dtype, None if changes else sha256(x.tobytes()).digest())
            return True
        if isinstance(x, Tensor):
            self.tensors.append(x)
            text.append(x._requires_grad)
            parts = x._data, x._gradient, x._used_rows
            self._changing.update(map(id, parts))
            return x.function is None and self._note_all(parts)
        if isinstance(x, list | tuple):
            text.append(len(x))
            return self._note_all(x)
        if isinstance(x, dict):
            text += (len(x), *x)
            return self._note_all(x.values())
        if isinstance(x, Function | Optimizer | Followed):
            own = {name: part for name, part in vars(x).items() if name not in x.not_recorded}
            text += (len(own), *own)
            repeats = not x.runs_in_python and (x.recordable if isinstance(x, Optimizer) else True)
            return repeats and self._note_all(own.values())
        return False

    def _note_all(self, parts: Iterable[Any]) -> bool:
        return all(self._note(part) for part in parts)


class StandIn:
    """A model, optimizer and loss that are trained in place of those of any `Fit` that is made alike.

    Inside `with stand_in.of(fit)` they have the values of `fit`, which gets them back at the end.
    """

    def __init__(self, fit: Fit) -> None:
        model, optimizer, loss = copy.deepcopy((fit.model, fit.optimizer, fit.loss))
        self.form = Form(model, optimizer, loss)
        self.step = _step(model, loss, optimizer)

    @contextmanager
    def of(self, fit: Fit) -> Iterator[Step]:
        """Give the step that trains in place of `fit`."""
        arrays = list(zip(self.form.arrays, fit.form.arrays, strict=True))
        tensors = list(zip(self.form.tensors, fit.form.tensors, strict=True))
        for mine, theirs in arrays:
            mine[...] = theirs
        for t, other in tensors:
            t._has_gradient, t._version[0] = other._has_gradient, other._version[0]
        try:
            yield self.step
        finally:
            for mine, theirs in arrays[: self.form.own]:
                if theirs.flags.writeable:  # a read-only one has not changed
                    theirs[...] = mine
            for t, other in tensors:
                other._has_gradient, other._version[0] = t._has_gradient, t._version[0]


def _step(model: Model, loss: Function, optimizer: Optimizer) -> Step:
    return Step(model, Objective(loss, {}, model._own.programs.warned_of), optimizer)


def _stand_in(fit: Fit) -> StandIn | None:
    """Return a StandIn for this training; None if copies of its parts are not made alike."""
    try:
        made = StandIn(fit)
    except Exception:
        return None
    return made if made.form.text == fit.form.text else None


# ---- training --------------------------------------------------------------------------------------------------------


class Stop:
    """Ends all trainings, each after its current step, as a Ctrl-C ends one."""

    def __init__(self) -> None:
        self.pending = np.zeros(1, np.int32)  # not 0: stop

    def held(self) -> AbstractContextManager:
        """Return a context in which a training does not look at it."""
        return nullcontext()


def _train(fits: list[Fit], epochs: int, begin: Callable[[Fit, Step, Stop], InMemory]) -> None:
    """Train all models, on several threads. Raise TrainingDiverged at the end, if any has diverged."""
    stop = Stop()
    left = iter(fits)
    threads = min(kernels.team_size(), len(fits))
    alike = Counter(fit.form.text for fit in fits)

    def work() -> None:
        stand_ins: dict[tuple | None, StandIn | None] = {None: None}
        with kernels.Alone() if threads > 1 else nullcontext():
            for fit in left:
                text = fit.form.text
                if text not in stand_ins:  # a stand-in for a single model gains nothing
                    stand_ins[text] = _stand_in(fit) if alike[text] > threads else None
                stand_in = stand_ins[text]
                with nullcontext(fit.step()) if stand_in is None else stand_in.of(fit) as step:
                    train(fit, step)
                if stop.pending[0]:
                    return

    def train(fit: Fit, step: Step) -> None:
        run = begin(fit, step, stop)
        try:
            while run.epoch < epochs and not stop.pending[0]:
                done = run.epoch
                try:
                    run.run_until(min(epochs, run.last(done)))
                finally:
                    fit.history["loss"] += run.results(done)[:, 0].tolist()
        except TrainingDiverged as error:
            fit.diverged = error

    _on_threads(threads, work, stop)
    diverged = [i for i, fit in enumerate(fits) if fit.diverged is not None]
    if diverged:
        first, *others = diverged
        too = f"; so did {', '.join(map(str, others))}" if others else ""
        error = TrainingDiverged(f"model {first} diverged: {fits[first].diverged}{too}")
        error.history = fits[first].history  # type: ignore[attr-defined]
        raise error


def _on_threads(number: int, work: Callable[[], None], stop: Stop) -> None:
    """Run `work` on new threads, in the modes of this one, and wait for them.

    If one of them raises an exception, or a signal's handler does so here (a Ctrl-C), the others are asked to `stop`.
    The first exception is raised when all have ended.
    """
    errors: list[BaseException] = []
    modes, line = mode.state, users_line()

    def note(error: BaseException) -> None:
        stop.pending[0] = 1
        errors.append(error)

    def run(ended: threading.Event) -> None:
        mode.state = modes
        started_by.set(line)
        try:
            work()
        except BaseException as error:
            note(error)
        finally:
            ended.set()

    # If a Ctrl-C interrupts Thread.join, it takes the thread for ended (CPython issue 90882). So wait for events.
    ends = [threading.Event() for _ in range(number)]
    threads = [threading.Thread(target=contextvars.copy_context().run, args=(run, end)) for end in ends]
    try:
        with InterruptsBetweenSteps() as interrupts, interrupts.held():
            for thread in threads:
                thread.start()
    except BaseException as error:
        note(error)
    while True:
        try:
            for thread, end in zip(threads, ends, strict=True):
                while thread.ident is not None and not end.wait(WAKING):
                    pass
            break
        except BaseException as error:
            note(error)
    if errors:
        raise errors[0]


# ---- checks ----------------------------------------------------------------------------------------------------------


def _checked(models: Any, loss: Any, optimizers: Any) -> list[Fit]:
    """Return the trainings. ValueError or TypeError, naming the model, if one of them is not possible."""
    models = _listed("models", models)
    if not models:
        raise ValueError("models: expected one or more, got none")
    for i, model in enumerate(models):
        if not isinstance(model, Model):
            raise TypeError(f"model {i}: expected a Model, got {model!r}")
    optimizers = _for_each("optimizers", optimizers, len(models))
    is_one = isinstance(loss, Function | str) or not isinstance(loss, Iterable)  # `as_loss` refuses what is not a loss
    losses = [loss] * len(models) if is_one else _for_each("loss", loss, len(models))
    fits: list[Fit] = []
    owners: dict[int, int] = {}  # the model's number, by the ids of what its training changes
    for i, model in enumerate(models):
        with _naming(i):
            losses[i] = door.as_loss(losses[i])
            door.check_optimizer(model, optimizers[i])
        fits.append(Fit(model, optimizers[i], losses[i]))
        for its_own in _changed_by(fits[i]):
            if owners.setdefault(id(its_own), i) != i:
                raise ValueError(f"models {owners[id(its_own)]} and {i} share {_name(its_own)}; each needs its own")
    return fits


def _changed_by(fit: Fit) -> list[Any]:
    """List everything that a training changes."""
    buffers = *fit.model.buffers().values(), *fit.loss.buffers().values()
    return [fit.optimizer, *fit.model.parameters(), *fit.optimizer.parameters, *fit.loss.parameters(), *buffers]


def _name(changed: Any) -> str:
    """Describe one item of `_changed_by`."""
    if isinstance(changed, np.ndarray):
        return f"a buffer {changed.shape}"
    return f"the parameter {changed._description()}" if isinstance(changed, Tensor) else repr(changed)


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


def _give_data(fits: list[Fit], x: Any, y: Any, rows: Any) -> None:
    """Give each training its data: converted once for each kind of model, checked once for models made alike."""
    if _is_one_for_each(x, len(fits)) and _is_one_for_each(y, len(fits)):
        raise TypeError(
            f"x and y are lists of {len(fits)} arrays, and there are {len(fits)} models; all models get the same x and "
            "y, and rows= says which rows each one gets; if each array is a row, give np.array(x) and np.array(y)"
        )
    rows = [None] * len(fits) if rows is None else _for_each("rows", rows, len(fits))
    converted: dict[tuple, DataGenerator] = {}
    checked: set[tuple] = set()
    names = names_of_inputs(x)
    for i, (fit, its_rows) in enumerate(zip(fits, rows, strict=True)):
        first = door.columns_of(fit.model)
        kind = fit.model.dtype, fit.model.takes_indices, None if first is None else first.columns
        with _naming(i):
            if first is None or not is_frame(x):
                door.check_columns(fit.model, "x", names)
            if fit.form.text not in checked:
                its_x, its_y = (converted[kind].x, converted[kind].y) if kind in converted else (x, y)
                (inputs, targets, _), _ = door.checked(fit.model, "x", its_x, its_y, None, fit.loss)
                if kind not in converted:
                    converted[kind] = DataGenerator(inputs[0] if len(inputs) == 1 else inputs, targets)
                    if converted[kind].blocks is not None:
                        raise ValueError("fit_many takes data that are in memory; np.array(x) reads them")
                if fit.form.text is not None:
                    checked.add(fit.form.text)
            fit.data = converted[kind]
            fit.rows = None if its_rows is None else _rows(its_rows, len(fit.data._order))
    for fit in fits:
        door.remember_columns(fit.model, names)


def _is_one_for_each(data: Any, count: int) -> bool:
    """Return whether data are a list of `count` arrays, perhaps meant as one for each model."""
    return isinstance(data, list) and len(data) == count and all(isinstance(a, np.ndarray) and a.ndim for a in data)


def _rows(given: Any, n: int) -> np.ndarray:
    """Return the indices of given rows, int64, below n."""
    if isinstance(given, tuple) and len(given) == 2 and all(isinstance(part, np.ndarray) for part in given):
        raise TypeError("rows: got a pair of arrays; for folds, give rows=[train for train, test in folds]")
    if getattr(given, "dtype", None) == np.bool_:
        raise TypeError("rows: expected the indices of rows, got a mask; np.flatnonzero(mask) gives its indices")
    rows = as_indices(given, "rows")
    if rows.ndim != 1 or not rows.size:
        raise ValueError(f"rows: expected the indices of some rows, (m,), got shape {rows.shape}")
    if (rows.view(np.uint64) >= n).any():
        refuse_indices("rows", n - 1, rows.shape, rows.dtype, rows)
    return rows
