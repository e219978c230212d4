"""Names in the playground: what they are, how a net learns and writes them, and what frames show of it."""

import contextlib
import io

import numpy as np
import pytest

import caffelite as cl

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from caffelite.web.playground.code import build_objects, program_code
from caffelite.web.playground.config import Setting
from caffelite.web.playground.names import LENGTH, LETTERS, MAX_NAMES, NEW, TEST, TRAINING, names
from caffelite.web.playground.names_view import spell
from tests.web.playground_frames import draw_names_setting, wait_until


@pytest.mark.parametrize("seed", range(10))
def test_the_program_learns_and_writes_the_names_that_the_page_shows(seed, frames):
    setting, epochs = draw_names_setting(seed), 3
    played = frames(setting)
    frame = played.take_steps(epochs * setting.steps)
    objects = {}
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(program_code(setting, epochs), objects)
    losses, written = out.getvalue().split("\n")[-3:-1]
    assert list(map(float, losses.split())) == [frame["curves"][name]["value"][-1] for name in ("loss", "val_loss")]
    assert written == " ".join(frame["written"])
    net = [f for f in objects["model"].functions if not isinstance(f, cl.Dropout)]
    for f, weight in zip(net, frame["weights"], strict=True):
        np.testing.assert_array_equal(f.weight_ih.data.T if isinstance(f, cl.RNN) else f.weight.data, weight)


def test_names_are_rows_of_letters_and_what_follows_each():
    x, y = names(10**6, np.random.default_rng(0))
    assert x.shape == y.shape == (MAX_NAMES, LENGTH)
    spelled = ["".join([LETTERS[i] for i in row]).split("·")[1] for row in x.tolist()]
    assert len(set(spelled)) == MAX_NAMES
    assert min(map(len, spelled)) >= 3
    for name, row, labels in zip(spelled, x.tolist(), y.tolist(), strict=True):
        assert row == [*[LETTERS.index(letter) for letter in f"·{name}"], *[0] * (LENGTH - 1 - len(name))]
        assert labels == [*row[1 : len(name) + 1], 0, *[-1] * (LENGTH - 1 - len(name))]


def test_frames_show_a_net_after_each_letter_and_mark_the_names_that_it_writes(frames):
    setting = Setting(data="names", points=600, layers=(8, 16))
    played = frames(setting)
    frame = played.take_steps(600)
    model, objects = played.engine.player.view.model, build_objects(setting)
    trained, tested = ({spell(row) for row in rows.tolist()} for rows in (objects["x"], objects["held_out"][0]))
    assert trained.isdisjoint(tested)
    assert frame["kinds"] == [TRAINING if n in trained else TEST if n in tested else NEW for n in frame["written"]]
    assert TRAINING in frame["kinds"]
    played.engine.read("mia", 1)
    wait_until(lambda: played.last["text"] == "mia")
    other = played.last
    assert other["written"] != frame["written"]
    letters = np.array([[0, 13, 9, 1]])
    states = model[:2].predict(letters)[0]
    scores = model.predict(letters)[0].astype(float)
    p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(other["output"], p, rtol=1e-4)
    assert [units.shape for units in other["units"]] == [(8, 1, 4), (16, 1, 4)]
    np.testing.assert_allclose(other["units"][1][:, 0], (128 + 127 * states / abs(states).max(axis=0)).T, atol=0.6)
    played.engine.begin(Setting(data="names", layers=()))
    wait_until(lambda: len(played.last["weights"]) == 1 and played.last["step"] == 0)
    assert (played.last["text"], played.last["units"]) == ("mia", [])
