"""Schedules: learning rates that change from step to step. They are tables, which a recorded step can read.

A schedule s is a function of the step t, counted from 0, with an attribute `steps`. s(0) … s(steps) are its rates, and
s(steps) is the rate of every later step. With a warm-up, the first `warmup` steps have the rates lr (t + 1) / warmup.

The table of an endless schedule has one rate per `every` steps, down to 0, and begins with −every.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.warnings import warn
from caffelite.core.arrays import as_real, check_nonnegative, check_positive_integer

__all__ = ["cosine", "exponential", "linear", "one_cycle", "steps"]


class Schedule:
    """A schedule: call it with a step, from 0 on, to get that step's rate. ValueError unless all are finite."""

    def __init__(self, text: str, rates: np.ndarray) -> None:
        if not np.isfinite(rates).all():
            raise ValueError(f"{text} has a rate that is not finite, at step {np.isfinite(rates).argmin()}")
        self.text, self.rates = text, rates
        self.steps = len(rates) - 1 if has_end(rates) else math.inf

    def __call__(self, t: int) -> float:
        if operator.index(t) < 0:
            raise ValueError(f"{self!r} begins at step 0, got {t}")
        return find_rate(self.rates, t)

    def __repr__(self) -> str:
        return self.text


def cosine(lr: float, steps: int, warmup: int = 0, end: float = 0.0) -> Schedule:
    """Return half a cosine from lr to `end`, after the warm-up: s = end + (lr − end) (1 + cos π p) / 2.

    p = (t − warmup) / (steps − warmup) goes from 0 to 1. Raise ValueError if a rate is below 0 or not finite, or unless
    0 ≤ warmup < steps.

    I. Loshchilov and F. Hutter, "SGDR: stochastic gradient descent with warm restarts", ICLR 2017.
    """
    return _warmup_schedule("cosine", lr, steps, warmup, end, lambda p: (1 + np.cos(np.pi * p)) / 2)


def linear(lr: float, steps: int, warmup: int = 0, end: float = 0.0) -> Schedule:
    """Return a line from lr to `end`, after the warm-up: s = end + (lr − end) (1 − p). p and errors: see `cosine`."""
    return _warmup_schedule("linear", lr, steps, warmup, end, lambda p: 1 - p)


def exponential(lr: float, steps: int, end: float) -> Schedule:
    """Go from lr to `end` by the same factor at every step: s = lr (end / lr)^(t / steps).

    Raise ValueError unless lr and `end` are above 0.
    """
    t, lr, end = _step_range(steps), check_nonnegative("lr", lr), check_nonnegative("end", end)
    if lr == 0 or end == 0:
        raise ValueError(f"exponential: lr and end must be above 0, got {lr} and {end}")
    rates = np.exp(np.log(lr) + (np.log(end) - np.log(lr)) * t / t[-1])
    rates[0], rates[-1] = lr, end
    return Schedule(f"exponential({lr:g}, {steps}, {end:g})", rates)


