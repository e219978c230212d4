"""Optimizer: what all update rules have.

A Model keeps its parameters side by side in one vector, and their gradients in another, so an optimizer usually has one
update to make. `Optimizer.runs` finds such neighbours wherever they are.

What changes between steps is in memory, and kernels read it each time: the hyper-parameters, a row for each group of
parameters, and the step t of a schedule. So a step need not be recorded again when they change.
"""

from __future__ import annotations

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import FLOATS, as_real, nonnegative, positive
from caffelite.core.recording import in_python
from caffelite.optimizers.groups import Group, Parameters, as_groups
from caffelite.optimizers.runs import Run, find_runs
from caffelite.optimizers.schedules import Followed, tabulated, writeable

INF = float("inf")


class TrainingDiverged(RuntimeError):
    """The loss or a gradient is not finite. Parameters are as they were before the step; `fit` adds `history`."""


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
        Further hyper-parameters, checked as lr is. Kernels read them from a row of `self.hyper`, float64, for each
        group, lr first.

    A subclass writes `step`, which changes the parameters that have a gradient, and declares what is special about its
    hyper-parameters. Before a step, gradients are checked: `TrainingDiverged` if one is not finite. `step(clip_norm=c)`
    clips them too (`clip_gradients`). After a step, graphs that still need the old values know that they are gone, and
    schedules move on.

    `class SGD(Optimizer, recordable=True)` declares that what the class overrides computes with kernels alone. Without
    that, a recorded step calls `step` back if the class overrides it, or anything that it may use. A `zero_grad` of
    one's own decides which gradients there are, so steps with one are recorded again each time.
    """

    recordable = False
    runs_in_python = False  # whether `step` is called back at replays, or recorded as kernels

    limits: ClassVar[dict[str, float]] = {}  # hyper-parameters, and what they have to be below
    flags: ClassVar[frozenset[str]] = frozenset()  # hyper-parameters that are True or False
    pairs: ClassVar[dict[str, tuple[str, str]]] = {}  # arguments that are two hyper-parameters, with the names of these
    needs: ClassVar[dict[str, str]] = {}  # hyper-parameters, and which other has to be above 0 if they are
    # What changes all rows of a sparse parameter: hyper-parameters that are above 0, or, None, the rule itself.
    changes_all: ClassVar[frozenset[str] | None] = frozenset()
    nonnegative_state: ClassVar[frozenset[str]] = frozenset()  # which of the rule's own vectors are never below 0

    not_recorded = frozenset({"_layout", "_runs"})  # as Function's
    _kept: dict[np.dtype, np.ndarray] | None = None  # for each dtype, a row for each vector
    _kept_names: tuple[str, ...] = ()
    _stays_0: frozenset[str] = frozenset()  # hyper-parameters without the vector that they need; see `keep`
    _layout: list[np.ndarray | None]  # the arrays for which `_runs` was found
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
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

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
        """Change every parameter that has a gradient. Callers may say `step(clip_norm=c)`: it is clipped before."""

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
        """The parameters of all groups, in the given order. To change them is a TypeError."""
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
        """The groups of parameters, one if none were given, with the hyper-parameters of each."""
        return tuple(Group(self, i) for i in range(len(self.hyper)))

    @property
    def lr(self) -> float:
        """The next step's learning rate; of several groups, the first one's.

        Setting it, to a number or a schedule, sets it for all groups, and ends the schedules that were followed.
        """
        return float(self.hyper[0, 0])

    @lr.setter
    def lr(self, value: Any) -> None:
        for group in range(len(self.hyper)):
            self._set(group, "lr", value)

    def scale_lr(self, factor: float) -> None:
        """Multiply the rates of all groups, and the rates to come of their schedules.

        Raises ValueError for a factor that is negative or not finite.
        """
        self._refuse_in_recorded("lr")
        factor = nonnegative("factor", factor)
        self.hyper[:, 0] *= factor
        self._followed.scale(factor)

    def _numbers(self, group: dict[str, Any]) -> dict[str, Any]:
        """The hyper-parameters of a group by name, in the order in which the rule's kernel has them."""
        numbers: dict[str, Any] = {}
        for name, value in group.items():
            if name in self.pairs:
                numbers |= zip(self.pairs[name], _pair(name, value), strict=True)
            elif name != "parameters":
                numbers[name] = float(bool(value)) if name in self.flags else value
        return numbers

    def _checked(self, hyper: dict[str, Any], group: int) -> dict[str, float]:
        """A group's hyper-parameters as floats; TypeError or ValueError if they can't be."""
        floats = {name: nonnegative(name, value, self.limits.get(name, INF)) for name, value in hyper.items()}
        self._check(floats, group)
        return floats

    def _check(self, hyper: dict[str, float], group: int) -> None:
        """Raise ValueError for hyper-parameters of a group that don't go together. Any lr goes with any others."""
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
        """Set a hyper-parameter of a group, if it may be this value."""
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
        """Keep a vector of each of these names, an element for each of the parameters', 0 at first (`Run.state`).

        `velocity="momentum"`: keep a velocity only if the momentum of a group is above 0. If there is none, momentum
        cannot be set later.
        """
        above_0 = {name for name, values in zip(self.hyper_names, self.hyper.T, strict=True) if values.any()}
        names += tuple([vector for vector, name in only_with.items() if name in above_0])
        sizes = {dtype: [p.size for p in self._parameters if p.dtype == dtype] for dtype in FLOATS}
        self._stays_0 = frozenset(only_with.values()) - above_0
        self._kept_names = names
        self._kept = {dtype: np.zeros((len(names), sum(n)), dtype) for dtype, n in sizes.items() if n and names}
        self._forget_runs()

    def vectors(self) -> dict[str, np.ndarray]:
        """The rule's own vectors, such as velocities, by name: its state besides hyper-parameters."""
        kept = (self._kept or {}).items()
        return {f"{name}.{dtype.name}": rows[i] for dtype, rows in kept for i, name in enumerate(self._kept_names)}

    def state_dict(self) -> dict[str, Any]:
        """What a training run needs to go on, by name: numbers, and arrays that are copies.

        These are the hyper-parameters, of several groups as arrays with an element for each; the rule's vectors; and
        for each schedule that is followed its rates, `schedule`, and the step t that is next, `t`. Of several groups,
        these are `schedule.0`, `t.0` and so on.
        """
        columns = self.hyper.T.copy() if len(self.hyper) > 1 else self.hyper[0].tolist()
        state = dict(zip(self.hyper_names, columns, strict=True))
        state |= {name: vector.copy() for name, vector in self.vectors().items()}
        return state | self._followed.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a `state_dict`, its schedules included.

        Raises ValueError, before anything is written, for names, sizes and values that it could not have.
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
        """Update every run by a rule of `kernels.update` that needs nothing but what the run has."""
        for run in self.runs():
            kernels.update(rule, *run[:4], used=run.used, is_sparse=run.is_sparse)

    def runs(self) -> list[Run]:
        """The parameters that have a gradient, neighbours in memory together."""
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


# What a class may override without having its step called back.
_NO_PART_OF_A_STEP = {"zero_grad", "vectors", "state_dict", "load_state_dict"}


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


def _pair(name: str, value: Any) -> tuple[Any, Any]:
    """The two values of a pair; TypeError or ValueError if it is none."""
    try:
        first, second = value
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name} must be a pair of numbers, (0.9, 0.999) say, got {value!r}") from None
    return first, second
