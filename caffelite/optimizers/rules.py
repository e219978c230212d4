"""The update rules, in order of complexity.

g is a parameter's gradient, w its value, λ the weight decay, and g' = g + λ w, for weights and for biases.

A rule declares what is special about its hyper-parameters and which vectors it keeps between steps; see `Optimizer`.
Its `step` calls a kernel, whose loop applies the rule's formula to each element. Each rule raises ValueError if a
hyper-parameter is below 0 or not finite.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from caffelite import _kernels as kernels
from caffelite.optimizers.base import Optimizer

__all__ = ["SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Lion", "NAdam", "RMSProp"]


class SGD(Optimizer, recordable=True):
    """Stochastic gradient descent with momentum μ and weight decay λ:

        v ← μ v + g',   w ← w − lr v            (v₀ = 0)

    With `nesterov`: w ← w − lr (g' + μ v), with the new v. Raise ValueError if `nesterov` is set without momentum. If
    no group has momentum at first, there is no v, and momentum cannot be set later. Sparse parameters support neither
    momentum nor weight decay.

    I. Sutskever, J. Martens, G. Dahl and G. Hinton, "On the importance of initialization and momentum in deep
    learning", ICML 2013 (there the velocity includes the learning rate).
    """

    flags, needs = frozenset({"nesterov"}), {"nesterov": "momentum"}
    changes_all = frozenset({"momentum", "weight_decay"})

    def __init__(
        self, parameters: Any, lr: Any, momentum: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False
    ) -> None:
        super().__init__(parameters, lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)
        self.keep(velocity="momentum")

    def step(self) -> None:
        self._update("sgd")  # v[i] = μ v[i] + g[i] + λ w[i];  w[i] −= lr v[i]: `sgd` in _kernels/loops/update.pyx


class Lion(Optimizer, recordable=True):
    """Lion: equal steps by the sign of a mean gradient, with decoupled weight decay λ.

        w ← w − lr (sign(β₁ m + (1 − β₁) g) + λ w),   m ← β₂ m + (1 − β₂) g            (m₀ = 0; both with the old m)

    sign(0) is 0. Steps are larger than Adam's, so choose a tenth of Adam's lr, and ten times its λ. `betas` is (β₁,
    β₂). In `groups` and in the state, they are `beta1` and `beta2`. Raise ValueError unless 0 ≤ β < 1.

    X. Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023.
    """

    pairs: ClassVar[dict[str, tuple[str, str]]] = {"betas": ("beta1", "beta2")}
    limits: ClassVar[dict[str, float]] = {"beta1": 1.0, "beta2": 1.0}
    changes_all = None

    def __init__(
        self, parameters: Any, lr: Any = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, lr, betas=betas, weight_decay=weight_decay)
        self.keep("first_moment")

    def step(self) -> None:
        self._update("lion")  # the formula above, for each element: `lion` in _kernels/loops/update.pyx


class Adagrad(Optimizer, recordable=True):
    """Adagrad: learning rates per element that fall as its squared gradients add up.

        s ← s + g'²,   w ← w − lr g' / (√s + ε)            (s₀ = 0)

    With ε = 0, an element whose gradient has always been 0 becomes NaN. Sparse parameters do not support weight decay.

    J. Duchi, E. Hazan and Y. Singer, "Adaptive subgradient methods for online learning and stochastic optimization",
    JMLR 12, 2011.
    """

    nonnegative_state = frozenset({"sum_of_squares"})
    changes_all = frozenset({"weight_decay"})

    def __init__(self, parameters: Any, lr: Any = 0.01, eps: float = 1e-10, weight_decay: float = 0.0) -> None:
        super().__init__(parameters, lr, eps=eps, weight_decay=weight_decay)
        self.keep("sum_of_squares")

    def step(self) -> None:
        # s[i] += g'[i]²;  w[i] −= lr g'[i] / (√s[i] + ε): `adagrad` in _kernels/loops/update.pyx
        self._update("adagrad")


class Adadelta(Optimizer, recordable=True):
    """Adadelta: steps per element from running means of squared gradients and steps.

        v ← ρ v + (1 − ρ) g'²,   d = g' √(u + ε) / √(v + ε),   u ← ρ u + (1 − ρ) d²,   w ← w − lr d    (v₀ = u₀ = 0)

    The first steps are small, about √ε. With ε = 0, nothing moves. Raise ValueError unless 0 ≤ ρ < 1.

    M. Zeiler, "ADADELTA: an adaptive learning rate method", 2012, arXiv:1212.5701 (with lr as in PyTorch).
    """

    limits: ClassVar[dict[str, float]] = {"rho": 1.0}
    nonnegative_state = frozenset({"square", "square_step"})
    changes_all = None

    def __init__(
        self, parameters: Any, lr: Any = 1.0, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, lr, rho=rho, eps=eps, weight_decay=weight_decay)
        self.keep("square", "square_step")

    def step(self) -> None:
        self._update("adadelta")  # the formula above, for each element: `adadelta` in _kernels/loops/update.pyx


class RMSProp(Optimizer, recordable=True):
    """RMSProp: a learning rate per element, from a running mean of squared gradients.

        v ← α v + (1 − α) g'²,   b ← μ b + g' / (√v + ε),   w ← w − lr b            (v₀ = b₀ = 0)

    If no group has momentum μ at first, there is no b, and momentum cannot be set later. With ε = 0, an element whose
    gradient has always been 0 becomes NaN. Raise ValueError unless 0 ≤ α < 1.

    T. Tieleman and G. Hinton, "Lecture 6.5 – RMSProp", Coursera: Neural networks for machine learning, 2012 (with
    momentum as in PyTorch).
    """

    limits: ClassVar[dict[str, float]] = {"alpha": 1.0}
    nonnegative_state = frozenset({"square"})
    changes_all = None

    def __init__(
        self,
        parameters: Any,
        lr: Any = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, lr, alpha=alpha, eps=eps, momentum=momentum, weight_decay=weight_decay)
        self.keep("square", velocity="momentum")

    def step(self) -> None:
        self._update("rmsprop")  # the formula above, for each element: `rmsprop` in _kernels/loops/update.pyx


class Adam(Optimizer, recordable=True):
    """Adam: a learning rate per element, from running means of gradients and squares.

        m ← β₁ m + (1 − β₁) g',   v ← β₂ v + (1 − β₂) g'²            (m₀ = v₀ = 0)
        w ← w − lr m̂ / (√v̂ + ε),   m̂ = m / (1 − β₁ᵗ),   v̂ = v / (1 − β₂ᵗ)

    t is counted separately for each parameter. It is the number of steps in which the parameter had a gradient, and
    thus the number of gradients in the means m and v. With ε = 0, an element whose gradient has always been 0 becomes
    NaN. `betas` is (β₁, β₂). In `groups` and in the state, they are `beta1` and `beta2`. Raise ValueError unless 0 ≤ β
    < 1.

    In a sparse parameter, m, v and w change only in the rows used, as in PyTorch's SparseAdam. Weight decay must be 0.

    D. Kingma and J. Ba, "Adam: a method for stochastic optimization", ICLR 2015.
    """

    rule: ClassVar[str] = "adam"  # the formula above, for each element: `adam` in _kernels/loops/update.pyx
    pairs: ClassVar[dict[str, tuple[str, str]]] = {"betas": ("beta1", "beta2")}
    limits: ClassVar[dict[str, float]] = {"beta1": 1.0, "beta2": 1.0}
    nonnegative_state = frozenset({"steps", "second_moment"})
    changes_all: ClassVar[frozenset[str] | None] = frozenset({"weight_decay"})

    def __init__(
        self,
        parameters: Any,
        lr: Any = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, lr, betas=betas, eps=eps, weight_decay=weight_decay)
        self.keep("first_moment", "second_moment")
        self.steps = np.array([(p.size, 0) for p in self.parameters], dtype=np.float64)  # elements and t

    def vectors(self) -> dict[str, np.ndarray]:
        return {"steps": self.steps[:, 1], **super().vectors()}

    def step(self) -> None:
        for segment in self.segments():
            steps = self.steps[segment.parameters]
            kernels.count_steps(steps)
            state = segment.data, segment.gradient, segment.state, segment.hyper
            kernels.update(self.rule, *state, steps, segment.used_rows, segment.is_sparse)


class AdamW(Adam, recordable=True):
    """Adam with decoupled weight decay: λ shrinks w directly, without changing m, v.

        w ← w − lr λ w − lr m̂ / (√v̂ + ε)            (with g instead of g')

    Everything else is as in `Adam`. I. Loshchilov and F. Hutter, "Decoupled weight decay regularization", ICLR 2019
    (with the learning rate in the decay, as in PyTorch).
    """

    rule: ClassVar[str] = "adamw"  # the formula above, for each element: `adamw` in _kernels/loops/update.pyx
    changes_all = None

    def __init__(
        self,
        parameters: Any,
        lr: Any = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(parameters, lr, betas, eps, weight_decay)


class NAdam(Adam, recordable=True):
    """Adam with Nesterov momentum: the step looks ahead by a momentum μ that grows.

        μₜ = β₁ (1 − 0.96^(t ψ) / 2),   πₜ = μ₁ μ₂ … μₜ            (ψ is `momentum_decay`)
        w ← w − lr m̂ / (√v̂ + ε),   m̂ = μₜ₊₁ m / (1 − πₜ₊₁) + (1 − μₜ) g' / (1 − πₜ)

    m, v, v̂ and everything else are as in `Adam`, but parameters cannot be sparse.

    T. Dozat, "Incorporating Nesterov momentum into Adam", ICLR 2016 workshop (the formulas are PyTorch's).
    """

    nonnegative_state = frozenset({"steps", "second_moment", "momentum_product"})
    changes_all = None

    def __init__(
        self,
        parameters: Any,
        lr: Any = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
    ) -> None:
        Optimizer.__init__(
            self, parameters, lr, betas=betas, eps=eps, weight_decay=weight_decay, momentum_decay=momentum_decay
        )
        self.keep("first_moment", "second_moment")
        self.steps = np.array([(p.size, 0, 1) for p in self.parameters], dtype=np.float64)  # elements, t and π

    def vectors(self) -> dict[str, np.ndarray]:
        return {"momentum_product": self.steps[:, 2], **super().vectors()}

    def step(self) -> None:
        for segment in self.segments():
            steps = self.steps[segment.parameters]
            kernels.count_steps(steps, segment.hyper)
            # the formula above, for each element: `nadam` in _kernels/loops/update.pyx
            kernels.update("nadam", segment.data, segment.gradient, segment.state, segment.hyper, steps)
