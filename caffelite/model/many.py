"""fit_many: many small models trained at once, each as `Model.fit` trains it, on several threads.

A small model's training is short, and a good part of it is recording. So models that are made alike share that: each
thread has a stand-in for them, a copy of one with Programs of its own, which takes over the values of the next model,
is trained, and gives them back. `Form` says what is alike, and what the values are. A model whose steps call Python, or
that is like no other, is trained where it is.

A thread trains one model after the other, whichever is next, and runs the kernels of its steps alone. Between the
replays, of 50 ms at most, it looks whether somebody wants the training to stop.
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

WAKING = 0.05  # seconds of waiting after which this thread looks for a Ctrl-C, which the system may give to another one
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
    """Train many small models on the same data at once, on as many threads as `get_num_threads()` says.

    Each model, its optimizer and its History end with the bits that `model.fit(x, y, …, verbose=0)` gives alone, on any
    number of threads. For seeds, learning rates and folds, say; it is fastest where models are made alike but for the
    values of their parameters and the numbers of their optimizers, and have no Functions of one's own.

    Parameters
    ----------
    models : iterable of Model
        Any models; none may share parameters or buffers with another one.
    x, y : array-like (n, …)
        As for `fit`; checked and converted once.
    loss : Function, or a list with one for each model
    optimizers : iterable of Optimizer
        One for each model.
    epochs, batch_size, shuffle
        As for `fit`.
    seed : int, optional
        For the orders, the same in all models. Without it, each draws from the model's own stream, as `fit` does.
    rows : iterable of array-like of int, optional
        The rows that each model is trained on, as if it were given x[rows] and y[rows]:
        `[train for train, test in KFold(5).split(x)]`. A row may be there several times. None: all rows.

    Returns a History for each model, with its losses.

    Raises
    ------
    ValueError, TypeError, IndexError
        Before the first step; with the model's number where it is about one.
    TrainingDiverged
        When all others are trained, if a loss or a gradient was not finite; that model's parameters are as they were
        before that step. `histories` are all models', `history` is that of the first one that diverged.
    KeyboardInterrupt
        On Ctrl-C; each model has taken a whole number of steps. `histories` are all models'.
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
    """The training of one model: what belongs to it, and what came of it."""

    data: DataGenerator  # of all rows, converted
    rows: np.ndarray | None = None
    diverged: TrainingDiverged | None = None

    def __init__(self, model: Model, optimizer: Optimizer, loss: Function) -> None:
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.form = Form(model, optimizer, loss)
        self.history = History({"loss": []})

    def step(self) -> Step:
        """The step that trains the model itself."""
        return _step(self.model, self.loss, self.optimizer)


# ---- models that are made alike --------------------------------------------------------------------------------------


class Form:
    """How all that a training works with is made, and the arrays and Tensors in it, in an order that follows from that.

    Where two have the same `text`, their steps do the same, each with its own arrays. It is None where that can't be
    known: where steps call Python, or something is neither a Function, Tensor, optimizer or array, nor a container of
    such, nor a constant. What an array holds counts where it is a constant, too, of a Function, for a step may look.
    """

    def __init__(self, model: Model, optimizer: Optimizer, loss: Function) -> None:
        self.arrays: list[np.ndarray] = []
        self.tensors: list[Tensor] = []
        self._text: list[Any] = []
        self._numbers: dict[int, int] = {}  # of the objects, by their ids, as they were met
        self._changing = {id(buffer) for buffer in model.buffers().values()}
        self._in_optimizer = False  # whose arrays all change
        is_known = self._note(model)
        self._in_optimizer = True
        is_known = is_known and self._note(optimizer)
        self._in_optimizer = False
        self.own = len(self.arrays)  # these are the model's and the optimizer's; the loss may be other models', too
        self.text = tuple(self._text) if is_known and self._note(loss) else None

    def _note(self, x: Any) -> bool:
        """Note what x is and what is in it; whether all of that is known."""
        text, number = self._text, self._numbers.get(id(x))
        text.append(type(x))
        if isinstance(x, CONSTANTS):
            text.append(repr(x) if isinstance(x, float | np.floating) else x)  # for 0.0 and −0.0 are equal
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
    """A model, optimizer and loss that are trained in the place of those of any `Fit` that is made alike.

    `with stand_in.of(fit)` they have its values, which it has back afterwards.
    """

    def __init__(self, fit: Fit) -> None:
        model, optimizer, loss = copy.deepcopy((fit.model, fit.optimizer, fit.loss))
        self.form = Form(model, optimizer, loss)
        self.step = _step(model, loss, optimizer)

    @contextmanager
    def of(self, fit: Fit) -> Iterator[Step]:
        """The step that trains in its place."""
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
                if theirs.flags.writeable:  # else it has not changed
                    theirs[...] = mine
            for t, other in tensors:
                other._has_gradient, other._version[0] = t._has_gradient, t._version[0]


def _step(model: Model, loss: Function, optimizer: Optimizer) -> Step:
    return Step(model, Objective(loss, {}, model._own.programs.warned_of), optimizer)


