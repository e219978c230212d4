"""The playground: what can be chosen, how it trains, the program that does the same, and its page."""

import contextlib
import io
import json
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import caffelite as cl
from caffelite import cli

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from pages import SECONDS
from pages import Page as LivePage

from caffelite.web.playground import setting as choices
from caffelite.web.playground.data import CLASSES, DATA, NUMBERS
from caffelite.web.playground.engine import AS_FAST, GRID, SMALL, Engine
from caffelite.web.playground.follow import followed
from caffelite.web.playground.program import made, program_of
from caffelite.web.playground.setting import Setting


class Page(LivePage):
    """A page without a browser."""

    @property
    def last(self):
        return self.messages

    def ask(self, what, **more):
        self.socket.send(json.dumps({"ask": what, **more}))


def wait_until(is_done):
    end = time.monotonic() + SECONDS
    while not is_done():
        assert time.monotonic() < end
        time.sleep(0.01)


def drawn(seed):
    """A setting with everything drawn at random."""
    rng = np.random.default_rng(seed)
    return Setting(
        data=str(rng.choice(list(DATA))),
        points=int(rng.integers(20, 200)),
        noise=float(rng.choice([0, 0.1, 0.5])),
        split=float(rng.choice([0.1, 0.5, 0.9])),
        layers=tuple(rng.integers(1, 17, rng.integers(0, 4)).tolist()),
        activation=str(rng.choice(choices.ACTIVATIONS)),
        norm=str(rng.choice(choices.NORMS)),
        dropout=float(rng.choice([0, 0.3])),
        optimizer=str(rng.choice(choices.OPTIMIZERS)),
        rate=float(rng.choice([0.001, 0.01])),
        decay=float(rng.choice([0, 0.01])),
        schedule=str(rng.choice(choices.SCHEDULES)),
        epochs=int(rng.integers(4, 50)),
        batch_size=int(rng.integers(2, 64)),
        seed=int(rng.integers(1000)),
    )


# ---- settings and data ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data": "cats"}, "data: expected one of spiral, moons, .*, got 'cats'"),
        ({"data": ["spiral"]}, "data: expected one of"),
        ({"points": 19}, r"points: expected an integer of 20 … 1000, got 19"),
        ({"points": 20.5}, "points: expected an integer"),
        ({"noise": float("nan")}, "noise: expected a number of 0 … 1, got nan"),
        ({"rate": "0.1"}, "rate: expected a number"),
        ({"rate": True}, "rate: expected a number"),
        ({"layers": [17]}, r"layers: expected sizes of 1 … 16, got \[17\]"),
        ({"layers": [0]}, "layers: expected sizes"),
        ({"layers": [4] * 7}, "layers: expected at most 6 sizes"),
        ({"layers": "48"}, "layers: expected at most 6 sizes, got '48'"),
        ({"seed": 2**31}, "seed: expected an integer"),
        ({"colour": "red"}, "a setting has no 'colour'"),
        ([], "no setting"),
    ],
)
def test_what_cannot_be_chosen_is_named(given, message):
    with pytest.raises(ValueError, match=message):
        Setting.of(given)


def test_a_setting_comes_back_from_what_describes_it():
    for seed in range(20):
        setting = drawn(seed)
        assert Setting.of(json.loads(json.dumps(setting.described()))) == setting


@pytest.mark.parametrize("make", DATA.values(), ids=DATA)
def test_points_are_in_the_plane_and_of_all_classes(make):
    x, y = make(300, 0.1, np.random.default_rng(0))
    assert x.shape == (300, 2)
    assert abs(x).max() < 2
    if make in CLASSES:
        assert set(y.tolist()) == set(range(CLASSES[make]))
    else:
        assert make in NUMBERS
        assert y.shape == (300, 1)
        assert abs(y).max() < 1.7
    same, _ = make(300, 0.1, np.random.default_rng(0))
    np.testing.assert_array_equal(x, same)


# ---- the engine, and the program that does the same -----------------------------------------------------------------


class Frames:
    """An engine, and the frames that it has shown."""

    def __init__(self, setting):
        self.all = []
        self.engine = Engine(setting, self.all.append)

    @property
    def last(self):
        return self.all[-1]

    def take(self, steps):
        """Take steps, and wait until it has paused."""
        target = self.engine.steps + steps
        self.engine.take(steps)
        wait_until(lambda: (self.last["step"] == target and not self.last["playing"]) or self.last["problem"])
        return self.last


