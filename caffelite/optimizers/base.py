"""Optimizer: the base class of all update rules.

A Model keeps its parameters side by side in one vector, and their gradients in another. So an optimizer usually makes a
single update. `Optimizer.runs` finds such neighbours, in a Model or elsewhere.

The hyper-parameters, a row for each group of parameters, and the step t of a schedule are in arrays. Kernels read these
at each step. So a step need not be recorded again if they change.
"""

from __future__ import annotations

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.migration_hints import NotToSet, no_attribute
from caffelite.core.arrays import FLOATS, as_real, nonnegative, positive
from caffelite.core.recording import in_python
from caffelite.optimizers.groups import Group, Parameters, as_groups
from caffelite.optimizers.schedules import Followed, tabulated, writeable
from caffelite.optimizers.segments import Run, find_runs

INF = float("inf")


class TrainingDiverged(RuntimeError):
    """The loss or a gradient is not finite. The parameters are those from before the step. `fit` adds `history`."""


class Optimizer(ABC):
    """An update rule for a list of parameters.

    Parameters
    ----------
    parameters : iterable of Tensor, or of dict
        Dicts are groups with their own hyper-parameters, named like the constructor's arguments:
        `[{"parameters": ps, "lr": 1e-4}, {"parameters": qs}]`. Raises ValueError if there are none, or if a Tensor
        comes twice. Raises TypeError for anything but Tensors, and for names that the rule does not have.
    lr : float or schedule
        The learning rate: a number, or a function of the step t = 0, 1 … with an attribute `steps`, such as
        `schedules.cosine(…)`. Its values are tabulated for t = 0 … steps. Later steps have the last one. Raises
        ValueError if a rate is below 0 or not finite.
    **hyper : float
        Further hyper-parameters, checked like lr. Kernels read them from `self.hyper`, float64, which has a row for
        each group, lr first.

    A subclass writes `step`, which changes the parameters that have a gradient, and declares what is special about its
    hyper-parameters. Before a step, the gradients are checked. If one is not finite, the step raises
    `TrainingDiverged`. `step(clip_norm=c)` also clips them (`clip_gradients`). After a step, schedules move on. The
    backward of an older graph that needs the old values then raises RuntimeError.

    `class SGD(Optimizer, recordable=True)` declares that the methods of the class compute with kernels only. Without
    it, a replay calls `step` in Python if the class overrides `step` or a method that `step` may use. If the class
    overrides `zero_grad`, each step is recorded again, because `zero_grad` decides which gradients there are.
    """

    recordable = False
    runs_in_python = False  # whether a replay calls `step` in Python, instead of its kernels

    limits: ClassVar[dict[str, float]] = {}  # upper limits of hyper-parameters, excluded
    flags: ClassVar[frozenset[str]] = frozenset()  # hyper-parameters that are True or False
    pairs: ClassVar[dict[str, tuple[str, str]]] = {}  # arguments that are two hyper-parameters, with their names
    needs: ClassVar[dict[str, str]] = {}  # {a: b}: if a is above 0, b must be too
    # The hyper-parameters that, if above 0, change all rows of a sparse parameter. None: the rule always does.
    changes_all: ClassVar[frozenset[str] | None] = frozenset()
    nonnegative_state: ClassVar[frozenset[str]] = frozenset()  # the rule's vectors that are never below 0

    not_recorded = frozenset({"_layout", "_runs"})  # see Function
    _kept: dict[np.dtype, np.ndarray] | None = None  # for each dtype, a row for each vector
    _kept_names: tuple[str, ...] = ()
    _stays_0: frozenset[str] = frozenset()  # hyper-parameters whose vector is missing; see `keep`
    learning_rate = NotToSet("learning_rate")
    _layout: list[np.ndarray | None]  # the arrays from which `_runs` was made
    _runs: list[Run]

    def __init__(self, parameters: Iterable[Any], lr: Any = 0.0, **hyper: Any) -> None:
        groups = as_groups(type(self).__name__, parameters, {"lr": lr, **hyper})
        self._parameters = Parameters(p for group in groups for p in group["parameters"])
        self._group_of = tuple(i for i, group in enumerate(groups) for _ in group["parameters"])
        self._followed, self._stays_0 = Followed(len(groups)), frozenset()
        rows = []
        for i, group in enumerate(groups):
            if callable(group["lr"]):
                rates = tabulated(group["lr"])
                self._followed.begin(i, rates)
                group["lr"] = float(rates[0])
            rows.append(self._checked(self._numbers(group), i))
        self.hyper_names = tuple(rows[0])
        self._hyper = np.array([list(row.values()) for row in rows])
        self._forget_runs()

    def __getattr__(self, name: str) -> Any:
        if "_parameters" not in vars(self) and not name.startswith("__"):
            raise TypeError(f"{type(self).__name__}.__init__ has to call super().__init__(parameters, lr)")
        raise no_attribute(type(self), name)

    def __repr__(self) -> str:
        first, *others = self.groups
        return f"{type(self).__name__}({', '.join(map(repr, self.groups)) if others else first.text()})"

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
        """Change every parameter that has a gradient. `step(clip_norm=c)` clips the gradients first."""

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for p in self._parameters:
            p.zero_grad()

    def clip_gradients(self, norm: float) -> None:
        """Scale all gradients by one factor. Their norm ‖g‖ is then at most this: g ← g · min(1, norm / (‖g‖ + 10⁻⁶)).

        Like PyTorch's `clip_grad_norm_`, except that ‖g‖ is summed in float64. `step(clip_norm=…)` calls this first.
        Raises TrainingDiverged, before any write, if ‖g‖ is not finite. Raises ValueError unless norm is above 0.
        R. Pascanu, T. Mikolov and Y. Bengio, "On the difficulty of training recurrent neural networks", ICML 2013.
        """
        limit, of_all = positive("norm", norm), None
        for run in self.runs():
            of_all = kernels.norm(run.gradient, of_all, self._say_which_gradient, run.used)
        for run in self.runs():
            kernels.limit_norm(run.gradient, of_all, limit, run.used)

    @property
    def parameters(self) -> Parameters:
        """The parameters of all groups, in the given order. Changing them raises TypeError."""
        return self._parameters

    @parameters.setter
    def parameters(self, parameters: Any) -> None:
        self._parameters._refuse()

    # ---- hyper-parameters ---------------------------------------------------------------------------------------

    @property
    def hyper(self) -> np.ndarray:
        """The hyper-parameters, a row for each group. Recorded steps read this array, so it can't be replaced."""
        return self._hyper

    @hyper.setter
    def hyper(self, value: Any) -> None:
        raise AttributeError(
            "optimizer.hyper cannot be replaced, because recorded steps read that array; set optimizer.lr or "
            f"optimizer.groups[0][name], name being one of {list(self.hyper_names)}"
        )

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups of parameters with their hyper-parameters. Without groups, all parameters are one group."""
        return tuple(Group(self, i) for i in range(len(self.hyper)))

    @property
    def lr(self) -> float:
        """The learning rate of the next step, in the first group.

        Setting it, to a number or a schedule, sets it for all groups, and ends their old schedules.
        """
        return float(self.hyper[0, 0])

    @lr.setter
    def lr(self, value: Any) -> None:
        for group in range(len(self.hyper)):
            self._set(group, "lr", value)

    def scale_lr(self, factor: float) -> None:
        """Multiply the rates of all groups, and all rates of their schedules, by a factor.

        Raises ValueError if the factor is negative or not finite.
        """
        self._refuse_in_recorded("lr")
        factor = nonnegative("factor", factor)
        self.hyper[:, 0] *= factor
        self._followed.scale(factor)

    def _numbers(self, group: dict[str, Any]) -> dict[str, Any]:
        """The hyper-parameters of a group by name, in the order that the rule's kernel needs."""
        numbers: dict[str, Any] = {}
        for name, value in group.items():
            if name in self.pairs:
                numbers |= zip(self.pairs[name], _pair(name, value), strict=True)
            elif name != "parameters":
                numbers[name] = float(bool(value)) if name in self.flags else value
        return numbers

    def _checked(self, hyper: dict[str, Any], group: int) -> dict[str, float]:
        """Check a group's hyper-parameters, and return them as floats. Raises TypeError or ValueError."""
        floats = {name: nonnegative(name, value, self.limits.get(name, INF)) for name, value in hyper.items()}
        self._check(floats, group)
        return floats

    def _check(self, hyper: dict[str, float], group: int) -> None:
        """Raise ValueError if a group's hyper-parameters, except lr, contradict each other or the parameters."""
        rule = type(self).__name__
        for name, other in self.needs.items():
            if hyper[name] > 0 and hyper[other] == 0:
                raise ValueError(f"{rule}: {name} needs {other} above 0")
        for name in self._stays_0:
            if hyper[name] > 0:
                raise ValueError(f"{rule}: {name} needs an optimizer that was made with {name} above 0")
        for i, (p, its_group) in enumerate(zip(self._parameters, self._group_of, strict=True)):
            if not p.is_sparse or its_group != group:
                continue
            which = f"parameter {i}, {p._description()}, is sparse"
            if self.changes_all is None:
                raise ValueError(f"{which}: {rule} changes all rows; expected SGD, Adagrad or Adam")
            for name in self.changes_all:
                if hyper[name] > 0:
                    raise ValueError(f"{which}: {name} changes all rows; expected 0, got {hyper[name]:g}")

    def _hyper_of(self, group: int) -> dict[str, float]:
        return dict(zip(self.hyper_names, self.hyper[group].tolist(), strict=True))

    def _set(self, group: int, name: str, value: Any) -> None:
        """Check a value, and set a hyper-parameter of a group to it."""
        self._refuse_in_recorded(name)
        if name not in self.hyper_names:
            raise KeyError(f"{type(self).__name__} has {list(self.hyper_names)}, got {name!r}")
        rates = tabulated(value) if name == "lr" and callable(value) else None
        number = value if rates is None else float(rates[0])
        number = nonnegative(name, number, self.limits.get(name, INF))
        if name != "lr":
            self._check({**self._hyper_of(group), name: number}, group)
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

    def keep(self, *names: str, **only_with: str) -> None:
        """Keep a vector for each name, with an element for each element of the parameters, first 0 (`Run.state`).

        `velocity="momentum"`: keep a velocity only if the momentum of a group is above 0. Otherwise momentum cannot be
        set later.
        """
        above_0 = {name for name, values in zip(self.hyper_names, self.hyper.T, strict=True) if values.any()}
        names += tuple([vector for vector, name in only_with.items() if name in above_0])
        sizes = {dtype: [p.size for p in self._parameters if p.dtype == dtype] for dtype in FLOATS}
        self._stays_0 = frozenset(only_with.values()) - above_0
        self._kept_names = names
        self._kept = {dtype: np.zeros((len(names), sum(n)), dtype) for dtype, n in sizes.items() if n and names}
        self._forget_runs()

    def vectors(self) -> dict[str, np.ndarray]:
        """The rule's own vectors, such as velocities, by name. They and the hyper-parameters are its state."""
        kept = (self._kept or {}).items()
        return {f"{name}.{dtype.name}": rows[i] for dtype, rows in kept for i, name in enumerate(self._kept_names)}

    def state_dict(self) -> dict[str, Any]:
        """Return the state by name, to continue the training later: numbers, and copies of arrays.

        The state has the hyper-parameters, the rule's vectors, and for each schedule its rates, `schedule`, and its
        next step, `t`. With several groups, a hyper-parameter is an array with an element for each group, and the
        schedules are `schedule.0`, `t.0` and so on.
        """
        columns = self.hyper.T.copy() if len(self.hyper) > 1 else self.hyper[0].tolist()
        state = dict(zip(self.hyper_names, columns, strict=True))
        state |= {name: vector.copy() for name, vector in self.vectors().items()}
        return state | self._followed.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a `state_dict`, its schedules included.

        Raises ValueError, before any write, for names, sizes and values that this optimizer cannot have.
        """
        of_schedules = {name for names in self._followed.names() for name in names}
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
        schedules = self._followed.read(state)
        self.hyper[...] = [list(row.values()) for row in rows]
        for name, vector in self.vectors().items():
            vector[...] = new[name]
        self._followed.load(schedules)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_layout": [], "_runs": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({name: writeable(value) for name, value in state.items()})

    # ---- runs ---------------------------------------------------------------------------------------------------

    def _update(self, rule: str) -> None:
        """Update every run by a rule of `kernels.update` that needs only the fields of a Run."""
        for run in self.runs():
            kernels.update(rule, run.data, run.gradient, run.state, run.hyper, used=run.used, is_sparse=run.is_sparse)

    def runs(self) -> list[Run]:
        """The parameters that have a gradient; neighbours in memory are one run."""
        layout = [array for p in self._parameters for array in (p._data, p._present_gradient(), p._used_rows)]
        if len(layout) != len(self._layout) or not all(map(operator.is_, layout, self._layout)):
            self._layout = layout
            self._runs = find_runs(self._parameters, self._group_of, self.hyper, self._kept)
        return self._runs

    def _forget_runs(self) -> None:
        self._layout, self._runs = [], []

    def _check_gradients(self) -> None:
        for run in self.runs():
            kernels.all_finite(run.gradient, self._say_which_gradient, run.used)

    def _say_which_gradient(self, gradient: np.ndarray) -> None:
        for i, p in enumerate(self._parameters):
            if p._gradient is not None and not np.isfinite(p._gradient).all():
                raise TrainingDiverged(f"the gradient of parameter {i}, {p.name or 'Tensor'} {p.shape}, is not finite")
        raise TrainingDiverged("the norm of all gradients together is not finite")


# If a class overrides only these methods, a replay need not call its `step` in Python.
_NO_PART_OF_A_STEP = {"zero_grad", "vectors", "state_dict", "load_state_dict", "learning_rate"}


def _guarded(step: Callable[[Optimizer], None]) -> Callable[[Optimizer], None]:
    """Wrap a step: check or clip the gradients before it, and note afterwards that the parameters have changed."""

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
        if type(self).step is guarded:  # not if a subclass's step calls this one by super()
            self._followed.move(self.hyper)

    return guarded


def _done_each_time(zero_grad: Callable[[Optimizer], None]) -> Callable[[Optimizer], None]:
    """Wrap a user's zero_grad: steps with it are recorded again each time, since it may leave some gradients."""
    called_back = in_python(zero_grad)

    @functools.wraps(zero_grad)
    def done(self: Optimizer) -> None:
        recording = kernels.recorder()
        if recording is not None:
            recording.note_unrepeatable()
        called_back(self)

    return done


def _pair(name: str, value: Any) -> tuple[Any, Any]:
    """The two values of a pair. TypeError or ValueError if the value is not a pair."""
    try:
        first, second = value
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name} must be a pair of numbers, such as (0.9, 0.999), got {value!r}") from None
    return first, second
