"""View of names: ten names that the net writes, and what it expects after each letter of a name."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from caffelite.core.modes import inference
from caffelite.functions import RNN, Dropout, softmax
from caffelite.web.playground.config import Setting
from caffelite.web.playground.names import LENGTH, LETTERS, NEW, TEST, TRAINING, write
from caffelite.web.playground.view import to_bytes

MAX_DRAWS = 1000  # of ten names


class NamesView:
    """Looks at a net that learns names.

    A unit has a picture with one row: its output after each letter of a name that the user types. `draw` is the number
    of the random numbers for the ten names. The numbers stay the same, so the names change only as the net learns.
    """

    def __init__(self, setting: Setting, objects: dict[str, Any]) -> None:
        self.setting, self.model = setting, objects["model"]
        kinds = ((TEST, objects["held_out"][0]), (TRAINING, objects["x"]))
        self.kinds = {spell(row): kind for kind, rows in kinds for row in rows.tolist()}

    def snapshot(self, text: str, draw: int) -> dict[str, Any]:
        """Return names, the probabilities of each next letter, units and weights: arrays that nobody changes."""
        numbers = [LETTERS.index(letter) for letter in f"{LETTERS[0]}{text}"]
        written = write(self.model, np.random.default_rng(self.setting.seed + draw))
        h, units = np.array([numbers]), []
        matrices = [f for f in self.model.functions if not isinstance(f, Dropout)]
        with inference():
            for f in matrices:
                h = f(h)
                units.append(to_bytes(h.numpy()[0].T[:, None]))
            output = softmax(h).numpy()[0]
        return {
            "text": text,
            "written": written,
            "kinds": [self.kinds.get(name, NEW) for name in written],
            "output": output,
            "units": units[:-1],
            "weights": [f.weight_ih.data.T.copy() if isinstance(f, RNN) else f.weight.data.copy() for f in matrices],
        }


def spell(row: list[int]) -> str:
    """Return the name whose letters these are: the numbers after its start, up to the next 0."""
    return "".join([LETTERS[i] for i in row[1:]]).partition(LETTERS[0])[0]


def check_text(text: Any, draw: Any) -> tuple[str, int]:
    """Return letters and the number of a draw that a page asks for. Raise ValueError for others."""
    if not isinstance(text, str) or not re.fullmatch(rf"[a-z]{{0,{LENGTH - 1}}}", text):
        raise ValueError(f"expected at most {LENGTH - 1} letters of a … z, got {text!r:.40}")
    if type(draw) is not int or not 0 <= draw < MAX_DRAWS:
        raise ValueError(f"expected a draw of 0 … {MAX_DRAWS - 1}, got {draw!r:.40}")
    return text, draw