@pytest.fixture
def frames():
    found = []

    def make(setting):
        found.append(Frames(setting))
        wait_until(lambda: found[-1].all)
        return found[-1]

    yield make
    for one in found:
        one.engine.stop()
        assert not one.engine._thread.is_alive()


@pytest.mark.parametrize("seed", range(50))
def test_the_program_does_what_is_seen_to_the_last_bit(seed, frames):
    setting, epochs = drawn(seed), 3
    played = frames(setting)
    frame = played.take(epochs * setting.steps)
    assert frame["problem"] is None
    names = {}
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(program_of(setting, epochs), names)
    assert list(map(float, out.getvalue().split())) == [
        frame["curves"][name]["value"][-1] for name in ("loss", "val_loss")
    ]
    linear = [f for f in names["model"].functions if isinstance(f, cl.Linear)]
    for f, weight, bias in zip(linear, frame["weights"], frame["biases"], strict=True):
        np.testing.assert_array_equal(f.weight.data, weight)
        np.testing.assert_array_equal(f.bias.data, bias)


def test_frames_show_what_the_net_and_its_units_make_of_the_plane(frames):
    setting = Setting(layers=(5, 3), activation="Tanh", norm="LayerNorm")
    frame = frames(setting).take(10)
    assert [units.shape for units in frame["units"]] == [(5, SMALL, SMALL), (3, SMALL, SMALL)]
    assert frame["output"].shape == (GRID, GRID, 3)
    np.testing.assert_allclose(frame["output"].sum(axis=-1), 1, rtol=1e-5)
    model = made(setting)["model"]
    linear = [f for f in model.functions if isinstance(f, cl.Linear)]
    for f, weight, bias in zip(linear, frame["weights"], frame["biases"], strict=True):
        f.weight.data, f.bias.data = weight, bias
    norms = [f for f in model.functions if isinstance(f, cl.LayerNorm)]
    assert len(norms) == 2
    side = np.linspace(-1.25, 1.25, SMALL, dtype=np.float32)
    plane = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    first = model[:3].predict(plane)
    scaled = first / abs(first).max(axis=0)
    # scale and shift of the norms have moved for ten steps of 0.01
    np.testing.assert_allclose(frame["units"][0], np.rint(128 + 127 * scaled).T.reshape(5, SMALL, SMALL), atol=14)


def test_steps_epochs_speed_and_pauses(frames):
    played = frames(Setting())
    assert played.last["step"] == 0
    assert played.take(1)["step"] == 1
    assert played.take(20)["step"] == 21
    played.engine.play()
    wait_until(lambda: played.last["step"] > 5000)
    played.engine.play(False)
    wait_until(lambda: not played.last["playing"])
    count, step = len(played.all), played.last["step"]
    assert not threading.Event().wait(0.2)
    assert (len(played.all), played.engine.steps) == (count, step)
    played.engine.look()
    wait_until(lambda: len(played.all) > count)
    played.engine.at_speed(20)
    played.engine.play()
    assert not threading.Event().wait(1.0)
    assert 8 <= played.engine.steps - step <= 22
    played.engine.at_speed(AS_FAST)
    wait_until(lambda: played.engine.steps > step + 3000)


def test_another_setting_begins_again_and_goes_on_playing(frames):
    played = frames(Setting())
    played.engine.play()
    wait_until(lambda: played.last["step"] > 1000)
    played.engine.begin(Setting(layers=(3,)))
    wait_until(lambda: len(played.last["weights"]) == 2 and played.last["step"] > 1000)
    assert played.last["playing"]


def test_a_training_that_diverges_is_said_and_another_one_may_follow(frames):
    played = frames(Setting(data="waves", optimizer="SGD", rate=100.0))
    played.engine.play()
    wait_until(lambda: played.last["problem"])
    assert "diverged" in played.last["problem"]
    played.engine.begin(Setting())
    wait_until(lambda: played.last["problem"] is None and played.last["step"] == 0)
    assert played.take(5)["step"] == 5


def test_a_cosine_ends_the_training(frames):
    played = frames(Setting(schedule="cosine", epochs=4))
    played.engine.play()
    wait_until(lambda: played.last["problem"])
    assert played.last["problem"] == "The rate has fallen to 0: the training has ended."
    assert played.last["epoch"] == 4
    played.engine.begin(Setting())
    wait_until(lambda: played.last["problem"] is None and played.last["step"] == 0)
    assert played.take(3)["step"] == 3


