"""The playground's lesson: its steps, and what it says about them."""

import json
import re

import numpy as np
import pytest

from caffelite.web.playground.config import Setting
from caffelite.web.server import STATIC


def read_lesson():
    """Return the settings of the steps, and their speeds."""
    text = (STATIC / "lesson.js").read_text(encoding="utf-8")
    as_json = lambda found: json.loads(re.sub(r"(\w+):", r'"\1":', f"{{{found}}}"))  # noqa: E731
    start = as_json(re.search(r"const start = \{(.*?)\};", text, re.DOTALL)[1])
    return [
        (start | as_json(change), int(speed)) for change, speed in re.findall(r"\{ \.\.\.start,?(.*?) \}, (\d+)", text)
    ]


STEPS = read_lesson()


def check_lesson(play):
    """Check what the lesson says. `play(setting, epochs)` returns the history; None if the training diverges."""

    def play_step(number, seconds, speed=None, **others):
        given, own = STEPS[number - 1]
        setting = Setting.from_message({**given, **others})
        return play(setting, round(seconds * (speed or own) / setting.steps))

    def accuracy(*arguments, **others):
        return play_step(*arguments, **others)["accuracy"][-1]

    assert len(STEPS) == 11
    assert play_step(1, 1)["loss"][-1] > 0.03 > 1e-5 > play_step(1, 10)["loss"][-1]
    assert play_step(2, 5)["loss"][-1] > 0.2 > 1e-6 > play_step(2, 5, rate=0.1)["loss"][-1]
    assert play_step(2, 5, rate=3) is None
    assert 0.5 < accuracy(3, 5) < 0.7
    assert accuracy(4, 1) < 0.8 < 0.99 < accuracy(4, 60)
    assert accuracy(5, 5) < 0.6
    assert min(accuracy(5, 2, activation=f) for f in ("ReLU", "Tanh")) > 0.99
    assert accuracy(5, 2, features=["x₁", "x₂", "x₁²", "x₂²"]) > 0.99
    assert accuracy(6, 2) == 1
    assert max(accuracy(6, 80, seed=seed) for seed in (2, 4)) < 0.9
    late = play_step(6, 80, seed=3)["accuracy"]
    assert max(late[:1000]) < 0.9 < late[-1] == 1
    assert min(accuracy(6, 2, seed=seed, layers=[5]) for seed in (1, 2, 3, 4)) == 1
    slow = play_step(7, 6)["val_loss"]
    assert 2 < np.argmin(slow) / len(slow) * 6 < 4
    assert slow[0] > 1.3 * min(slow)
    overfitted, held_back = play_step(7, 10, speed=300), play_step(8, 10)
    assert overfitted["loss"][-1] < 0.15 < 0.2 < overfitted["loss"][len(slow)]
    assert overfitted["val_loss"][-1] > 1.3 * min(overfitted["val_loss"])
    assert held_back["val_loss"][-1] - held_back["loss"][-1] < 0.5 * (
        overfitted["val_loss"][-1] - overfitted["loss"][-1]
    )
    sgd, momentum, adam = (play_step(9, 5, optimizer=name)["loss"][-1] for name in ("SGD", "momentum", "Adam"))
    assert sgd > 0.1 > 0.01 > momentum > 2 * adam
    assert accuracy(10, 5) > 0.99
    assert play_step(11, 1, rate=1e-6)["loss"][-1] == pytest.approx(np.log(27), abs=0.1)
    assert play_step(11, 5)["loss"][-1] < 2.3
    assert min(play_step(11, 60, layers=[8])["val_loss"]) > 2.4
    recurrent = play_step(11, 60)["val_loss"]
    assert recurrent[-1] > 1.05 * min(recurrent)
    assert min(recurrent) < 2.3
