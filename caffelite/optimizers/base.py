"""Optimizer: what all update rules share.

A Model keeps its parameters side by side in one vector, and their gradients in another, so an optimizer usually has one
update to make. `Optimizer.runs` finds such neighbours wherever they are.

What changes between steps lies in memory, where kernels read it each time: the hyper-parameters, in a row for each
group of parameters, and the step t of a schedule. So a step need not be recorded anew when they change.
"""

from __future__ import annotations

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, NoReturn

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import FLOATS, as_real, nonnegative, positive
from caffelite.core.recording import in_python
from caffelite.core.tensor import Tensor
from caffelite.optimizers.schedules import Followed, tabulated, writeable

INF = float("inf")


class TrainingDiverged(RuntimeError):
    """The loss or a gradient is not finite. Parameters are as they were before the step; `fit` adds `history`."""


class Parameters(tuple):
    """An optimizer's parameters, for good: what would change a list raises TypeError."""

    def _refuse(self, *arguments: Any, **options: Any) -> NoReturn:
        raise TypeError("an optimizer's parameters cannot be changed; make another optimizer")

    append = extend = insert = remove = pop = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse


class Group(Mapping):
    """Parameters with hyper-parameters of their own, by name: `group["lr"]`, and `group["parameters"]`.

    Hyper-parameters may be set at any time, and are checked as the optimizer's. `group["lr"]` is the next step's rate;
    setting it, to a number or a schedule, ends the schedule that the group has followed.
    """

    def __init__(self, optimizer: Optimizer, index: int) -> None:
        self._optimizer, self._index = optimizer, index

    def __getitem__(self, name: str) -> Any:
        if name == "parameters":
            members = zip(self._optimizer.parameters, self._optimizer._group_of, strict=True)
            return Parameters(p for p, group in members if group == self._index)
        return self._optimizer._hyper_of(self._index)[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name == "parameters":
            self._optimizer.parameters = value
        self._optimizer._set(self._index, name, value)

    def __iter__(self) -> Iterator[str]:
        return iter(("parameters", *self._optimizer.hyper_names))

    def __len__(self) -> int:
        return 1 + len(self._optimizer.hyper_names)

    def __repr__(self) -> str:
        return f"Group({self._text()})"

    def _text(self) -> str:
        hyper = ", ".join(f"{name}={self[name]:g}" for name in self._optimizer.hyper_names)
        return f"{len(self['parameters'])} parameters, {hyper}"


class Run(NamedTuple):
    """Parameters of one group whose values lie side by side in memory, as do their gradients; both as vectors."""

    data: np.ndarray
    gradient: np.ndarray
    state: np.ndarray | None  # this run's part of what the rule keeps, a row for each of its vectors
    hyper: np.ndarray
    used: np.ndarray | None  # the rows whose gradient may not be 0, of a parameter that notes them: a run of its own …
    is_sparse: bool  # … of which no others are to change
    start: int  # where the run begins among all elements of its dtype
    parameters: slice  # which of the optimizer's parameters it is


class Optimizer(ABC):
    """An update rule for a list of parameters.

    Parameters
    ----------
    parameters : iterable of Tensor, or of dict
        Dicts are groups with hyper-parameters of their own, by the names of the constructor's arguments:
        `[{"parameters": ps, "lr": 1e-4}, {"parameters": qs}]`. ValueError if there are none, or a Tensor comes twice;
        TypeError for anything but Tensors, and for names that the rule doesn't have.
    lr : float or schedule
        The learning rate: a number, or a function of the step t = 0, 1 … with `steps`, such as `schedules.cosine`
        gives. Its values are tabulated for t = 0 … steps, and the last one stays. ValueError below 0 or for NaN.
    **hyper : float
        Further hyper-parameters, checked as lr is, and for being below what `limits` says, if it names them. The
        kernels read them from a row of `self.hyper`, float64, for each group, lr first.

    A subclass writes `step`, which changes the parameters that have a gradient. Before it runs, gradients are checked
    (`TrainingDiverged` if one is not finite) or, by `step(clip_norm=c)`, clipped (`clip_gradients`, which checks them
    as well); after it, graphs that still need the old values know that they are gone, and schedules move on. `class
    SGD(Optimizer, recordable=True)` declares that what it overrides computes with kernels alone. Without that, a
    recorded step calls back what a class overrides: `step`, if it or anything that it may use is overridden. A
    `zero_grad` of one's own may leave gradients as it likes, which decides what happens next, so steps with one are
    recorded each time anew.
    """

    recordable = False
    runs_in_python = False  # whether `step` is called back at replays, or recorded as kernels
    limits: ClassVar[dict[str, float]] = {}
    nonnegative_state: ClassVar[frozenset[str]] = frozenset()  # which of the rule's own vectors are never below 0
    # What changes the rows of a parameter that were not used, too: hyper-parameters above 0, or, None, the rule itself.
    changes_all: ClassVar[frozenset[str] | None] = frozenset()
    unwatched = frozenset({"_layout", "_runs"})  # as Function's
    _kept: dict[np.dtype, np.ndarray] | None = None
    _kept_names: tuple[str, ...] = ()
    _layout: list[np.ndarray | None]  # the arrays for which `_runs` was found
    _runs: list[Run]

    def __init__(self, parameters: Iterable[Any], lr: Any = 0.0, **hyper: Any) -> None:
        defaults = {"lr": lr, **hyper}
        groups = self._as_groups(parameters, defaults)
        self._parameters = Parameters(p for group in groups for p in group["parameters"])
        self._group_of = tuple(i for i, group in enumerate(groups) for _ in group["parameters"])
        for p in self._parameters:
            if not isinstance(p, Tensor):
                raise TypeError(f"{type(self).__name__} takes Tensors, got {type(p).__name__}")
            if p.function is not None:
                raise ValueError(f"{type(self).__name__} takes leaves, got {p!r}")
        if len(set(self._parameters)) < len(self._parameters):
            raise ValueError(f"{type(self).__name__} got a parameter twice")
        self._followed = Followed(len(groups))
        rows = []
        for i, group in enumerate(groups):
            options = {name: group.get(name, default) for name, default in defaults.items()}
            if callable(options["lr"]):
                rates = tabulated(options["lr"])
                self._followed.begin(i, rates)
                options["lr"] = float(rates[0])
            rows.append(self._checked(self._numbers(**options), i))
        self.hyper_names = tuple(rows[0])
        self._hyper = np.array([list(row.values()) for row in rows])
        self._forget_runs()

    def __getattr__(self, name: str) -> Any:
        if "_parameters" not in vars(self) and not name.startswith("__"):
            raise TypeError(f"{type(self).__name__}.__init__ has to call super().__init__(parameters, lr)")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        first, *others = self.groups
        return f"{type(self).__name__}({', '.join(map(repr, self.groups)) if others else first._text()})"

    def _as_groups(self, parameters: Any, defaults: dict[str, Any]) -> list[dict[str, Any]]:
        """The groups as dicts, their parameters as lists."""
        name = type(self).__name__
        if not isinstance(parameters, Iterable) or isinstance(parameters, Tensor | Mapping):
            raise TypeError(f"{name} takes a list of Tensors, model.parameters() say, got {parameters!r}")
        given = list(parameters)
        if not given:
            raise ValueError(f"{name} got no parameters; add the layers to the model first")
        if not isinstance(given[0], Mapping):
            return [{"parameters": given}]
        groups = []
        for i, group in enumerate(given):
            members = group.get("parameters", ()) if isinstance(group, Mapping) else None
            if not isinstance(members, Iterable) or isinstance(members, Tensor):
                raise TypeError(f'{name} takes groups such as {{"parameters": ps, "lr": 0.1}}, got {group!r}')
            if unknown := [key for key in group if key != "parameters" and key not in defaults]:
                raise TypeError(f"{name}: group {i} has {unknown}; expected some of {['parameters', *defaults]}")
            members = list(members)
            if not members:
                raise ValueError(f"{name}: group {i} has no parameters")
            groups.append({**group, "parameters": members})
        return groups

    def __init_subclass__(cls, recordable: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        ran_in_python = cls.runs_in_python
        own = {name for name, value in vars(cls).items() if not name.startswith("__") and hasattr(value, "__get__")}
        overridden = {name for name in own if any(name in vars(base) for base in cls.__mro__[1:])}
        cls.recordable = recordable
        cls.runs_in_python = not recordable and (ran_in_python or not overridden <= _NO_PART_OF_A_STEP)
        if "step" in own or cls.runs_in_python > ran_in_python:
            step = in_python(cls.step) if cls.runs_in_python else cls.step
            cls.step = _guarded(step)  # type: ignore[assignment, method-assign]
        if "zero_grad" in own and not recordable:
            cls.zero_grad = _done_each_time(cls.zero_grad)  # type: ignore[assignment, method-assign]

    @abstractmethod
    def step(self) -> None:
        """Change every parameter that has a gradient. Callers may say `step(clip_norm=c)`, which is seen to for it."""

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for p in self._parameters:
            p.zero_grad()

    def clip_gradients(self, norm: float) -> None:
        """Scale all gradients together so that their norm ‖g‖ is at most this: g ← g · min(1, norm / (‖g‖ + 10⁻⁶)).

        As PyTorch's `clip_grad_norm_`, but that ‖g‖ is summed in float64. `step(clip_norm=…)` begins with it. Raises
        TrainingDiverged, before anything is written, if ‖g‖ is not finite, and ValueError unless norm is above 0.
        R. Pascanu, T. Mikolov and Y. Bengio, "On the difficulty of training recurrent neural networks", ICML 2013.
        """
        limit, of_all = positive("norm", norm), None
        for run in self.runs():
            of_all = kernels.norm(run.gradient, of_all, self._say_which_gradient, run.used)
        for run in self.runs():
            kernels.limit_norm(run.gradient, of_all, limit, run.used)

    @property
    def parameters(self) -> Parameters:
        """What is updated, of all groups together, in the given order. It can't be changed: TypeError."""
        return self._parameters

    @parameters.setter
    def parameters(self, parameters: Any) -> None:
        self._parameters._refuse()

    # ---- hyper-parameters ---------------------------------------------------------------------------------------

    @property
    def hyper(self) -> np.ndarray:
        """The hyper-parameters, a row for each group: the array that recorded steps read. It can't be replaced."""
        return self._hyper

    @hyper.setter
    def hyper(self, value: Any) -> None:
        raise AttributeError(
            "optimizer.hyper cannot be replaced, because recorded steps read that array; set optimizer.lr or "
            f"optimizer.groups[0][name], name being one of {list(self.hyper_names)}"
        )

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups of parameters, one if none were given, with the hyper-parameters of each."""
        return tuple(Group(self, i) for i in range(len(self.hyper)))

    @property
    def lr(self) -> float:
        """The next step's learning rate. Of several groups it is the first one's; setting it sets it for all of them.

        Setting it, to a number or a schedule, ends the schedules that were followed.
        """
        return float(self.hyper[0, 0])

    @lr.setter
    def lr(self, value: Any) -> None:
        for group in range(len(self.hyper)):
            self._set(group, "lr", value)

    def scale_lr(self, factor: float) -> None:
        """Multiply the rates of all groups; schedules are followed on, their rates to come multiplied likewise.

        Raises ValueError for a factor that is negative or not finite.
        """
        self._refuse_in_recorded("lr")
        factor = nonnegative("factor", factor)
        self.hyper[:, 0] *= factor
        self._followed.scale(factor)

    def _numbers(self, **options: Any) -> dict[str, Any]:
        """The constructor's hyper-parameters as numbers by name, in the order in which the rule's kernel has them."""
        return options

    def _check(self, hyper: dict[str, float]) -> None:  # noqa: B027 (most rules have nothing to say here)
        """Raise ValueError for hyper-parameters of a group that don't go together. Any lr goes with any others."""

    def _checked(self, hyper: dict[str, Any], group: int) -> dict[str, float]:
        """A group's hyper-parameters as floats; TypeError or ValueError if they can't be."""
        floats = {name: nonnegative(name, value, self.limits.get(name, INF)) for name, value in hyper.items()}
        self._check(floats)
        self._check_sparse(floats, group)
        return floats

    def _check_sparse(self, hyper: dict[str, float], group: int) -> None:
        """Raise ValueError where the used rows of a sparse parameter can't be updated alone."""
        for i, (p, its_group) in enumerate(zip(self._parameters, self._group_of, strict=True)):
            if not p.is_sparse or its_group != group:
                continue
            which = f"parameter {i}, {p._description()}, is sparse"
            if self.changes_all is None:
                raise ValueError(f"{which}: {type(self).__name__} changes all rows; expected SGD, Adagrad or Adam")
            for name in self.changes_all:
                if hyper[name] > 0:
                    raise ValueError(f"{which}: {name} changes all rows; expected 0, got {hyper[name]:g}")

    def _hyper_of(self, group: int) -> dict[str, float]:
        return dict(zip(self.hyper_names, self.hyper[group].tolist(), strict=True))

    def _set(self, group: int, name: str, value: Any) -> None:
        """Set a hyper-parameter of a group, if it may be this value."""
        self._refuse_in_recorded(name)
        if name not in self.hyper_names:
            raise KeyError(f"{type(self).__name__} has {list(self.hyper_names)}, got {name!r}")
        rates = tabulated(value) if name == "lr" and callable(value) else None
        number = value if rates is None else float(rates[0])
        number = nonnegative(name, number, self.limits.get(name, INF))
        if name != "lr":
            self._check({**self._hyper_of(group), name: number})
            self._check_sparse({**self._hyper_of(group), name: number}, group)
        self.hyper[group, self.hyper_names.index(name)] = number
        if rates is not None:
            self._followed.begin(group, rates)
        elif name == "lr":
            self._followed.end(group)

    @staticmethod
    def _refuse_in_recorded(name: str) -> None:
        if kernels.recorder() is not None:
            raise TypeError(f"{name} was set inside a step that is being recorded; a replay would not repeat it")

    # ---- what a rule keeps, and the state -----------------------------------------------------------------------

    def keep(self, *names: str) -> None:
        """Keep a vector of each of these names, an element for each of the parameters', 0 at first (`Run.state`)."""
        self._kept_names = names
        self._kept = {
            dtype: np.zeros((len(names), sum(p.size for p in self._parameters if p.dtype == dtype)), dtype)
            for dtype in FLOATS
            if any(p.dtype == dtype for p in self._parameters)
        }
        self._forget_runs()

    def vectors(self) -> dict[str, np.ndarray]:
        """The rule's own vectors (velocities, say), by name: what is in its state besides hyper-parameters."""
        kept = (self._kept or {}).items()
        return {f"{name}.{dtype.name}": rows[i] for dtype, rows in kept for i, name in enumerate(self._kept_names)}

    def state_dict(self) -> dict[str, Any]:
        """What a training run needs to go on, by name: numbers, and arrays that are copies.

        The hyper-parameters, of several groups as arrays with an element for each; the rule's vectors; and for every
        schedule that is followed its rates, `schedule`, and the step t that is next, `t`, of several groups
        `schedule.0`, `t.0` and so on.
        """
        columns = self.hyper.T.copy() if len(self.hyper) > 1 else self.hyper[0].tolist()
        state = dict(zip(self.hyper_names, columns, strict=True))
        state |= {name: vector.copy() for name, vector in self.vectors().items()}
        for i, names in enumerate(self._names_of_schedules()):
            if (followed := self._followed[i]) is not None:
                state |= zip(names, (followed[0].copy(), followed[1]), strict=True)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a `state_dict`, its schedules included.

        Raises ValueError, before anything is written, for names, sizes and values that it could not have.
        """
        schedules = self._names_of_schedules()
        of_schedules = {name for names in schedules for name in names}
        mine = {name: value for name, value in self.state_dict().items() if name not in of_schedules}
        if mine.keys() != state.keys() - of_schedules:
            raise ValueError(f"{type(self).__name__} has the state {sorted(mine)}, got {sorted(state)}")
        new = {name: as_real(state[name], np.result_type(mine[name]), f"state {name!r}") for name in mine}
        for name, value in new.items():
            if np.shape(mine[name]) != value.shape:
                raise ValueError(f"state {name!r} has shape {np.shape(mine[name])}, got {value.shape}")
            if name.partition(".")[0] in self.nonnegative_state and not ((value >= 0) & (value < np.inf)).all():
                raise ValueError(f"state {name!r} must be finite and 0 or more everywhere")
        columns = np.array([new[name] for name in self.hyper_names]).reshape(len(self.hyper_names), -1)
        named = [dict(zip(self.hyper_names, row, strict=True)) for row in columns.T.tolist()]
        rows = [self._checked(row, group) for group, row in enumerate(named)]
        followed = [self._loaded_schedule(state, *names) for names in schedules]
        self.hyper[...] = [list(row.values()) for row in rows]
        for name, vector in self.vectors().items():
            vector[...] = new[name]
        for i, schedule in enumerate(followed):
            if schedule is None:
                self._followed.end(i)
            else:
                self._followed.begin(i, *schedule)

    def _names_of_schedules(self) -> list[tuple[str, str]]:
        """Under which names each group's schedule is in the state: its rates, and its step."""
        return (
            [("schedule", "t")]
            if len(self.hyper) == 1
            else [(f"schedule.{i}", f"t.{i}") for i in range(len(self.hyper))]
        )

    @staticmethod
    def _loaded_schedule(state: dict[str, Any], schedule: str, t: str) -> tuple[np.ndarray, int] | None:
        """The rates and the step that a state has under these names; None where there is no schedule."""
        if schedule not in state and t not in state:
            return None
        rates, step = (as_real(state.get(name, np.nan), np.float64, f"state {name!r}") for name in (schedule, t))
        if rates.ndim != 1 or rates.size < 2 or not ((rates >= 0) & (rates < np.inf)).all():
            raise ValueError(f"state {schedule!r} must be a vector of rates, finite and 0 or more")
        if step.ndim != 0 or not 0 <= step < 2**53 or step != np.floor(step):
            raise ValueError(f"state {t!r} must be a number of steps, got {state.get(t)!r}")
        return rates, int(step)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_layout": [], "_runs": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({name: writeable(value) for name, value in state.items()})

    # ---- runs ---------------------------------------------------------------------------------------------------

    def _update(self, rule: str) -> None:
        """Update every run by a rule of `kernels.update` that needs nothing but what the run has."""
        for run in self.runs():
            kernels.update(rule, *run[:4], used=run.used, is_sparse=run.is_sparse)

    def runs(self) -> list[Run]:
        """The parameters that have a gradient, neighbours in memory together."""
        layout = [array for p in self._parameters for array in (p._data, p._present_gradient(), p._used_rows)]
        if len(layout) != len(self._layout) or not all(map(operator.is_, layout, self._layout)):
            self._layout, self._runs = layout, self._find_runs()
        return self._runs

    def _forget_runs(self) -> None:
        self._layout, self._runs = [], []

    def _find_runs(self) -> list[Run]:
        runs: list[Run] = []
        position = dict.fromkeys(FLOATS, 0)
        for i, (p, group) in enumerate(zip(self._parameters, self._group_of, strict=True)):
            start, parameters = position[p.dtype], slice(i, i + 1)
            position[p.dtype] += p.size
            present = p._present_gradient()
            if present is None:
                continue
            data, gradient = _vector(p._data), _vector(present)
            last = runs[-1] if runs and runs[-1].used is None and p._used_rows is None else None
            if last and last.data.dtype == p.dtype and last.parameters.stop == i and self._group_of[i - 1] == group:
                both_data, both_gradients = _joined(last.data, data), _joined(last.gradient, gradient)
                if both_data is not None and both_gradients is not None:
                    data, gradient, start = both_data, both_gradients, last.start
                    parameters = slice(last.parameters.start, i + 1)
                    runs.pop()
            state = None if self._kept is None else self._kept[p.dtype][:, start : start + data.size]
            runs.append(Run(data, gradient, state, self.hyper[group], p._used_rows, p.is_sparse, start, parameters))
        return runs

    def _check_gradients(self) -> None:
        for run in self.runs():
            kernels.all_finite(run.gradient, self._say_which_gradient, run.used)

    def _say_which_gradient(self, gradient: np.ndarray) -> None:
        for i, p in enumerate(self._parameters):
            if p._gradient is not None and not np.isfinite(p._gradient).all():
                raise TrainingDiverged(f"the gradient of parameter {i}, {p.name or 'Tensor'} {p.shape}, is not finite")
        raise TrainingDiverged("the norm of all gradients together is not finite")


# What a class may override without having its step called back.
_NO_PART_OF_A_STEP = {"zero_grad", "_numbers", "_check", "vectors", "state_dict", "load_state_dict"}


def _guarded(step: Callable[[Optimizer], None]) -> Callable[[Optimizer], None]:
    """A step that checks or clips the gradients before its first write, and says afterwards that parameters have
    changed."""

    @functools.wraps(step)
    def guarded(self: Optimizer, *, clip_norm: float | None = None) -> None:
        recording = kernels.recorder()
        if recording is not None:
            recording.note_optimizer(self._followed)
            if not self.runs_in_python:
                recording.note_optimizer(self)
        if clip_norm is None:
            self._check_gradients()
        else:
            self.clip_gradients(clip_norm)
        try:
            step(self)
        finally:
            for p in self._parameters:
                p._note_change()
        if type(self).step is guarded:  # and not a base's, which the class's own step has called
            self._followed.move(self.hyper)

    return guarded


def _done_each_time(zero_grad: Callable[[Optimizer], None]) -> Callable[[Optimizer], None]:
    """A zero_grad that is called in every step, after which gradients may be there or not: nothing to be replayed."""
    called_back = in_python(zero_grad)

    @functools.wraps(zero_grad)
    def done(self: Optimizer) -> None:
        recording = kernels.recorder()
        if recording is not None:
            recording.note_unrepeatable()
        called_back(self)

    return done


def _vector(array: np.ndarray) -> np.ndarray:
    """A contiguous array as a vector over the same memory."""
    return array.reshape(-1)


def _joined(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """The vector that a and b make up together, if they are neighbours in one."""
    if a.base is None or a.base is not b.base or a.base.ndim != 1 or not a.base.flags.c_contiguous:
        return None
    origin, start_a, start_b = (array.__array_interface__["data"][0] for array in (a.base, a, b))
    if start_a + a.nbytes != start_b:
        return None
    first = (start_a - origin) // a.itemsize
    return a.base[first : first + a.size + b.size]