@pytest.mark.parametrize("seed", range(20))
def test_a_weights_gradient_is_that_of_central_differences_and_of_its_numbers(seed):
    setting = drawn(seed)
    names = made(setting)
    model, x, y = names["model"], names["x"], names["y"]
    loss = cl.SoftmaxLoss() if setting.is_classes else cl.MSELoss()
    model.fit(x, y, loss=loss, optimizer=names["optimizer"], epochs=2, batch_size=setting.batch_size, verbose=0)
    before = model.state_dict()
    rng = np.random.default_rng(seed)
    sizes = [2, *setting.layers, setting.outputs]
    layer = int(rng.integers(len(sizes) - 1))
    place = (layer, int(rng.integers(sizes[layer])), int(rng.integers(sizes[layer + 1])))
    found = followed(model, x, y, place)
    assert found["gradient"] == pytest.approx(found["difference"], rel=1e-3, abs=1e-6)
    for row in found["rows"]:
        assert row["product"] == row["h"] * row["delta"]
    linear = [f for f in model.functions if isinstance(f, cl.Linear)][layer]
    assert found["value"] == linear.weight.data[place[1:]]
    if layer == 0:
        np.testing.assert_allclose([row["h"] for row in found["rows"]], x[:3, place[1]])
    np.testing.assert_equal(model.state_dict(), before)


def test_a_weight_that_is_followed_is_in_the_frames_until_another_net_begins(frames):
    played = frames(Setting())
    played.engine.follow((1, 2, 3))
    wait_until(lambda: played.last["followed"])
    for _ in range(5):
        frame = played.take(1)
    assert frame["followed"]["steps"].tolist() == [0, 1, 2, 3, 4, 5]
    assert frame["followed"]["values"][-1] == frame["weights"][1][2, 3]
    played.engine.follow(None)
    wait_until(lambda: played.last["followed"] is None)
    played.engine.follow((1, 2, 3))
    wait_until(lambda: played.last["followed"])
    played.engine.begin(Setting(layers=()))
    wait_until(lambda: len(played.last["weights"]) == 1)
    assert played.last["followed"] is None


def test_the_lesson_has_ten_settings_that_can_be_chosen():
    from caffelite.web.server import FILES

    text = (FILES / "lesson.js").read_text()
    first = re.search(r"const start = (\{.*?\});", text, re.DOTALL)[1]
    as_json = lambda found: json.loads(re.sub(r"(\w+):", r'"\1":', found))  # noqa: E731
    start = as_json(first)
    changes = re.findall(r"\{ \.\.\.start,?(.*?) \}\]", text)
    assert len(changes) == 10
    for change in changes:
        Setting.of({**start, **as_json(f"{{{change}}}")})


# ---- the page -------------------------------------------------------------------------------------------------------


