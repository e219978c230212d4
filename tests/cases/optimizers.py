"""The update rules: what the tests know of every optimizer.

A Rule is an optimizer, its step by NumPy, element by element, its counterpart in PyTorch, and hyper-parameters: those
that are tried, each a case, and those that it refuses. A new rule is one entry in RULES, a known one with other
hyper-parameters one in its options. What holds for all is in `test_rules.py`.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

import caffelite as cl
from tests import reference


class Rule(NamedTuple):
    """An optimizer."""

    optimizer: type[cl.Optimizer]
    pytorch: str | None  # its counterpart in torch.optim
    # Of w, g, the step from 1, each vector of state, and hyper-parameters by name; gives the new w and vectors.
    judge: Callable
    state: tuple[str, ...]  # its vectors, which begin at 0; hyper-parameters may make some of them useless
    # Hyper-parameters, by what is special about them. If g + λ w may be nearly 0 and is divided by its own size, the
    # step is a steep function of w, unless ε is beside it.
    options: dict[str, dict]
    refused: tuple[tuple[dict, type[Exception]], ...] = ()  # hyper-parameters, beside those below 0 and no numbers
    nonnegative: tuple[str, ...] = ()  # vectors of state that are squares
    fading: tuple[str, ...] = ()  # vectors of state that end at 0 where gradients do
    jumps: bool = False  # whether a step jumps as g changes, so a rounding error may change its direction


class Case(NamedTuple):
    """An optimizer with its hyper-parameters."""

    rule: Rule
    options: dict

    def make(self, parameters, **others):
        """Return the optimizer of these parameters, with other hyper-parameters besides."""
        return self.rule.optimizer(parameters, **{**self.options, **others})

    def pytorch(self, torch, parameters):
        return getattr(torch.optim, self.rule.pytorch)(parameters, **self.options)

    def reference(self, w, gradients):
        """Return the vector w after a step with each of these gradients, and the way it went: |w| and the sum of all
        |Δw|.
        """
        state = [np.zeros(w.size) for _ in self.rule.state]
        way = abs(w)
        for t, g in enumerate(gradients, 1):
            before, (w, *state) = w, self.rule.judge(w, g, t, *state, **self.options)
            way = way + abs(w - before)
        return w, way


def sgd(w, g, t, v, **options):
    return reference.sgd(w, g, v, **options)


def adagrad(w, g, t, s, lr=0.01, eps=1e-10, weight_decay=0.0):
    d = g + weight_decay * w
    s = s + d**2
    return w - lr * d / (np.sqrt(s) + eps), s


def adadelta(w, g, t, v, u, lr=1.0, rho=0.9, eps=1e-6, weight_decay=0.0):
    d = g + weight_decay * w
    v = rho * v + (1 - rho) * d**2
    step = d * np.sqrt(u + eps) / np.sqrt(v + eps)
    return w - lr * step, v, rho * u + (1 - rho) * step**2


def rmsprop(w, g, t, v, b, lr=1e-3, alpha=0.99, eps=1e-8, momentum=0.0, weight_decay=0.0):
    d = g + weight_decay * w
    v = alpha * v + (1 - alpha) * d**2
    b = momentum * b + d / (np.sqrt(v) + eps)
    return w - lr * b, v, b


def adam(w, g, t, m, v, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
    return reference.adam(w, g, m, v, t, lr, *betas, eps, weight_decay)


def adamw(w, g, t, m, v, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
    return reference.adam(w, g, m, v, t, lr, *betas, eps, weight_decay, decoupled=True)


def lion(w, g, t, m, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
    c = betas[0] * m + (1 - betas[0]) * g
    return w - lr * (np.sign(c) + weight_decay * w), betas[1] * m + (1 - betas[1]) * g


def nadam(w, g, t, m, v, lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, momentum_decay=4e-3):
    momenta = betas[0] * (1 - 0.96 ** (np.arange(1, t + 2) * momentum_decay) / 2)
    d = g + weight_decay * w
    m, v = betas[0] * m + (1 - betas[0]) * d, betas[1] * v + (1 - betas[1]) * d**2
    mean = momenta[-1] * m / (1 - momenta.prod()) + (1 - momenta[-2]) * d / (1 - momenta[:-1].prod())
    return w - lr * mean / (np.sqrt(v / (1 - betas[1] ** t)) + eps), m, v


BAD_BETAS = (
    *[({"betas": betas}, ValueError) for betas in [(0.9, 1.0), (1.0, 0.9), (-0.1, 0.9), (0.9, float("nan"))]],
    *[({"betas": betas}, ValueError) for betas in [(0.9,), (0.9, 0.99, 0.999)]],
    *[({"betas": betas}, TypeError) for betas in [0.9, ("0.9", 0.999), None]],
)
OF_ADAM = {
    "state": ("first_moment", "second_moment"),
    "nonnegative": ("second_moment",),
    "fading": ("first_moment", "second_moment"),
    "refused": BAD_BETAS,
}

RULES = [
    Rule(
        cl.SGD,
        "SGD",
        sgd,
        state=("velocity",),
        options={
            "SGD": {"lr": 0.1},
            "SGD with decay": {"lr": 0.1, "weight_decay": 0.01},
            "momentum": {"lr": 0.1, "momentum": 0.9},
            "momentum with decay": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1},
            "Nesterov": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
            "Nesterov with decay": {"lr": 0.01, "momentum": 0.5, "weight_decay": 0.01, "nesterov": True},
        },
    ),
    Rule(
        cl.Lion,
        None,
        lion,
        state=("first_moment",),
        options={
            "Lion by default": {},
            "Lion": {"lr": 0.01, "betas": (0.5, 0.8)},
            "Lion with decay": {"lr": 0.01, "weight_decay": 0.1},
        },
        refused=BAD_BETAS,
        fading=("first_moment",),
        jumps=True,
    ),
    Rule(
        cl.Adagrad,
        "Adagrad",
        adagrad,
        state=("sum_of_squares",),
        options={
            "Adagrad by default": {},
            "Adagrad": {"lr": 0.1},
            "Adagrad with decay": {"lr": 0.1, "weight_decay": 0.1, "eps": 1e-3},
            "Adagrad with a large ε": {"eps": 1e-2},
        },
        nonnegative=("sum_of_squares",),
    ),
    Rule(
        cl.Adadelta,
        "Adadelta",
        adadelta,
        state=("square", "square_step"),
        options={
            "Adadelta by default": {},
            "Adadelta": {"lr": 0.1, "rho": 0.5},
            "Adadelta with decay": {"lr": 0.5, "eps": 1e-3, "weight_decay": 0.1},
            "Adadelta without memory": {"rho": 0.0, "eps": 1e-3},
        },
        refused=(({"rho": 1.0}, ValueError),),
        nonnegative=("square", "square_step"),
        fading=("square", "square_step"),
    ),
    Rule(
        cl.RMSProp,
        "RMSprop",
        rmsprop,
        state=("square", "velocity"),
        options={
            "RMSProp": {"lr": 0.01},
            "RMSProp with decay": {"lr": 0.01, "alpha": 0.5, "eps": 1e-3, "weight_decay": 0.1},
            "RMSProp with momentum": {"lr": 0.01, "alpha": 0.9, "momentum": 0.9},
            "RMSProp with momentum and decay": {"lr": 0.1, "eps": 1e-3, "momentum": 0.5, "weight_decay": 0.1},
            "RMSProp without memory": {"lr": 0.01, "alpha": 0.0, "momentum": 0.9},
        },
        refused=(({"alpha": 1.0}, ValueError),),
        nonnegative=("square",),
        fading=("square", "velocity"),
    ),
    Rule(
        cl.Adam,
        "Adam",
        adam,
        options={
            "Adam by default": {},
            "Adam": {"lr": 0.01, "betas": (0.8, 0.99)},
            "Adam with decay": {"lr": 0.01, "betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.1},
            "Adam with a large ε": {"lr": 0.01, "betas": (0.5, 0.0), "eps": 1e-3},
        },
        **OF_ADAM,
    ),
    Rule(
        cl.AdamW,
        "AdamW",
        adamw,
        options={
            "AdamW by default": {},
            "AdamW": {"lr": 0.01, "betas": (0.8, 0.99), "weight_decay": 0.1},
            "AdamW without decay": {"lr": 0.01, "betas": (0.8, 0.99), "weight_decay": 0.0},
        },
        **OF_ADAM,
    ),
    Rule(
        cl.NAdam,
        "NAdam",
        nadam,
        options={
            "NAdam by default": {},
            "NAdam": {"lr": 0.01, "betas": (0.8, 0.99), "momentum_decay": 0.5},
            "NAdam with decay": {"lr": 0.01, "betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.1},
            "NAdam without memory": {"lr": 0.01, "betas": (0.0, 0.0), "eps": 1e-3},
        },
        **OF_ADAM,
    ),
]

OPTIMIZERS = {name: Case(rule, options) for rule in RULES for name, options in rule.options.items()}

every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.optimizer.__name__)
OF_PYTORCH = {name: case for name, case in OPTIMIZERS.items() if case.rule.pytorch is not None}
every_optimizer_of_pytorch = pytest.mark.parametrize("case", OF_PYTORCH.values(), ids=OF_PYTORCH)
every_optimizer = pytest.mark.parametrize("case", OPTIMIZERS.values(), ids=OPTIMIZERS)
