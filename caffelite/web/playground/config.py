"""Setting: everything chosen in the playground. It does not change; another choice is another Setting."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

from caffelite.web.playground.data import CLASSES, DATA, digits
from caffelite.web.playground.names import MAX_NAMES, names
from caffelite.web.playground.table import UploadedTable

ACTIVATIONS = ("ReLU", "Tanh", "Sigmoid", "SiLU", "GELU", "LeakyReLU", "none")
NORMS = ("none", "BatchNorm", "LayerNorm")
OPTIMIZERS = ("SGD", "momentum", "RMSProp", "Adagrad", "Adam", "AdamW", "Lion")
SCHEDULES = ("constant", "cosine")
CHOICES = {"activation": ACTIVATIONS, "norm": NORMS, "optimizer": OPTIMIZERS, "schedule": SCHEDULES}
CLASSIFICATION_LOSSES = ("SoftmaxLoss", "HingeLoss")
REGRESSION_LOSSES = ("MSELoss", "MAELoss", "HuberLoss")
TABLE = "table"  # the data of a Table
MAX_LAYERS, MAX_UNITS = 6, 16
MAX_WEIGHT = 1000  # that a weight may be set to
MIN_POINTS, MAX_POINTS = 20, 2000
PIXELS, MAX_DIGITS = 8, 1797  # along a side of a digit, and how many there are
#: Features of a point (a, b) of the plane, by name, and the expressions that compute them.
FEATURES = {
    "x₁": "a",
    "x₂": "b",
    "x₁²": "a**2",
    "x₂²": "b**2",
    "x₁x₂": "a * b",
    "sin πx₁": "np.sin(np.pi * a)",
    "sin πx₂": "np.sin(np.pi * b)",
}
POINT = ("x₁", "x₂")  # the features that are the point itself
#: The numbers of a setting: the lowest, the highest, and whether they are integers.
NUMBERS: dict[str, tuple[float, float, bool]] = {
    "points": (MIN_POINTS, MAX_POINTS, True),
    "noise": (0, 1, False),
    "split": (0.1, 0.9, False),
    "dropout": (0, 0.9, False),
    "rate": (1e-6, 100, False),
    "decay": (0, 10, False),
    "epochs": (1, 100_000, True),
    "batch_size": (1, MAX_POINTS, True),
    "seed": (0, 2**31 - 1, True),
}


@dataclass(frozen=True)
class Setting:
    """The choices for the data, the net and training. Raise a ValueError that names an impossible choice.

    With the schedule "cosine", the rate falls to 0 in `epochs` epochs, and then training ends. Other schedules do not
    use `epochs`. If the data have classes and the loss is for numbers, the first loss for classes replaces it, and vice
    versa. With names, the first of `layers` is an embedding, and the others are recurrent, without a norm.
    """

    data: str = "spiral"
    points: int = 300
    noise: float = 0.1
    split: float = 0.3  # the share that is held out
    features: tuple[str, ...] = POINT  # inputs of the net, computed from a point of the plane; not used for other data
    layers: tuple[int, ...] = (8, 8)
    activation: str = "ReLU"
    loss: str = "SoftmaxLoss"
    norm: str = "none"
    dropout: float = 0.0
    optimizer: str = "Adam"
    rate: float = 0.01
    decay: float = 0.0
    schedule: str = "constant"
    epochs: int = 300
    batch_size: int = 32
    seed: int = 0
    target: str | None = None  # the column of the table that is predicted
    table: UploadedTable | None = field(default=None, compare=False)  # if the data are "table"

    def __post_init__(self) -> None:
        self._check_choice("data", (*DATA, TABLE))
        if self.data == TABLE and self.table is None:
            raise ValueError("data: the table is missing: give its file again")
        table = self.table.with_target(self.target) if self.data == TABLE and self.table and self.target else self.table
        object.__setattr__(self, "table", table if self.data == TABLE else None)
        object.__setattr__(self, "target", self.table.target if self.table else None)
        for name, known in CHOICES.items():
            self._check_choice(name, known)
        self._check_choice("loss", (*CLASSIFICATION_LOSSES, *REGRESSION_LOSSES))
        if self.loss not in self.losses:
            object.__setattr__(self, "loss", self.losses[0])
        if self.is_text:
            object.__setattr__(self, "norm", "none")
        for name, (min_value, max_value, whole) in NUMBERS.items():
            self._check_number(name, min_value, max_value, whole)
        layers = self.layers
        if not isinstance(layers, tuple | list) or len(layers) > MAX_LAYERS:
            raise ValueError(f"layers: expected at most {MAX_LAYERS} sizes, got {layers!r:.60}")
        if any(isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MAX_UNITS for n in layers):
            raise ValueError(f"layers: expected sizes of 1 … {MAX_UNITS}, got {layers!r:.60}")
        object.__setattr__(self, "layers", tuple(layers))
        features = tuple(self.features) if isinstance(self.features, tuple | list) else ()
        if not features or features != tuple([name for name in FEATURES if name in features]):
            raise ValueError(
                f"features: expected some of {', '.join(FEATURES)}, in this order, got {self.features!r:.60}"
            )
        object.__setattr__(self, "features", features)

    def _check_choice(self, name: str, known: Any) -> None:
        value = getattr(self, name)
        if not isinstance(value, str) or value not in known:
            raise ValueError(f"{name}: expected one of {', '.join(known)}, got {value!r:.60}")

    def _check_number(self, name: str, min_value: float, max_value: float, whole: bool) -> None:
        value = getattr(self, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or not min_value <= value <= max_value or (whole and value != int(value)):
            kind = "an integer" if whole else "a number"
            raise ValueError(f"{name}: expected {kind} of {min_value:g} … {max_value:g}, got {value!r:.60}")
        object.__setattr__(self, name, int(value) if whole else float(value))

    @classmethod
    def from_message(cls, message: Any, table: UploadedTable | None = None) -> Setting:
        """Make a setting from a page's message. Missing names get their first value."""
        known = {field.name for field in fields(cls)} - {"table"}
        if not isinstance(message, dict):
            raise ValueError("no setting")
        if unknown := [name for name in message if name not in known]:
            raise ValueError(f"a setting has no {', '.join(map(repr, unknown[:3]))}")
        return cls(**message, table=table)

    def to_message(self) -> dict[str, Any]:
        """Return the choices by name, as `from_message` takes them."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "table"}

    # ---- the data -----------------------------------------------------------------------------------------------

    @property
    def is_plane(self) -> bool:
        """Whether the data are points of a plane."""
        return len(self.table.inputs) == 2 if self.table else not self.is_image and not self.is_text

    @property
    def has_features(self) -> bool:
        """Whether x is computed from the points, instead of being the points themselves."""
        return self.is_plane and self.table is None and self.features != POINT

    @property
    def is_image(self) -> bool:
        return self.data == digits.__name__

    @property
    def is_text(self) -> bool:
        """Whether the data are names, which a recurrent net reads letter by letter."""
        return self.data == names.__name__

    @property
    def inputs(self) -> int:
        counts = {digits.__name__: PIXELS**2, names.__name__: CLASSES[names]}
        return len(self.table.inputs) if self.table else counts.get(self.data, len(self.features))

    @property
    def classes(self) -> int | None:
        """None if y are numbers."""
        return self.table.classes if self.table else CLASSES.get(DATA[self.data])

    @property
    def is_classification(self) -> bool:
        return self.classes is not None

    @property
    def outputs(self) -> int:
        return self.classes or 1

    @property
    def losses(self) -> tuple[str, ...]:
        """The losses that fit."""
        if self.is_text:
            return CLASSIFICATION_LOSSES[:1]
        return CLASSIFICATION_LOSSES if self.is_classification else REGRESSION_LOSSES

    @property
    def metric(self) -> str:
        return "accuracy" if self.is_classification else "mae"

    @property
    def rows(self) -> int:
        """The number of points, at most `points`."""
        limits = {digits.__name__: MAX_DIGITS, names.__name__: MAX_NAMES}
        return min(self.points, self.table.rows if self.table else limits.get(self.data, self.points))

    @property
    def reach(self) -> float:
        """How far the plane is shown, in each direction. Columns of a table have a deviation of 1."""
        return 3.0 if self.table else 1.25

    @property
    def validation_rows(self) -> int:
        """The number of points that are held out, the first ones."""
        return min(max(1, round(self.split * self.rows)), self.rows - 1)

    @property
    def steps(self) -> int:
        """The steps of an epoch. With BatchNorm, a single row left at its end joins the batch before."""
        full, last = divmod(self.rows - self.validation_rows, self.batch_size)
        joins = last == 1 and full > 0 and self.norm == "BatchNorm"
        return full + (last > 0 and not joins)