@pytest.fixture
def program():
    """The command, running, and the address that it prints."""
    command = [sys.executable, "-u", "-m", "caffelite", "playground", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.address = process.stdout.readline().rpartition(" ")[2].strip()
    yield process
    process.kill()
    process.communicate()


def test_pages_agree_and_what_is_no_request_is_refused(program):
    one, other = Page(program.address), Page(program.address)
    one.wait_for("frame")
    one.ask("set", setting={"data": "xor", "layers": [4]})
    for page in (one, other):
        told = page.wait_for("setting", lambda message: message["setting"]["data"] == "xor")
        assert told["parameters"] == 2 * 4 + 4 + 4 * 2 + 2
        assert told["x"].shape == (210, 2)
    other.ask("step")
    for page in (one, other):
        page.wait_for("frame", lambda message: message["step"] == 1)
    one.ask("epoch")
    one.wait_for("frame", lambda message: message["step"] == 7 and not message["playing"])
    for what, more in [
        ("set", {"setting": {"points": 10**9}}),
        ("set", {"setting": {"layers": [[1]]}}),
        ("set", {}),
        ("speed", {"value": -1}),
        ("speed", {"value": "x"}),
        ("follow", {"place": [9, 0, 0]}),
        ("follow", {"place": [0, 2, 0]}),
        ("follow", {"place": ["0", 0, 0]}),
        ("fly", {}),
        (None, {}),
    ]:
        one.last.pop("refused", None)
        one.ask(what, **more)
        one.wait_for("refused")
    assert "refused" not in other.last
    one.ask("program")
    names = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(one.wait_for("program")["text"], names)
    assert names["history"].epochs == 1
    one.close()
    other.close()


def test_it_pauses_when_nobody_looks(program):
    page = Page(program.address)
    page.ask("play")
    page.wait_for("frame", lambda message: message["step"] > 100)
    page.close()
    assert not threading.Event().wait(1.0)  # until the server has seen that it has gone
    page = Page(program.address)
    first = page.wait_for("frame", lambda message: not message["playing"])
    assert not threading.Event().wait(0.3)
    assert page.last["frame"]["step"] == first["step"]
    page.close()


def test_ctrl_c_ends_it(program):
    page = Page(program.address)
    page.ask("play")
    page.wait_for("frame", lambda message: message["step"] > 100)
    program.send_signal(signal.SIGINT)
    _, errors = program.communicate(timeout=SECONDS)
    assert (program.returncode, errors) == (0, "")
    page.close()


def test_the_command_says_what_is_missing_or_wrong(capsys, monkeypatch):
    assert cli.main(["playground", "--port", "70000"]) == 2
    assert capsys.readouterr().err == "caffelite playground: error: a port is at most 65535, got 70000\n"
    for name in [name for name in sys.modules if name.startswith("caffelite.web.playground.page")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "caffelite.web.server", None)
    assert cli.main(["playground"]) == 2
    assert "pip install 'caffelite[web]'" in capsys.readouterr().err


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
def test_the_page_works_in_a_browser(width, scheme, browser, program):
    said = []
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))

    def has(selector, text):
        page.wait_for_function(f"() => document.querySelector('{selector}').textContent.includes('{text}')")

    page.goto(program.address)
    has("#parameters", "123 parameters")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.click("#step")
    page.wait_for_function("() => document.querySelector('#steps').textContent === '1'")
    page.click("#epoch")
    page.wait_for_function("() => document.querySelector('#steps').textContent === '7'")
    held = float(page.get_attribute("#losses", "data-held"))
    assert 0.5 < held < 2
    page.click("#more")
    page.wait_for_function("() => document.querySelector('#columns').dataset.sizes === '2 8 8 4 3'")
    page.click("#columns button[aria-label='a unit less in layer 3']")
    page.wait_for_function("() => document.querySelector('#columns').dataset.sizes === '2 8 8 3 3'")
    page.click("#fewer")
    for name, value in {
        "data": "circles",
        "activation": "Tanh",
        "optimizer": "momentum",
        "rate": "0.1",
        "norm": "none",
    }.items():
        page.select_option(f"[data-set={name}]", value)
    page.fill("[data-set=seed]", "3")
    page.press("[data-set=seed]", "Enter")
    page.wait_for_function("() => document.querySelector('#columns').dataset.sizes === '2 8 8 2'")
    page.select_option("#speed", label="as fast as it goes")
    page.click("#play")
    page.wait_for_function("() => Number(document.querySelector('#losses').dataset.held) < 0.1")
    page.click("#play")
    has("#play", "Play")
    width, height = page.evaluate(
        "[document.querySelector('#graph').clientWidth, document.querySelector('#graph').clientHeight]"
    )
    for up in range(5, int(height), 4):  # until there is a link
        page.click("#graph", position={"x": width / 4, "y": up})
        if "Click to follow" in page.inner_text("#pointed"):
            break
    page.wait_for_selector("#follow:not(.hidden)")
    gradients = [float(page.inner_text(f"#{name}").replace("−", "-")) for name in ("gradient", "difference")]
    assert gradients[0] == pytest.approx(gradients[1], rel=0.01, abs=1e-6)
    assert page.locator("#products tr").count() == 3
    page.click("#leave")
    page.wait_for_selector("#follow.hidden", state="attached")
    page.click("#tab-code")
    has("#text", "x, y = circles(300, 0.1, np.random.default_rng(3))")
    has("#text", "cl.SGD(model.parameters(), lr=0.1, momentum=0.9)")
    page.click("#share")
    address = page.url
    page.click("#tab-lesson")
    page.click("#after")
    has("#lessontitle", "2 of 10")
    page.click("#take")
    page.wait_for_function("() => document.querySelector('[data-set=data]').value === 'plane'")
    page.click("#again")
    page.click("#theme")
    other = browser.new_page()
    other.goto(address)
    other.wait_for_function("() => document.querySelector('[data-set=data]').value === 'circles'")
    page.wait_for_function("() => document.querySelector('[data-set=data]').value === 'circles'")
    assert said == []
    program.kill()
    page.wait_for_selector("#gone:not(.hidden)")
