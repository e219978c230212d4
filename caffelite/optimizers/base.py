"""Optimizer: the base class of all update rules.

A Model keeps its parameters side by side in one vector, and their gradients in another, so an optimizer usually makes a
single update. `Optimizer.segments` finds such neighbours, in a Model or elsewhere.

The hyper-parameters (a row for each group of parameters) and the step t of a schedule are in arrays, which kernels read
at each step. So a step need not be recorded again when they change.
"""

from __future__ import annotations

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.migration_hints import ForeignSetting, attribute_error
from caffelite._support.moved_modules import rename_attributes
from caffelite._support.warnings import warn
from caffelite.core.arrays import FLOATS, as_real, check_nonnegative, check_positive
from caffelite.core.python_callback import replay_in_python
from caffelite.optimizers.groups import Group, Parameters, as_groups
from caffelite.optimizers.schedules import ScheduleState, find_rate, scale_rates, tabulate, to_writeable
from caffelite.optimizers.segments import Segment, find_segments

INF = float("inf")


class TrainingDiverged(RuntimeError):
    """The loss or a gradient is not finite. The parameters are as they were before the step. `fit` adds `history`."""


@rename_attributes(
    _followed="_schedule_state",
    _group_of="_group_indices",
    _kept="_state_arrays",
    _kept_names="_state_names",
    _runs="_segments",
    _stays_0="_locked_at_zero",
)
class Optimizer(ABC):
    """An update rule for a list of parameters.

    Parameters
    ----------
    parameters : iterable of Tensor, or of dict
        Dicts are groups with their own hyper-parameters, named like the constructor's arguments:
        `[{"parameters": ps, "lr": 1e-4}, {"parameters": qs}]`. Raise ValueError if there are none, or if a Tensor
        occurs twice. Raise TypeError for anything but Tensors, and for names that the rule does not have.
    lr : float or schedule
        The learning rate: a number, or a function of the step t = 0, 1 … with an attribute `steps`, such as
        `schedules.cosine(…)`. Its values are tabulated for t = 0 … steps, and later steps use the last one. Raise
        ValueError if a rate is below 0 or not finite.
    **hyper : float
        Further hyper-parameters, checked like lr. Kernels read them from `self.hyper`, float64, which has a row for
        each group, with lr first.

    A subclass implements `step`, which changes the parameters that have a gradient, and declares what is special about
    its hyper-parameters. Each step first checks the gradients, and raises `TrainingDiverged` if one is not finite.
    `step(clip_norm=c)` also clips them (`clip_gradients`). After a step, schedules advance, and the backward of an
    older graph that needs the old values raises RuntimeError.

    `class SGD(Optimizer, recordable=True)` declares that the methods of the class compute with kernels only. Without
    it, a replay calls `step` in Python if the class overrides `step` or a method that `step` may use. If the class
    overrides `zero_grad`, each step is recorded again, because `zero_grad` decides which gradients exist.
    """

    recordable = False
    runs_in_python = False  # whether a replay calls `step` in Python, instead of its kernels

    limits: ClassVar[dict[str, float]] = {}  # upper limits of hyper-parameters, exclusive
    flags: ClassVar[frozenset[str]] = frozenset()  # hyper-parameters that are True or False
    pairs: ClassVar[dict[str, tuple[str, str]]] = {}  # arguments that stand for two hyper-parameters, with their names
    needs: ClassVar[dict[str, str]] = {}  # {a: b}: if a is above 0, b must be too
    # The hyper-parameters that change all rows of a sparse parameter if they are above 0. None: the rule always does.
    changes_all: ClassVar[frozenset[str] | None] = frozenset()
    nonnegative_state: ClassVar[frozenset[str]] = frozenset()  # the rule's vectors that are never below 0

    not_recorded = frozenset({"_layout", "_segments"})  # see Function
    _state_arrays: dict[np.dtype, np.ndarray] | None = None  # for each dtype, a row for each vector
    _state_names: tuple[str, ...] = ()
    _locked_at_zero: frozenset[str] = frozenset()  # hyper-parameters whose vector is missing; see `keep`
    learning_rate = ForeignSetting("learning_rate")
    _layout: list[np.ndarray | None]  # the arrays from which `_segments` was made
    _segments: list[Segment]

    def __init__(self, parameters: Iterable[Any], lr: Any = 0.0, **hyper: Any) -> None:
        groups = as_groups(type(self).__name__, parameters, {"lr": lr, **hyper})
        self._parameters = Parameters(p for group in groups for p in group["parameters"])
        self._group_indices = tuple(i for i, group in enumerate(groups) for _ in group["parameters"])
        self._schedule_state, self._locked_at_zero = ScheduleState(len(groups)), frozenset()
        rows = []
        for i, group in enumerate(groups):
            if callable(group["lr"]):
                rates = tabulate(group["lr"])
                self._schedule_state.begin(i, rates)
                group["lr"] = find_rate(rates, 0)
            rows.append(self._check_hyper(self._numbers(group), i))
        self.hyper_names = tuple(rows[0])
        self._hyper = np.array([list(row.values()) for row in rows])
        self._clear_segments()

    def __getattr__(self, name: str) -> Any:
        if "_parameters" not in vars(self) and not name.startswith("__"):
            raise TypeError(f"{type(self).__name__}.__init__ has to call super().__init__(parameters, lr)")
        raise attribute_error(type(self), name)

    def __repr__(self) -> str:
        first, *rest = self.groups
        return f"{type(self).__name__}({', '.join(map(repr, self.groups)) if rest else first.text()})"

    def __init_subclass__(cls, recordable: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        ran_in_python = cls.runs_in_python
        methods = {name for name, value in vars(cls).items() if not name.startswith("__") and hasattr(value, "__get__")}
        overridden = {name for name in methods if any(name in vars(base) for base in cls.__mro__[1:])}
        cls.recordable = recordable
        cls.runs_in_python = not recordable and (ran_in_python or not overridden <= _METHODS_OUTSIDE_STEP)
        if "step" in methods or cls.runs_in_python > ran_in_python:
            step = replay_in_python(cls.step) if cls.runs_in_python else cls.step
            cls.step = _wrap_step(step)
        if "zero_grad" in methods and not recordable:
            cls.zero_grad = _wrap_zero_grad(cls.zero_grad)  # type: ignore[assignment, method-assign]

    if TYPE_CHECKING:
        step: Callable[..., None]  # a subclass writes `step(self)`, and `__init_subclass__` adds clip_norm
    else:

        @abstractmethod
        def step(self) -> None:
            """Change every parameter that has a gradient. `step(clip_norm=c)` clips the gradients first."""

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for p in self._parameters:
            p.zero_grad()

    def clip_gradients(self, norm: float) -> None:
        """Scale all gradients to a norm ‖g‖ of at most `norm`: g ← g · min(1, norm / (‖g‖ + 10⁻⁶)).

        This is like PyTorch's `clip_grad_norm_`, but sums ‖g‖ in float64. `step(clip_norm=…)` calls it first. Raise
        TrainingDiverged, before any write, if ‖g‖ is not finite. Raise ValueError unless norm is above 0. R. Pascanu,
        T. Mikolov and Y. Bengio, "On the difficulty of training recurrent neural networks", ICML 2013.
        """
        limit = check_positive("norm", norm)
        total_norm: Any = None
        for segment in self.segments():
            total_norm = kernels.norm(segment.gradient, total_norm, self._raise_not_finite, segment.used_rows)
        for segment in self.segments():
            kernels.limit_norm(segment.gradient, total_norm, limit, segment.used_rows)

    @property
    def parameters(self) -> Parameters:
        """The parameters of all groups, in the given order. Attempts to change this list raise TypeError."""
        return self._parameters

    @parameters.setter
    def parameters(self, parameters: Any) -> None:
        self._parameters._raise_immutable()

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

        If you set it, to a number or a schedule, it applies to all groups and ends their old schedules.
        """
        return float(self.hyper[0, 0])

    @lr.setter
    def lr(self, value: Any) -> None:
        for group in range(len(self.hyper)):
            self._set_hyper(group, "lr", value)

    def scale_lr(self, factor: float, min_lr: float = 0.0) -> None:
        """Multiply the rates of all groups and their schedules by a factor, but not below `min_lr`.

        A rate that is already below `min_lr` stays as it is. Raise ValueError if a number is negative or not finite.
        """
        self._raise_if_recording("lr")
        factor, min_lr = check_nonnegative("factor", factor), check_nonnegative("min_lr", min_lr)
        scale_rates(self.hyper[:, 0], factor, min_lr)
        self._schedule_state.scale(factor, min_lr)

    def warn_of_rates(self, steps: int | None) -> None:
        """Warn if all rates are 0, or if a schedule ends within the next `steps` steps (None: unknown)."""
        if steps != 0 and not self.hyper[:, 0].any() and self._is_always_0():
            warn(
                "the learning rate is 0, so no step changes a parameter. Set optimizer.lr, or freeze the parameters: "
                "requires_grad = False"
            )
        else:
            self._schedule_state.warn_if_short(steps)

    def _is_always_0(self) -> bool:
        """Return whether all rates and schedules are 0. A user's rule may have no learning rate."""
        schedules = [self._schedule_state[group] for group in range(len(self.hyper))]
        are_0 = not any(schedule is not None and np.any(schedule[0]) for schedule in schedules)
        return are_0 and type(self).step.__module__.startswith("caffelite.")

    def _numbers(self, group: dict[str, Any]) -> dict[str, Any]:
        """Return a group's hyper-parameters by name, in the order that the rule's kernel expects."""
        numbers: dict[str, Any] = {}
        for name, value in group.items():
            if name in self.pairs:
                numbers |= zip(self.pairs[name], _unpack_pair(name, value), strict=True)
            elif name != "parameters":
                numbers[name] = float(bool(value)) if name in self.flags else value
        return numbers

    def _check_hyper(self, hyper: dict[str, Any], group: int) -> dict[str, float]:
        """Check a group's hyper-parameters, and return them as floats. Raise TypeError or ValueError."""
        floats = {name: check_nonnegative(name, value, self.limits.get(name, INF)) for name, value in hyper.items()}
        self._check_combination(floats, group)
        return floats

    def _check_combination(self, hyper: dict[str, float], group: int) -> None:
        """Raise ValueError if a group's hyper-parameters, except lr, contradict each other or the parameters."""
        rule = type(self).__name__
        for name, other in self.needs.items():
            if hyper[name] > 0 and hyper[other] == 0:
                raise ValueError(f"{rule}: {name} needs {other} above 0")
        for name in self._locked_at_zero:
            if hyper[name] > 0:
                raise ValueError(f"{rule}: {name} needs an optimizer that was made with {name} above 0")
        for i, (p, parameter_group) in enumerate(zip(self._parameters, self._group_indices, strict=True)):
            if not p.is_sparse or parameter_group != group:
                continue
            label = f"parameter {i}, {p._description()}, is sparse"
            if self.changes_all is None:
                raise ValueError(f"{label}: {rule} changes all rows; expected SGD, Adagrad or Adam")
            for name in self.changes_all:
                if hyper[name] > 0:
                    raise ValueError(f"{label}: {name} changes all rows; expected 0, got {hyper[name]:g}")

    def _hyper_values(self, group: int) -> dict[str, float]:
        return dict(zip(self.hyper_names, self.hyper[group].tolist(), strict=True))

    def _set_hyper(self, group: int, name: str, value: Any) -> None:
        """Check a value, and set a hyper-parameter of a group to it."""
        self._raise_if_recording(name)
        if name not in self.hyper_names:
            raise KeyError(f"{type(self).__name__} has {list(self.hyper_names)}, got {name!r}")
        rates = tabulate(value) if name == "lr" and callable(value) else None
        number = value if rates is None else find_rate(rates, 0)
        number = check_nonnegative(name, number, self.limits.get(name, INF))
        if name != "lr":
            self._check_combination({**self._hyper_values(group), name: number}, group)
        self.hyper[group, self.hyper_names.index(name)] = number
        if rates is not None:
            self._schedule_state.begin(group, rates)
        elif name == "lr":
            self._schedule_state.end(group)

    @staticmethod
    def _raise_if_recording(name: str) -> None:
        if kernels.recorder() is not None:
            raise TypeError(f"{name} was set inside a step that is being recorded; a replay would not repeat it")

    # ---- a rule's vectors, and the state ------------------------------------------------------------------------

    def keep(self, *names: str, **only_with: str) -> None:
        """Keep a vector for each name, with a number for each parameter element, at first 0 (`Segment.state`).

        `velocity="momentum"` keeps a velocity only if some group's momentum is above 0. If none is, momentum cannot be
        set later.
        """
        positive_names = {name for name, values in zip(self.hyper_names, self.hyper.T, strict=True) if values.any()}
        names += tuple([vector for vector, name in only_with.items() if name in positive_names])
        sizes = {dtype: [p.size for p in self._parameters if p.dtype == dtype] for dtype in FLOATS}
        self._locked_at_zero = frozenset(only_with.values()) - positive_names
        self._state_names = names
        self._state_arrays = {dtype: np.zeros((len(names), sum(n)), dtype) for dtype, n in sizes.items() if n and names}
        self._clear_segments()

    def vectors(self) -> dict[str, np.ndarray]:
        """Return the rule's own vectors, such as velocities, by name. They and the hyper-parameters form its state."""
        arrays = (self._state_arrays or {}).items()
        return {f"{name}.{dtype.name}": rows[i] for dtype, rows in arrays for i, name in enumerate(self._state_names)}

    def state_dict(self) -> dict[str, Any]:
        """Return the state by name, so that training can continue later: numbers, and copies of arrays.

        The state consists of the hyper-parameters, the rule's vectors, and each schedule's rates, `schedule`, and next
        step, `t`. With several groups, a hyper-parameter is an array with an element for each group, and the schedules
        are `schedule.0`, `t.0` and so on.
        """
        columns = self.hyper.T.copy() if len(self.hyper) > 1 else self.hyper[0].tolist()
        state = dict(zip(self.hyper_names, columns, strict=True))
        state |= {name: vector.copy() for name, vector in self.vectors().items()}
        return state | self._schedule_state.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state from a `state_dict`, including its schedules.

        Raise ValueError, before changing anything, for names, sizes and values that this optimizer cannot have.
        """
        schedule_names = {name for names in self._schedule_state.names() for name in names}
        current = {name: value for name, value in self.state_dict().items() if name not in schedule_names}
        if current.keys() != state.keys() - schedule_names:
            raise ValueError(f"{type(self).__name__} has the state {sorted(current)}, got {sorted(state)}")
        new = {name: as_real(state[name], np.result_type(current[name]), f"state {name!r}") for name in current}
        for name, value in new.items():
            if np.shape(current[name]) != value.shape:
                raise ValueError(f"state {name!r} has shape {np.shape(current[name])}, got {value.shape}")
            if name.partition(".")[0] in self.nonnegative_state and not ((value >= 0) & (value < np.inf)).all():
                raise ValueError(f"state {name!r} must be finite and 0 or more everywhere")
        columns = np.array([new[name] for name in self.hyper_names]).reshape(len(self.hyper_names), -1)
        hypers = [dict(zip(self.hyper_names, row, strict=True)) for row in columns.T.tolist()]
        rows = [self._check_hyper(row, group) for group, row in enumerate(hypers)]
        schedules = self._schedule_state.read(state)
        self.hyper[...] = [list(row.values()) for row in rows]
        for name, vector in self.vectors().items():
            vector[...] = new[name]
        self._schedule_state.load(schedules)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_layout": [], "_segments": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({name: to_writeable(value) for name, value in state.items()})

    # ---- segments -----------------------------------------------------------------------------------------------

    def _update(self, rule: str) -> None:
        """Update every segment by a rule of `kernels.update` that needs only the fields of a Segment."""
        for segment in self.segments():
            operands = segment.data, segment.gradient, segment.state, segment.hyper
            kernels.update(rule, *operands, used=segment.used_rows, is_sparse=segment.is_sparse)

    def segments(self) -> list[Segment]:
        """Return the parameters that have a gradient. Neighbours in memory form one segment."""
        layout = [array for p in self._parameters for array in (p._data, p._present_gradient(), p._used_rows)]
        if len(layout) != len(self._layout) or not all(map(operator.is_, layout, self._layout)):
            self._layout = layout
            self._segments = find_segments(self._parameters, self._group_indices, self.hyper, self._state_arrays)
        return self._segments

    def _clear_segments(self) -> None:
        self._layout, self._segments = [], []

    def _check_gradients(self) -> None:
        for segment in Optimizer.segments(self):
            kernels.all_finite(segment.gradient, self._raise_not_finite, segment.used_rows)

    def _raise_not_finite(self, gradient: np.ndarray) -> None:
        for i, p in enumerate(self._parameters):
            if p._gradient is not None and not np.isfinite(p._gradient).all():
                raise TrainingDiverged(f"the gradient of parameter {i}, {p.name or 'Tensor'} {p.shape}, is not finite")
        raise TrainingDiverged("the norm of all gradients together is not finite")


# If a class overrides only these methods, a replay need not call its `step` in Python.
_METHODS_OUTSIDE_STEP = {"zero_grad", "vectors", "state_dict", "load_state_dict", "learning_rate"}


def _wrap_step(step: Callable[[Optimizer], None]) -> Callable[[Optimizer], None]:
    """Wrap a step: check or clip the gradients before it, and record afterwards that the parameters have changed."""

    @functools.wraps(step)
    def wrapper(self: Optimizer, *, clip_norm: float | None = None) -> None:
        recording = kernels.recorder()
        if recording is not None:
            recording.record_optimizer(self._schedule_state)
            if not self.runs_in_python:
                recording.record_optimizer(self)
        if clip_norm is None:
            self._check_gradients()
        else:
            self.clip_gradients(clip_norm)
        try:
            step(self)
        finally:
            for p in self._parameters:
                p._bump_version()
        if type(self).step is wrapper:  # not if a subclass's step calls this one by super()
            self._schedule_state.advance(self.hyper)

    return wrapper


def _wrap_zero_grad(zero_grad: Callable[[Optimizer], None]) -> Callable[[Optimizer], None]:
    """Wrap a user's zero_grad: steps with it are recorded again each time, because it may keep some gradients."""
    callback = replay_in_python(zero_grad)

    @functools.wraps(zero_grad)
    def wrapper(self: Optimizer) -> None:
        recording = kernels.recorder()
        if recording is not None:
            recording.mark_unrepeatable()
        callback(self)

    return wrapper


def _unpack_pair(name: str, value: Any) -> tuple[Any, Any]:
    """Return the two values of a pair. TypeError or ValueError if the value is not a pair."""
    try:
        first, second = value
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name} must be a pair of numbers, such as (0.9, 0.999), got {value!r}") from None
    return first, second
