"""What a form is, and how to register one."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import caffelite as cl

FORMS = {}


class Form(NamedTuple):
    """State, and how a step uses it."""

    init: Callable[[], dict]  # the object's attributes
    apply: Callable[[Any, cl.Tensor], cl.Tensor]  # the step's function of the object and a Tensor
    after_epoch: Callable[[Any, int], Any] | None  # the callback
    metric: Callable[..., float] | None
    is_shared: bool  # whether all objects share the state
    is_random: bool  # whether the operating system draws the numbers, which are never the same
    places: tuple[str, ...]


def form(init=dict, *, after=None, metric=None, shared=False, system=False, places=("call", "loss")):
    def register(apply):
        assert apply.__name__ not in FORMS
        FORMS[apply.__name__] = Form(init, apply, after, metric, shared, system, places)
        return apply

    return register


def factor(init=dict, **options):
    """Register a form that multiplies by a number."""

    def register(find):
        @functools.wraps(find)
        def apply(self, h):
            return h * find(self)

        del apply.__wrapped__
        form(init, **options)(apply)
        return find

    return register


class Settings:
    def __init__(self, **values):
        self.__dict__.update(values)


def change_after(epoch, change):
    """Return a callback that makes a change after this epoch."""

    def change_state(self, done):
        if done == epoch:
            change(self)

    return change_state


def tanh(h):
    return h.tanh()


def double(h):
    return h * 2.0


def one(_=None):
    return 1.0


def two(_=None):
    return 2.0


def bump(self):
    self.n += 1
    return 1 / self.n
