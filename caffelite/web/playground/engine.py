"""Engine: trains what is chosen, by `Model.fit`, on a thread of its own, and makes frames of it.

A callback plays, pauses and takes steps. So the numbers are those of the program that `program.py` writes.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from caffelite.core.modes import inference
from caffelite.core.tensor import Tensor
from caffelite.functions import Linear, MSELoss, SoftmaxLoss
from caffelite.optimizers import TrainingDiverged
from caffelite.training.callbacks import Training
from caffelite.training.history import History
from caffelite.web.playground.follow import followed
from caffelite.web.playground.program import made
from caffelite.web.playground.setting import Setting

FRAME = 1 / 40  # seconds between two frames, at least
GRID, SMALL = 64, 24  # points along a side of the plane, for the output and for each unit
RANGE = 1.25  # the plane reaches from −RANGE to RANGE
MOST_EPOCHS = 10**7
MOST_VALUES = 1000  # of a weight that is followed
MOST_POINTS = 1000  # of a curve
AS_FAST = math.inf  # steps a second


class Abandoned(BaseException):
    """The training ends, since another one is wanted."""


class Engine:
    """Trains a Setting. `show(frame)` gets each frame, on the engine's thread.

    All methods may be called on any thread. They return at once.
    """

    def __init__(self, setting: Setting, show: Callable[[dict[str, Any]], None]) -> None:
        self.setting, self.show = setting, show
        self.playing, self.speed = False, AS_FAST
        self.until: int | None = None  # the step after which it pauses
        self.steps = 0
        self.problem: str | None = None
        self.followed: tuple[int, int, int] | None = None  # the weight that frames explain
        self.ended = False
        self._anew = self._due = False  # whether to begin again, and whether a frame is wanted
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, daemon=True, name="caffelite.playground")
        self._thread.start()

    # ---- what is asked for --------------------------------------------------------------------------------------

    def begin(self, setting: Setting) -> None:
        """Begin again with this setting. It goes on playing if it plays."""
        with self._changed:
            self.setting, self._anew, self.until = setting, True, None
            self._changed.notify_all()

    def play(self, is_playing: bool = True) -> None:
        with self._changed:
            self.playing, self.until, self._due = is_playing, None, True
            self._changed.notify_all()

    def take(self, steps: int) -> None:
        """Take so many steps, and pause."""
        with self._changed:
            done = 0 if self._anew else self.steps
            self.until, self.playing = done + steps, True
            self._changed.notify_all()

    def at_speed(self, steps: float) -> None:
        """Take at most so many steps a second."""
        with self._changed:
            self.speed = steps
            self._changed.notify_all()

    def look(self) -> None:
        """Make a frame, also while it waits."""
        with self._changed:
            self._due = True
            self._changed.notify_all()

    def follow(self, place: tuple[int, int, int] | None) -> None:
        """Have frames explain this weight: its layer, and the units that it leads from and to."""
        with self._changed:
            self.followed, self._due = place, True
            self._changed.notify_all()

    def stop(self) -> None:
        """End for good."""
        with self._changed:
            self.ended = self._anew = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)

    # ---- the thread ---------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self.ended:
            with self._changed:
                self._anew, self.steps, self.problem, self.followed = False, 0, None, None
                setting = self.setting
            try:
                self._train(setting)
                self._wait_after("The rate has fallen to 0: the training has ended.")
            except Abandoned:
                continue
            except TrainingDiverged as error:
                self._wait_after(f"The training has diverged: {error}. Take a lower rate.")
            except Exception as error:
                self._wait_after(str(error))

    def _train(self, setting: Setting) -> None:
        names = made(setting)
        self.player = Player(self, setting, names["model"], names["x"], names["y"])
        names["model"].fit(
            names["x"],
            names["y"],
            loss=SoftmaxLoss() if setting.is_classes else MSELoss(),
            optimizer=names["optimizer"],
            epochs=MOST_EPOCHS if setting.schedule == "constant" else setting.epochs,
            batch_size=setting.batch_size,
            validation_data=names["held_out"],
            metrics=["accuracy" if setting.is_classes else "mae"],
            callbacks=[self.player],
            verbose=0,
        )

    def _wait_after(self, problem: str) -> None:
        """Say what went wrong, and wait for another setting."""
        self.problem, self.playing = problem, False
        self.show(self.player.frame())
        with self._changed:
            while not self._anew:
                self._changed.wait()
                if self._due:
                    self._due, self.playing = False, False
                    self.show(self.player.frame())

    def wait(self, seconds: float) -> None:
        """Wait for a change, or for so long. Raises Abandoned if the training is to begin again."""
        with self._changed:
            if not self._anew:
                self._changed.wait(seconds)
        self.check()

    def wait_while_paused(self) -> None:
        """Wait until it plays, a frame is wanted, or the training is to begin again: then it raises Abandoned."""
        with self._changed:
            self._changed.wait_for(lambda: self.playing or self._due or self._anew)
        self.check()

    def check(self) -> None:
        if self._anew:
            raise Abandoned

    def wants_frame(self) -> bool:
        with self._changed:
            due, self._due = self._due, False
            return due


class Player:
    """The callback: it takes steps as the engine wants them, and makes frames."""

    def __init__(self, engine: Engine, setting: Setting, model: Any, x: np.ndarray, y: np.ndarray) -> None:
        self.engine, self.setting, self.model, self.x, self.y = engine, setting, model, x, y
        self.values: deque[tuple[int, float]] = deque(maxlen=MOST_VALUES)  # of the weight that is followed
        self.history = History(loss=[])
        self.rate, self._next, self._shown = 0.0, 0.0, 0.0
        self._counted = (0.0, 0)  # when the rate was measured, and the steps then
        self.plane, self.small = _grid(GRID), _grid(SMALL)

    def begin(self, training: Training) -> None:
        self.history = training.history
        self.engine.show(self.frame())
        self._hold()

    def due(self, epochs: int) -> float:
        return math.inf

    def steps_until_due(self) -> float:
        engine = self.engine
        if engine.speed < 4 / FRAME:
            return 1
        ahead = max(1, int(min(self.rate, engine.speed) * FRAME / 4)) if self.rate else 1
        return ahead if engine.until is None else max(1, min(ahead, engine.until - engine.steps))

    def steps_done(self, count: int) -> None:
        self.engine.steps += count

    def between_steps(self) -> None:
        engine = self.engine
        engine.check()
        now = time.perf_counter()
        began, before = self._counted
        if now - began > 0.25:
            self.rate, self._counted = (engine.steps - before) / (now - began), (now, engine.steps)
        if engine.until is not None and engine.steps >= engine.until:
            engine.playing, engine.until = False, None
            self._show()
        elif now - self._shown >= FRAME or engine.wants_frame():
            self._show()
        if engine.speed < AS_FAST:
            self._next = max(self._next + self.steps_until_due() / engine.speed, now)
            while engine.playing and (left := self._next - time.perf_counter()) > 0:
                engine.wait(left)
        self._hold()

    def __call__(self, epoch: int, history: History) -> None:
        self.engine.check()

    def end(self) -> None:
        """There is nothing to end."""

    def _hold(self) -> None:
        """Wait while the engine is paused."""
        waited = False
        while not self.engine.playing:
            if self.engine.wants_frame():
                self._show()
            self.engine.wait_while_paused()
            waited = True
        if waited:
            self._next = time.perf_counter()
            self._counted = (time.perf_counter(), self.engine.steps)

    def _show(self) -> None:
        self.engine.show(self.frame())
        self._shown = time.perf_counter()

    # ---- frames -------------------------------------------------------------------------------------------------

    def frame(self) -> dict[str, Any]:
        """What there is to see now: arrays that nobody changes."""
        engine, setting = self.engine, self.setting
        with inference():
            output = self.model(Tensor(self.plane)).numpy()
            units = self._units()
        if setting.is_classes:
            output = np.exp(output - output.max(axis=1, keepdims=True))
            output /= output.sum(axis=1, keepdims=True)
        linear = [f for f in self.model.functions if isinstance(f, Linear)]
        return {
            "playing": engine.playing,
            "step": engine.steps,
            "epoch": engine.steps / setting.steps,
            "rate": self.rate if engine.playing else 0.0,
            "problem": engine.problem,
            "curves": _points(self.history),
            "output": output.reshape(GRID, GRID, -1),
            "units": units,
            "weights": [f.weight.data.copy() for f in linear],
            "biases": [f.bias.data.copy() for f in linear if f.bias is not None],
            "followed": self._followed(),
        }

    def _followed(self) -> dict[str, Any] | None:
        """The weight that is followed, with its values at the last frames."""
        place = self.engine.followed
        if place is None:
            self.values.clear()
            return None
        found = followed(self.model, self.x, self.y, place)
        if self.values and self.values[-1][0] == self.engine.steps:
            self.values.pop()
        self.values.append((self.engine.steps, found["value"]))
        steps, values = np.array(self.values).T
        return {**found, "steps": steps, "values": values}

    def _units(self) -> list[np.ndarray]:
        """Of each layer the maps of its units over the plane, uint8 (units, SMALL, SMALL); 128 is 0.

        A unit's map is what it gives the next layer, on a scale of its own.
        """
        found: list[np.ndarray] = []
        h = Tensor(self.small)
        for f in self.model.functions:
            if isinstance(f, Linear):
                if len(found) == len(self.setting.layers):
                    break
                found.append(np.zeros(0))
            h = f(h)
            found[-1] = h.numpy()
        return [_as_bytes(values) for values in found]


def _points(history: History) -> dict[str, Any]:
    """The curves of a history by name: epochs and values, at most MOST_POINTS of them, with the first and the last."""
    epochs = history.epochs
    kept = np.unique(np.linspace(0, epochs - 1, min(epochs, MOST_POINTS)).astype(int))
    places = kept.tolist()
    return {
        name: {"epoch": kept + 1, "value": np.array([values[i] for i in places], np.float64)}
        for name, values in history.items()
    }


def _grid(n: int) -> np.ndarray:
    """Points of the plane (n · n, 2) float32, row by row from below."""
    side = np.linspace(-RANGE, RANGE, n, dtype=np.float32)
    return np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)


def _as_bytes(values: np.ndarray) -> np.ndarray:
    """Values (points, units) as maps of bytes; the largest value of each unit is at an end of the range."""
    values = np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0)
    largest, n = np.abs(values).max(axis=0), math.isqrt(len(values))
    scaled = values / np.where(largest > 0, largest, 1.0)
    return np.rint(128 + 127 * scaled).astype(np.uint8).T.reshape(-1, n, n)