def steps(lr: float, steps: int | None = None, every: Any = None, factor: Any = None) -> Schedule:
    """Multiply the rate by `factor` after every `every` steps: s = lr factor^⌊t / every⌋.

    Always give `every` and `factor`. After `steps` steps, the rate stays; without `steps`, it keeps falling. Raise
    ValueError if there are no `steps` and the factor is above 1 or very close to it.
    """
    lr, factor = check_nonnegative("lr", lr), check_nonnegative("factor", factor)
    every = check_positive_integer("every", every, math.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        if steps is None:
            powers = lr * factor ** np.arange(_count_drops(lr, factor), dtype=np.float64)
            return Schedule(f"steps({lr:g}, every={every}, factor={factor:g})", np.append(-min(every, 2.0**53), powers))
        t = _step_range(steps)
        rates = lr * factor ** (t // min(every, t.size))
    return Schedule(f"steps({lr:g}, {steps}, every={every}, factor={factor:g})", rates)


def _count_drops(lr: float, factor: float) -> int:
    """Return how many rates lr factorⁿ there are before they reach 0, or 1 if they do not change."""
    if factor > 1:
        raise ValueError(
            f"steps: a rate that grows needs the number of steps, steps(lr, steps, …), got factor {factor:g}"
        )
    if lr == 0 or factor in (0, 1):
        return 1 + (factor == 0)
    count = 3 + int((math.log(lr) - math.log(5e-324)) / -math.log(factor))
    if count > 10_000_000:
        raise ValueError(f"steps: the factor {factor} is so close to 1 that it needs the number of steps")
    return count


def one_cycle(lr: float, steps: int) -> Schedule:
    """Rise from lr / 25 to lr in the first 30 % of the steps, then fall to lr / 250,000, along half cosines.

    The last step, t = steps − 1, has the lowest rate, as in PyTorch's OneCycleLR. L. N. Smith and N. Topin,
    "Super-convergence: very fast training of neural networks using large learning rates", 2017.
    """
    t, lr = _step_range(steps), check_nonnegative("lr", lr)
    peak, last = 0.3 * steps - 1, steps - 1
    rising, falling = (t / peak if peak > 0 else 0 * t), np.minimum((t - peak) / (last - peak), 1)
    low, lowest = lr / 25, lr / 250_000
    up = low + (lr - low) * (1 - np.cos(np.pi * rising)) / 2
    down = lowest + (lr - lowest) * (1 + np.cos(np.pi * falling)) / 2
    return Schedule(f"one_cycle({lr:g}, {steps})", np.where(t <= peak, up, down))


def _warmup_schedule(
    name: str, lr: float, steps: int, warmup: int, end: float, shape: Callable[[np.ndarray], np.ndarray]
) -> Schedule:
    """Return a schedule with a warm-up and then a shape. The rate is lr where the shape is 1, and `end` where it is
    0."""
    t, lr, end = _step_range(steps), check_nonnegative("lr", lr), check_nonnegative("end", end)
    if isinstance(warmup, bool) or not isinstance(warmup, int | np.integer):
        raise TypeError(f"warmup must be an integer, got {warmup!r}")
    if not 0 <= warmup < steps:
        raise ValueError(f"{name}: warmup must be in 0 … {steps - 1}, fewer than the {steps} steps, got {warmup}")
    share = shape((t - warmup) / (steps - warmup))
    rates = np.where(t < warmup, lr * ((t + 1) / max(warmup, 1)), end + (lr - end) * share)
    rates[-1] = end
    return Schedule(f"{name}({lr:g}, {steps}, warmup={warmup}, end={end:g})", rates)


def _step_range(steps: int) -> np.ndarray:
    """Return 0 … steps, in float64."""
    return np.arange(check_positive_integer("steps", steps) + 1, dtype=np.float64)


# ---- following them -------------------------------------------------------------------------------------------------


def has_end(rates: np.ndarray) -> bool:
    """Return whether a table has a rate for each step, up to a last one."""
    return bool(rates[0] >= 0)


def find_rate(rates: np.ndarray, t: int) -> float:
    """Return the rate of step t in a table, as the kernel `follow` does."""
    i = min(t, len(rates) - 1) if has_end(rates) else 1 + int(min(min(t, 2**53) / -rates[0], len(rates) - 2))
    return float(rates[i])


def scale_rates(rates: np.ndarray, factor: float, min_lr: float) -> None:
    """Multiply rates by a factor, in place, without letting any rate above `min_lr` fall below it."""
    rates[...] = np.where(rates > 0, np.maximum(rates * factor, np.minimum(rates, min_lr)), rates)


def tabulate(schedule: Any) -> np.ndarray:
    """Return a schedule's rates, s(0) … s(steps). TypeError if it is not a schedule, ValueError for an invalid rate."""
    if isinstance(schedule, Schedule):
        return schedule.rates
    if not callable(schedule) or not hasattr(schedule, "steps"):
        raise TypeError(
            "lr must be a number or a schedule, such as schedules.cosine(0.1, steps=1000), or a function of the step "
            f"that has `steps`, got {schedule!r}. To change it after each epoch, set `optimizer.lr` in a callback"
        )
    steps = check_positive_integer("the schedule's steps", schedule.steps)
    return np.array([check_nonnegative(f"the schedule's rate at step {t}", schedule(t)) for t in range(steps + 1)])


def to_writeable(value: Any) -> Any:
    """Return the value, with copies of its read-only arrays: unpickling may map arrays from a file, read-only."""
    if isinstance(value, np.ndarray):
        return value if value.flags.writeable else value.copy()
    if type(value) is dict:
        return {name: to_writeable(x) for name, x in value.items()}
    return tuple(map(to_writeable, value)) if type(value) is tuple else value


class ScheduleState:
    """The schedules that an optimizer's groups follow, each with its next step."""

    # Recordings watch these attributes like an Optimizer's, because a recorded step depends on the schedules.
    not_recorded: frozenset[str] = frozenset()
    runs_in_python = False

    def __init__(self, groups: int) -> None:
        self._rates_and_t: tuple[tuple[np.ndarray, np.ndarray] | None, ...] = (None,) * groups

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({name: to_writeable(value) for name, value in state.items()})

    def __getitem__(self, group: int) -> tuple[np.ndarray, int] | None:
        """Return the rates of a group's schedule and its next step; None if it follows none."""
        entry = self._rates_and_t[group]
        return None if entry is None or entry[1][0] < 0 else (entry[0], int(entry[1][0]))

    def begin(self, group: int, rates: np.ndarray, t: int = 0) -> None:
        """Let a group follow a schedule, from step t on."""
        self.end(group)
        new = list(self._rates_and_t)
        new[group] = (rates.astype(np.float64), np.array([t], dtype=np.int64))
        self._rates_and_t = tuple(new)

    def end(self, group: int) -> None:
        """End a group's schedule: its rate stays as it is. This changes an array, so recorded steps see it too."""
        entry = self._rates_and_t[group]
        if entry is not None:
            entry[1][0] = -1

    def names(self) -> list[tuple[str, str]]:
        """Return, for each group, the names of its rates and its next step in a state."""
        count = len(self._rates_and_t)
        return [("schedule", "t")] if count == 1 else [(f"schedule.{i}", f"t.{i}") for i in range(count)]

    def state(self) -> dict[str, Any]:
        """Return the rates and the next step of each schedule, by these names."""
        state: dict[str, Any] = {}
        for group, names in enumerate(self.names()):
            if (entry := self[group]) is not None:
                state |= zip(names, (entry[0].copy(), entry[1]), strict=True)
        return state

    def read(self, state: dict[str, Any]) -> list[tuple[np.ndarray, int] | None]:
        """Return the rates and the next step of each group in a state. ValueError unless they form a schedule."""
        return [_read_schedule(state, *names) for names in self.names()]

    def load(self, schedules: list[tuple[np.ndarray, int] | None]) -> None:
        """Let each group follow its schedule from its step on. None means no schedule."""
        for group, schedule in enumerate(schedules):
            if schedule is None:
                self.end(group)
            else:
                self.begin(group, *schedule)

    def scale(self, factor: float, min_lr: float = 0.0) -> None:
        """Multiply the rates of all schedules. This changes arrays, so recorded steps see it too."""
        for entry in self._rates_and_t:
            if entry is not None:
                scale_rates(entry[0], factor, min_lr)

    def warn_if_short(self, steps: int | None) -> None:
        """Warn if a schedule ends within the next `steps` steps. None: warn if it has ended with rate 0."""
        for entry in self._rates_and_t:
            if entry is None or entry[1][0] < 0 or not has_end(entry[0]):
                continue
            rates, t = entry[0], int(entry[1][0])
            total = len(rates) - 1
            last = f"rate {rates[-1]:g}" + ("" if rates[-1] > 0 else " and change nothing")
            if steps is None and t >= total and rates[-1] == 0:
                return warn(
                    f"the schedule of the learning rate has ended: it has {total} steps, and {t} are made. "
                    f"All further steps have {last}"
                )
            if steps is not None and t + steps > total:
                return warn(
                    f"the schedule of the learning rate has {total} steps, but this training makes {steps}"
                    f"{f' after {t}' if t else ''}: the last {min(t + steps - total, steps)} have {last}. "
                    "Schedules count steps, a step for each batch, not epochs"
                )
        return None

    def make_end_warning(self) -> Callable[[], None] | None:
        """Return a function to call between steps, which warns once if a schedule has ended at 0. None if none can."""
        open_entries = [
            f for f in self._rates_and_t if f and f[0].any() and f[0][-1] == 0 and 0 <= f[1][0] < len(f[0]) - 1
        ]
        if not open_entries:
            return None

        def warn_at_end() -> None:
            if open_entries and any(t[0] >= len(rates) for rates, t in open_entries):
                open_entries.clear()
                self.warn_if_short(None)

        return warn_at_end

    def advance(self, hyper: np.ndarray) -> None:
        """After a step, write the next step's rates into the first column of the groups' hyper-parameters."""
        for group, entry in enumerate(self._rates_and_t):
            if entry is not None:
                kernels.follow(hyper[group], *entry)


Followed = ScheduleState  # its name in pickles from older versions


def _read_schedule(state: dict[str, Any], schedule: str, t: str) -> tuple[np.ndarray, int] | None:
    """Return the rates and the step with these names in a state; None if the state does not have them."""
    if schedule not in state and t not in state:
        return None
    rates, step = (as_real(state.get(name, np.nan), np.float64, f"state {name!r}") for name in (schedule, t))
    is_table = rates.ndim == 1 and rates.size > 1
    own_rates = rates[1:] if is_table and rates[0] <= -1 and rates[0] == np.floor(rates[0]) else rates
    if not is_table or not ((own_rates >= 0) & (own_rates < np.inf)).all():
        raise ValueError(f"state {schedule!r} must be a vector of rates, finite and 0 or more")
    if step.ndim != 0 or not 0 <= step < 2**53 or step != np.floor(step):
        raise ValueError(f"state {t!r} must be a number of steps, got {state.get(t)!r}")
    return rates, int(step)
