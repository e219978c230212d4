"""The update rules.

A Rule is how an optimizer is made, its step by NumPy, element by element, and its counterpart in PyTorch. A new rule,
and a known one with other hyper-parameters, is one entry in RULES.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import reference

import caffelite as cl


class Rule(NamedTuple):
    """An optimizer with its hyper-parameters."""

    make: Callable  # of the parameters
    judge: Callable  # of w, g, the step from 1, and each vector of state; gives the new w and state
    pytorch: Callable  # of PyTorch's module and its parameters
    state: int = 1  # vectors of w's size, which begin at 0

    def judged(self, w, gradients):
        """The vector w after a step with each of these gradients, and the way it went: |w| and the sum of all |Δw|."""
        state = [np.zeros(w.size)] * self.state
        way = abs(w)
        for t, g in enumerate(gradients, 1):
            before, (w, *state) = w, self.judge(w, g, t, *state)
            way = way + abs(w - before)
        return w, way


def sgd(**options):
    return Rule(
        lambda parameters: cl.SGD(parameters, lr=0.1, **options),
        lambda w, g, t, v: reference.sgd(w, g, v, 0.1, **options),
        lambda torch, parameters: torch.optim.SGD(parameters, lr=0.1, **options),
    )


def adam(name, weight_decay, *, lr=0.01, betas=(0.8, 0.99), eps=1e-8):
    options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
    hyper = (lr, *betas, eps, weight_decay, name == "AdamW")
    return Rule(
        lambda parameters: getattr(cl, name)(parameters, **options),
        lambda w, g, t, m, v: reference.adam(w, g, m, v, t, *hyper),
        lambda torch, parameters: getattr(torch.optim, name)(parameters, **options),
        state=2,
    )


def adagrad(*, lr=0.1, eps=1e-10, weight_decay=0.0):
    options = {"lr": lr, "eps": eps, "weight_decay": weight_decay}

    def judge(w, g, t, s):
        d = g + weight_decay * w
        s = s + d**2
        return w - lr * d / (np.sqrt(s) + eps), s

    return Rule(
        lambda parameters: cl.Adagrad(parameters, **options),
        judge,
        lambda torch, parameters: torch.optim.Adagrad(parameters, **options),
    )


def rmsprop(*, lr=0.01, alpha=0.9, eps=1e-8, momentum=0.0, weight_decay=0.0):
    options = {"lr": lr, "alpha": alpha, "eps": eps, "momentum": momentum, "weight_decay": weight_decay}

    def judge(w, g, t, v, b):
        d = g + weight_decay * w
        v = alpha * v + (1 - alpha) * d**2
        b = momentum * b + d / (np.sqrt(v) + eps)
        return w - lr * b, v, b

    return Rule(
        lambda parameters: cl.RMSProp(parameters, **options),
        judge,
        lambda torch, parameters: torch.optim.RMSprop(parameters, **options),
        state=2,
    )


RULES = {
    "SGD": sgd(),
    "SGD with decay": sgd(weight_decay=0.01),
    "momentum": sgd(momentum=0.9),
    "momentum with decay": sgd(momentum=0.9, weight_decay=0.01),
    "Nesterov": sgd(momentum=0.9, nesterov=True),
    "Nesterov with decay": sgd(momentum=0.9, weight_decay=0.01, nesterov=True),
    "Adagrad": adagrad(),
    "Adagrad with decay": adagrad(weight_decay=0.1, eps=1e-3),
    "RMSProp": rmsprop(),
    "RMSProp with decay": rmsprop(weight_decay=0.1, alpha=0.5, eps=1e-3),
    "RMSProp with momentum": rmsprop(momentum=0.9, weight_decay=0.1),
    "Adam": adam("Adam", 0.0),
    "Adam with decay": adam("Adam", 0.1),
    "Adam with a large ε": adam("Adam", 0.0, betas=(0.5, 0.0), eps=1e-3),
    "AdamW": adam("AdamW", 0.1),
    "AdamW without decay": adam("AdamW", 0.0),
}