def _stand_in(fit: Fit) -> StandIn | None:
    """One for those that are like this; None where classes have their own way of being copied, and it is no other."""
    try:
        made = StandIn(fit)
    except Exception:
        return None
    return made if made.form.text == fit.form.text else None


# ---- training --------------------------------------------------------------------------------------------------------


class Stop:
    """Ends all trainings, each after the step under way, as a Ctrl-C ends one."""

    def __init__(self) -> None:
        self.pending = np.zeros(1, np.int32)  # anything but 0 does

    def held(self) -> AbstractContextManager:
        """What a training does not look at it in."""
        return nullcontext()


def _train(fits: list[Fit], epochs: int, begin: Callable[[Fit, Step, Stop], InMemory]) -> None:
    """Train all models, on several threads; a divergence is raised when the others are trained."""
    stop = Stop()
    left = iter(fits)
    threads = min(kernels.team_size(), len(fits))
    alike = Counter(fit.form.text for fit in fits)

    def work() -> None:
        stand_ins: dict[tuple | None, StandIn | None] = {None: None}
        with kernels.Alone() if threads > 1 else nullcontext():
            for fit in left:
                text = fit.form.text
                if text not in stand_ins:  # one that has a single model to stand in for gains nothing
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
    """Do the work on so many new threads, in the modes of this one, and wait for them.

    What one of them raises is raised when all have ended, and so is what a signal's handler raises here, a Ctrl-C; they
    are told to `stop` then.
    """
    errors: list[BaseException] = []
    modes, line = (mode.records_graph, mode.training), users_line()

    def note(error: BaseException) -> None:
        stop.pending[0] = 1
        errors.append(error)

    def run(ended: threading.Event) -> None:
        mode.records_graph, mode.training = modes
        started_by.set(line)
        try:
            work()
        except BaseException as error:
            note(error)
        finally:
            ended.set()

    # Thread.join takes a thread for one that has ended where a Ctrl-C interrupts it (CPython issue 90882).
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
    """The trainings, each with what is its own; ValueError or TypeError, naming the model, where they can't be."""
    models = _listed("models", models)
    if not models:
        raise ValueError("models: expected one or more, got none")
    for i, model in enumerate(models):
        if not isinstance(model, Model):
            raise TypeError(f"model {i}: expected a Model, got {model!r}")
    optimizers = _for_each("optimizers", optimizers, len(models))
    is_one = isinstance(loss, Function | str) or not isinstance(loss, Iterable)  # if it is no Function, see below
    losses = [loss] * len(models) if is_one else _for_each("loss", loss, len(models))
    fits: list[Fit] = []
    owners: dict[int, int] = {}  # which model's something is, by its id
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
    """What a training changes."""
    buffers = *fit.model.buffers().values(), *fit.loss.buffers().values()
    return [fit.optimizer, *fit.model.parameters(), *fit.optimizer.parameters, *fit.loss.parameters(), *buffers]


def _name(changed: Any) -> str:
    """What one of these is."""
    if isinstance(changed, np.ndarray):
        return f"a buffer {changed.shape}"
    return f"the parameter {changed._description()}" if isinstance(changed, Tensor) else repr(changed)


def _listed(name: str, given: Any) -> list[Any]:
    if not isinstance(given, Iterable):
        raise TypeError(f"{name}: expected a list with one for each model, got {given!r}")
    return list(given)


def _for_each(name: str, given: Any, n: int) -> list[Any]:
    """What is given, in a list; ValueError unless it is one for each of n models."""
    listed = _listed(name, given)
    if len(listed) != n:
        raise ValueError(f"{name}: expected one for each of {n} models, got {len(listed)}")
    return listed


@contextmanager
def _naming(i: int) -> Iterator[None]:
    """What is wrong inside is wrong with this model."""
    try:
        yield
    except (ValueError, TypeError, IndexError) as error:
        kind = next(kind for kind in (ValueError, TypeError, IndexError) if isinstance(error, kind))
        raise kind(f"model {i}: {error}") from error


def _give_data(fits: list[Fit], x: Any, y: Any, rows: Any) -> None:
    """Give each training its data, converted once for each kind of model, and checked once for those made alike."""
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
    """Whether data are a list of as many arrays, perhaps one for each model."""
    return isinstance(data, list) and len(data) == count and all(isinstance(a, np.ndarray) and a.ndim for a in data)


def _rows(given: Any, n: int) -> np.ndarray:
    """Indices of rows, int64, of which there are n."""
    if isinstance(given, tuple) and len(given) == 2 and all(isinstance(part, np.ndarray) for part in given):
        raise TypeError("rows: got a pair of arrays; of folds, rows=[train for train, test in folds] has the first")
    if getattr(given, "dtype", None) == np.bool_:
        raise TypeError("rows: expected the indices of rows, got a mask, of which np.flatnonzero(mask) makes indices")
    rows = as_indices(given, "rows")
    if rows.ndim != 1 or not rows.size:
        raise ValueError(f"rows: expected the indices of some rows, (m,), got shape {rows.shape}")
    if (rows.view(np.uint64) >= n).any():
        refuse_indices("rows", n - 1, rows.shape, rows.dtype, rows)
    return rows
