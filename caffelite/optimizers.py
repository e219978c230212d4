"""Optimizer and the update rules, in order of complexity.

A Model keeps its parameters side by side in one vector, and their gradients in another, so an optimizer usually has one
update to make. `Optimizer.runs` finds such neighbours wherever they are.
"""

from __future__ import annotations

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import Any, ClassVar

import numpy as np

from caffelite import _kernels as kernels
from caffelite.arrays import FLOATS, as_real, nonnegative
from caffelite.recording import in_python
from caffelite.tensor import Tensor


class TrainingDiverged(RuntimeError):
    """The loss or a gradient is not finite. Parameters are as they were before the step; `fit` adds `history`."""


@dataclass
class Run:
    """Parameters whose values lie side by side in memory, as do their gradients; both as vectors."""

    data: np.ndarray
    gradient: np.ndarray
    start: int  # where the run begins among all elements of its dtype
    parameters: slice  # which of the optimizer's parameters it is

    def part_of(self, vectors: dict[np.dtype, np.ndarray]) -> np.ndarray:
        """This run's part of an optimizer's own vectors, those of each dtype together (`Optimizer.zeros`)."""
        return vectors[self.data.dtype][..., self.start : self.start + self.data.size]


class Optimizer(ABC):
    """An update rule for a list of parameters.

    Parameters
    ----------
    parameters : iterable of Tensor
        ValueError if there are none, or one twice; TypeError for anything but Tensors.
    lr : float
        The learning rate, which may be set at any time. ValueError below 0 or for NaN.
    **hyper : float
        Further hyper-parameters, checked as lr is, and for being below what `limits` says, if it names them. All lie
        in one float64 vector, `self.hyper`, lr first, which kernels read each time.

    A subclass writes `step`, which changes the parameters that have a gradient. Before it runs, gradients are checked
    (`TrainingDiverged` if one is not finite); after it, graphs that still need the old values know that they are gone.
    `class SGD(Optimizer, recordable=True)` declares that `step` computes with kernels alone.
    """

    recordable = False
    called_back = False  # as Function's
    limits: ClassVar[dict[str, float]] = {}
    unwatched = frozenset({"_layout", "_runs"})  # as Function's
    _layout: list | repeat = repeat(object())  # the arrays for which `_runs` was found
    _runs: list[Run]

    def __init__(self, parameters: Iterable[Tensor], lr: float = 0.0, **hyper: float) -> None:
        if not isinstance(parameters, Iterable):
            raise TypeError(
                f"{type(self).__name__} takes a list of Tensors, model.parameters() say, got {parameters!r}"
            )
        self.parameters = list(parameters)
        if not self.parameters:
            raise ValueError(f"{type(self).__name__} got no parameters; add the layers to the model first")
        for p in self.parameters:
            if not isinstance(p, Tensor):
                raise TypeError(f"{type(self).__name__} takes Tensors, got {type(p).__name__}")
            if p.function is not None:
                raise ValueError(f"{type(self).__name__} takes leaves, got {p!r}")
        if len(set(self.parameters)) < len(self.parameters):
            raise ValueError(f"{type(self).__name__} got a parameter twice")
        self.hyper_names = ("lr", *hyper)
        self.hyper = np.array([self._checked(name, x) for name, x in {"lr": lr, **hyper}.items()], dtype=np.float64)

    def __init_subclass__(cls, recordable: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.recordable = recordable
        if "step" in cls.__dict__:
            step = cls.__dict__["step"]
            cls.called_back = not recordable
            cls.step = _guarded(step if recordable else in_python(step))  # type: ignore[assignment, method-assign]

    @abstractmethod
    def step(self) -> None:
        """Change every parameter that has a gradient."""

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for p in self.parameters:
            p.zero_grad()

    @property
    def lr(self) -> float:
        """The learning rate."""
        return float(self.hyper[0])

    @lr.setter
    def lr(self, value: float) -> None:
        if kernels.recorder() is not None:
            raise TypeError("lr was set inside a step that is being recorded; a replay would not repeat it")
        self.hyper[0] = self._checked("lr", value)

    def vectors(self) -> dict[str, np.ndarray]:
        """The rule's own vectors (velocities, say), by name: what is in its state besides hyper-parameters."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What a training run needs to go on: the hyper-parameters and copies of the rule's vectors, by name."""
        hyper = dict(zip(self.hyper_names, self.hyper.tolist(), strict=True))
        return hyper | {name: vector.copy() for name, vector in self.vectors().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a `state_dict`; ValueError, before anything is written, for other names or sizes than its own."""
        mine = self.state_dict()
        if mine.keys() != state.keys():
            raise ValueError(f"{type(self).__name__} has the state {sorted(mine)}, got {sorted(state)}")
        new = {name: as_real(state[name], np.result_type(mine[name]), f"state {name!r}") for name in mine}
        for name, value in new.items():
            if np.shape(mine[name]) != value.shape:
                raise ValueError(f"state {name!r} has shape {np.shape(mine[name])}, got {value.shape}")
        self.hyper[...] = [self._checked(name, float(new[name])) for name in self.hyper_names]
        for name, vector in self.vectors().items():
            vector[...] = new[name]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_layout", "_runs")}

    def zeros(self, *rows: int) -> dict[np.dtype, np.ndarray]:
        """A zero for every parameter element, or so many rows of them: for each dtype an array for `Run.part_of`."""
        return {
            dtype: np.zeros((*rows, sum(p.size for p in self.parameters if p.dtype == dtype)), dtype)
            for dtype in FLOATS
            if any(p.dtype == dtype for p in self.parameters)
        }

    def runs(self) -> list[Run]:
        """The parameters that have a gradient, neighbours in memory together."""
        layout = [array for p in self.parameters for array in (p._data, p._present_gradient())]
        if not all(map(operator.is_, layout, self._layout)):
            self._layout, self._runs = layout, self._find_runs()
        return self._runs

    def _find_runs(self) -> list[Run]:
        runs: list[Run] = []
        position = dict.fromkeys(FLOATS, 0)
        for i, p in enumerate(self.parameters):
            start = position[p.dtype]
            position[p.dtype] += p.size
            present = p._present_gradient()
            if present is None:
                continue
            data, gradient = _vector(p._data), _vector(present)
            last = runs[-1] if runs else None
            if last and last.data.dtype == p.dtype and last.parameters.stop == i:
                both_data, both_gradients = _joined(last.data, data), _joined(last.gradient, gradient)
                if both_data is not None and both_gradients is not None:
                    runs[-1] = Run(both_data, both_gradients, last.start, slice(last.parameters.start, i + 1))
                    continue
            runs.append(Run(data, gradient, start, slice(i, i + 1)))
        return runs

    def _checked(self, name: str, value: float) -> float:
        """A hyper-parameter as a float; TypeError or ValueError if it can't be one."""
        return nonnegative(name, value, self.limits.get(name, float("inf")))

    def _check_gradients(self) -> None:
        for run in self.runs():
            kernels.require(kernels.all_finite(run.gradient), self._say_which_gradient)

    def _say_which_gradient(self) -> None:
        for i, p in enumerate(self.parameters):
            if p._gradient is not None and not np.isfinite(p._gradient).all():
                raise TrainingDiverged(f"the gradient of parameter {i}, {p.name or 'Tensor'} {p.shape}, is not finite")


def _guarded(step: Callable[[Optimizer], None]) -> Callable[[Optimizer], None]:
    """A step that checks the gradients before its first write, and notes afterwards that parameters have changed."""

    @functools.wraps(step)
    def guarded(self: Optimizer) -> None:
        recording = kernels.recorder()
        if recording is not None and not self.called_back:
            recording.note_optimizer(self)
        self._check_gradients()
        try:
            step(self)
        finally:
            for p in self.parameters:
                p._changed()

    return guarded


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


class SGD(Optimizer, recordable=True):
    """Stochastic gradient descent with momentum μ and weight decay λ, for weights and biases alike:

        v ← μ v + g + λ w,   w ← w − lr v            (v₀ = 0)

    Nesterov's form: w ← w − lr (g + λ w + μ v), with the new v. Raises ValueError for a hyper-parameter below 0 or not
    finite, and for Nesterov's form without momentum.

    I. Sutskever, J. Martens, G. Dahl and G. Hinton, "On the importance of initialization and momentum in deep
    learning", ICML 2013 (there the velocity includes the learning rate).
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(parameters, lr, momentum=momentum, weight_decay=weight_decay, nesterov=float(bool(nesterov)))
        if nesterov and momentum == 0:
            raise ValueError("SGD: nesterov needs momentum above 0")
        self.velocity = self.zeros() if momentum > 0 else None

    def vectors(self) -> dict[str, np.ndarray]:
        return {f"velocity.{dtype.name}": vector for dtype, vector in (self.velocity or {}).items()}

    def step(self) -> None:
        for run in self.runs():
            velocity = None if self.velocity is None else run.part_of(self.velocity)
            kernels.sgd(run.data, run.gradient, velocity, self.hyper)


class Adam(Optimizer, recordable=True):
    """Adam: a learning rate for each element, from running means of its gradient and of the gradient's square.

        g ← g + λ w
        m ← β₁ m + (1 − β₁) g,   v ← β₂ v + (1 − β₂) g²            (m₀ = v₀ = 0)
        w ← w − lr m̂ / (√v̂ + ε),   m̂ = m / (1 − β₁ᵗ),   v̂ = v / (1 − β₂ᵗ)

    t counts the steps in which the parameter had a gradient, for each parameter by itself: they are what its m and v
    are means over. With ε = 0, an element whose gradient has always been 0 becomes NaN. `betas` is (β₁, β₂). Raises
    ValueError for a β that is not in 0 ≤ β < 1 and for another hyper-parameter below 0 or not finite.

    D. Kingma and J. Ba, "Adam: a method for stochastic optimization", ICLR 2015.
    """

    limits: ClassVar[dict[str, float]] = {"beta1": 1.0, "beta2": 1.0}
    decoupled: ClassVar[bool] = False

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        try:
            beta1, beta2 = betas
        except (TypeError, ValueError) as error:
            raise type(error)(f"betas must be a pair of numbers, (0.9, 0.999) say, got {betas!r}") from None
        super().__init__(parameters, lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay)
        self.moments = self.zeros(2)  # m and v
        self.steps = np.array([(p.size, 0) for p in self.parameters], dtype=np.float64)  # elements and t

    def vectors(self) -> dict[str, np.ndarray]:
        vectors = {"steps": self.steps[:, 1]}
        for dtype, (m, v) in self.moments.items():
            vectors |= {f"first_moment.{dtype.name}": m, f"second_moment.{dtype.name}": v}
        return vectors

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in (name for name in state if name.startswith(("steps", "second_moment"))):
            values = as_real(state[name], None, f"state {name!r}")
            if not ((values >= 0) & (values < np.inf)).all():
                raise ValueError(f"state {name!r} must be finite and 0 or more everywhere")
        super().load_state_dict(state)

    def step(self) -> None:
        for run in self.runs():
            steps = self.steps[run.parameters]
            kernels.count_steps(steps)
            kernels.adam(run.data, run.gradient, run.part_of(self.moments), steps, self.hyper, self.decoupled)


class AdamW(Adam, recordable=True):
    """Adam with decoupled weight decay: λ shrinks the weights and is not in the gradient, so m and v don't see it.

        w ← w − lr λ w − lr m̂ / (√v̂ + ε)

    All else is as in `Adam`. I. Loshchilov and F. Hutter, "Decoupled weight decay regularization", ICLR 2019 (with the
    learning rate in the decay, as PyTorch has it).
    """

    decoupled: ClassVar[bool] = True

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(parameters, lr, betas, eps, weight_decay)
