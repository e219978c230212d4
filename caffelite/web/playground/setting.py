"""Setting: all that is chosen in the playground. It does not change; another choice is another Setting."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from caffelite.web.playground.data import CLASSES, DATA

ACTIVATIONS = ("ReLU", "Tanh", "Sigmoid", "SiLU", "GELU", "LeakyReLU", "none")
NORMS = ("none", "BatchNorm", "LayerNorm")
OPTIMIZERS = ("SGD", "momentum", "RMSProp", "Adagrad", "Adam", "AdamW", "Lion")
SCHEDULES = ("constant", "cosine")
MOST_LAYERS, MOST_UNITS = 6, 16
LEAST_POINTS, MOST_POINTS = 20, 1000


@dataclass(frozen=True)
class Setting:
    """What is trained, and how. ValueError that names the choice if one is impossible.

    With the schedule "cosine" the rate falls to 0 in `epochs` epochs, and the training ends. Else they mean nothing.
    """

    data: str = "spiral"
    points: int = 300
    noise: float = 0.1
    split: float = 0.3  # the share that is held out
    layers: tuple[int, ...] = (8, 8)
    activation: str = "ReLU"
    norm: str = "none"
    dropout: float = 0.0
    optimizer: str = "Adam"
    rate: float = 0.01
    decay: float = 0.0
    schedule: str = "constant"
    epochs: int = 300
    batch_size: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        self._choice("data", DATA)
        self._choice("activation", ACTIVATIONS)
        self._choice("norm", NORMS)
        self._choice("optimizer", OPTIMIZERS)
        self._choice("schedule", SCHEDULES)
        self._number("points", LEAST_POINTS, MOST_POINTS, whole=True)
        self._number("noise", 0, 1)
        self._number("split", 0.1, 0.9)
        self._number("dropout", 0, 0.9)
        self._number("rate", 1e-6, 100)
        self._number("decay", 0, 10)
        self._number("epochs", 1, 100_000, whole=True)
        self._number("batch_size", 1, MOST_POINTS, whole=True)
        self._number("seed", 0, 2**31 - 1, whole=True)
        layers = self.layers
        if not isinstance(layers, tuple | list) or len(layers) > MOST_LAYERS:
            raise ValueError(f"layers: expected at most {MOST_LAYERS} sizes, got {layers!r:.60}")
        if any(isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST_UNITS for n in layers):
            raise ValueError(f"layers: expected sizes of 1 … {MOST_UNITS}, got {layers!r:.60}")
        object.__setattr__(self, "layers", tuple(layers))

    def _choice(self, name: str, known: Any) -> None:
        value = getattr(self, name)
        if not isinstance(value, str) or value not in known:
            raise ValueError(f"{name}: expected one of {', '.join(known)}, got {value!r:.60}")

    def _number(self, name: str, least: float, most: float, whole: bool = False) -> None:
        value = getattr(self, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or not least <= value <= most or (whole and value != int(value)):
            kind = "an integer" if whole else "a number"
            raise ValueError(f"{name}: expected {kind} of {least:g} … {most:g}, got {value!r:.60}")
        object.__setattr__(self, name, int(value) if whole else float(value))

    @classmethod
    def of(cls, given: Any) -> Setting:
        """Make one of what a page sends. Names that are missing have their first value."""
        known = {field.name for field in fields(cls)}
        if not isinstance(given, dict) or (unknown := [name for name in given if name not in known]):
            raise ValueError(
                f"a setting has no {', '.join(map(repr, unknown[:3]))}" if isinstance(given, dict) else "no setting"
            )
        return cls(**given)

    def described(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def outputs(self) -> int:
        return CLASSES.get(DATA[self.data], 1)

    @property
    def is_classes(self) -> bool:
        return DATA[self.data] in CLASSES

    @property
    def held_out(self) -> int:
        """The number of points that are held out, the first ones."""
        return max(1, round(self.split * self.points))

    @property
    def steps(self) -> int:
        """The steps of an epoch. With BatchNorm, `fit` leaves out a row that is alone at its end."""
        full, last = divmod(self.points - self.held_out, self.batch_size)
        is_left_out = last == 1 and full > 0 and self.norm == "BatchNorm"
        return full + (last > 0 and not is_left_out)
