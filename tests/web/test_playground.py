"""The playground: what can be chosen, how it trains, the program that does the same, and its page."""

import contextlib
import dataclasses
import io
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from email.message import Message
from pathlib import Path

import numpy as np
import pytest

import caffelite as cl
from caffelite import _kernels as kernels
from caffelite import cli

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from caffelite.web.playground.code import build_objects, program_code
from caffelite.web.playground.config import Setting
from caffelite.web.playground.data import CLASSES, DATA, NUMBERS, digits, names
from caffelite.web.playground.loops import LOOPS, describe_loop, find_lines, split_fused_name
from caffelite.web.playground.requests import FULL_SPEED
from caffelite.web.playground.table import UploadedTable
from caffelite.web.playground.view import GRID, SMALL
from caffelite.web.playground.weight_trace import explain_weight
from caffelite.web.server import STATIC
from tests.conftest import posix
from tests.tools.page_client import SECONDS
from tests.tools.page_client import Page as LivePage
from tests.web.lesson import check_lesson
from tests.web.playground_frames import (
    check_divergence,
    check_edit,
    check_names,
    draw_names_setting,
    draw_setting,
    wait_until,
)


class Page(LivePage):
    """A page without a browser."""

    @property
    def last(self):
        return self.messages

    def ask(self, what, **more):
        self.socket.send(json.dumps({"ask": what, **more}))


# ---- settings and data ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data": "cats"}, "data: expected one of spiral, moons, .*, got 'cats'"),
        ({"data": ["spiral"]}, "data: expected one of"),
        ({"points": 19}, r"points: expected an integer of 20 … 2000, got 19"),
        ({"points": 20.5}, "points: expected an integer"),
        ({"noise": float("nan")}, "noise: expected a number of 0 … 1, got nan"),
        ({"rate": "0.1"}, "rate: expected a number"),
        ({"rate": True}, "rate: expected a number"),
        ({"layers": [17]}, r"layers: expected sizes of 1 … 16, got \[17\]"),
        ({"layers": [0]}, "layers: expected sizes"),
        ({"layers": [4] * 7}, "layers: expected at most 6 sizes"),
        ({"layers": "48"}, "layers: expected at most 6 sizes, got '48'"),
        ({"seed": 2**31}, "seed: expected an integer"),
        ({"features": []}, "features: expected some of x₁, x₂, .*, in this order, got"),
        ({"features": ["x₂", "x₁"]}, "features: expected some of"),
        ({"features": "x₁"}, "features: expected some of"),
        ({"colour": "red"}, "a setting has no 'colour'"),
        ([], "no setting"),
    ],
)
def test_a_bad_setting_is_named(given, message):
    with pytest.raises(ValueError, match=message):
        Setting.from_message(given)


def test_a_setting_comes_back_from_what_describes_it():
    for seed in range(20):
        setting = draw_setting(seed)
        assert Setting.from_message(json.loads(json.dumps(setting.to_message()))) == setting


@pytest.mark.parametrize("make", [make for make in DATA.values() if make is not names])
def test_points_are_in_the_plane_or_digits_and_of_all_classes(make):
    x, y = make(300, 0.1, np.random.default_rng(0))
    assert x.shape == (300, 64 if make is digits else 2)
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


@pytest.mark.filterwarnings("ignore:Layers .* with nothing between them:caffelite.TrainingWarning")
@pytest.mark.parametrize("seed", range(50))
def test_the_program_gives_the_bits_that_the_page_shows(seed, frames):
    setting, epochs = draw_setting(seed), 3
    played = frames(setting)
    frame = played.take_steps(epochs * setting.steps)
    assert frame["problem"] is None
    names = {}
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(program_code(setting, epochs), names)
    assert list(map(float, out.getvalue().splitlines()[-1].split())) == [
        frame["curves"][name]["value"][-1] for name in ("loss", "val_loss")
    ]
    linear = [f for f in names["model"].functions if isinstance(f, cl.Linear)]
    for f, weight, bias in zip(linear, frame["weights"], frame["biases"], strict=True):
        np.testing.assert_array_equal(f.weight.data, weight)
        np.testing.assert_array_equal(f.bias.data, bias)


def test_frames_show_what_the_net_and_its_units_make_of_the_plane(frames):
    setting = Setting(layers=(5, 3), activation="Tanh", norm="LayerNorm")
    frame = frames(setting).take_steps(10)
    assert [units.shape for units in frame["units"]] == [(5, SMALL, SMALL), (3, SMALL, SMALL)]
    assert frame["output"].shape == (GRID, GRID, 3)
    np.testing.assert_allclose(frame["output"].sum(axis=-1), 1, rtol=1e-5)
    model = build_objects(setting)["model"]
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
    assert played.take_steps(1)["step"] == 1
    assert played.take_steps(20)["step"] == 21
    played.engine.play()
    wait_until(lambda: played.last["step"] > 5000)
    played.engine.play(False)
    wait_until(lambda: not played.last["playing"])
    count, step = len(played.all), played.last["step"]
    assert not threading.Event().wait(0.2)
    assert (len(played.all), played.engine.steps) == (count, step)
    played.engine.request_frame()
    wait_until(lambda: len(played.all) > count)
    played.engine.set_speed(20)
    played.engine.play()
    assert not threading.Event().wait(1.0)
    assert 8 <= played.engine.steps - step <= 22
    played.engine.set_speed(FULL_SPEED)
    wait_until(lambda: played.engine.steps > step + 3000)


def test_another_setting_begins_again_and_goes_on_playing(frames):
    played = frames(Setting())
    played.engine.play()
    wait_until(lambda: played.last["step"] > 1000)
    played.engine.begin(Setting(layers=(3,)))
    wait_until(lambda: len(played.last["weights"]) == 2 and played.last["step"] > 1000)
    assert played.last["playing"]


def test_another_setting_ends_an_epoch_by_itself_and_does_not_play(frames):
    played = frames(Setting())
    played.engine.set_speed(5)
    played.engine.take_steps(1000)
    wait_until(lambda: played.last["step"] > 0)
    played.engine.begin(Setting(layers=(3,)))
    wait_until(lambda: len(played.last["weights"]) == 2)
    assert not played.last["playing"]


def test_a_training_that_diverges_is_reported_and_another_one_may_follow(frames):
    played = frames(Setting(data="waves", optimizer="SGD", rate=100.0))
    played.engine.play()
    wait_until(lambda: played.last["problem"])
    assert re.search(r"^The training has diverged: epoch .*; try a smaller learning rate$", played.last["problem"])
    played.engine.begin(Setting())
    wait_until(lambda: played.last["problem"] is None and played.last["step"] == 0)
    assert played.take_steps(5)["step"] == 5


def test_a_play_just_after_another_setting_is_heard_though_the_one_before_has_diverged(frames):
    diverging = Setting(data="waves", optimizer="SGD", rate=100.0)
    played = frames(diverging)
    for _ in range(20):
        played.engine.play()
        wait_until(lambda: played.last["problem"])
        played.engine.begin(Setting())
        played.engine.play()
        wait_until(lambda: played.last["problem"] is None and played.last["step"] > 5)
        played.engine.begin(diverging)


def test_a_cosine_ends_the_training(frames):
    played = frames(Setting(schedule="cosine", epochs=4))
    played.engine.play()
    wait_until(lambda: played.last["problem"])
    assert played.last["problem"] == "The learning rate has fallen to 0, so the training has ended."
    assert played.last["epoch"] == 4
    played.engine.begin(Setting())
    wait_until(lambda: played.last["problem"] is None and played.last["step"] == 0)
    assert played.take_steps(3)["step"] == 3


@pytest.mark.parametrize("seed", range(20))
def test_a_weights_gradient_equals_central_differences_and_its_numbers(seed):
    setting = draw_setting(seed)
    names = build_objects(setting)
    model, x, y = names["model"], names["x"], names["y"]
    model.fit(
        x,
        y,
        loss=getattr(cl, setting.loss)(),
        optimizer=names["optimizer"],
        epochs=2,
        batch_size=setting.batch_size,
        verbose=0,
    )
    before = model.state_dict()
    rng = np.random.default_rng(seed)
    sizes = [setting.inputs, *setting.layers, setting.outputs]
    layer = int(rng.integers(len(sizes) - 1))
    place = (layer, int(rng.integers(sizes[layer])), int(rng.integers(sizes[layer + 1])))
    found = explain_weight(model, setting, x, y, place)
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
        frame = played.take_steps(1)
    assert frame["followed"]["steps"].tolist() == [0, 1, 2, 3, 4, 5]
    assert frame["followed"]["values"][-1] == frame["weights"][1][2, 3]
    played.engine.follow(None)
    wait_until(lambda: played.last["followed"] is None)
    played.engine.follow((1, 2, 3))
    wait_until(lambda: played.last["followed"])
    played.engine.begin(Setting(layers=()))
    wait_until(lambda: len(played.last["weights"]) == 1)
    assert played.last["followed"] is None


def test_a_weight_that_is_set_by_hand_is_trained_further(frames):
    setting = Setting(optimizer="SGD")
    played = frames(setting)
    played.engine.follow((1, 2, 3))
    played.engine.set_weight(0.25)
    assert played.engine.has_edits  # at once: a page asks for the program next
    played.engine.follow((0, 0, 0))  # another page follows another weight
    wait_until(lambda: played.last["weights"][1][2, 3] == 0.25)
    assert played.last["weights"][0][0, 0] != 0.25
    played.engine.follow((1, 2, 3))
    wait_until(lambda: played.last["followed"] and played.last["followed"]["place"] == [1, 2, 3])
    explained = played.last["followed"]
    assert explained["value"] == 0.25
    names = build_objects(setting)
    names["model"][2].weight.data[2, 3] = 0.25
    output = names["model"](names["x"].astype(np.float32))
    assert explained["loss"] == pytest.approx(names["loss"](output, names["y"]).item(), rel=1e-5)
    assert explained["gradient"] == pytest.approx(explained["difference"], rel=1e-4, abs=1e-8)
    found = played.take_steps(3)["weights"]
    names = build_objects(setting)
    names["model"][2].weight.data[2, 3] = 0.25
    options = {"loss": names["loss"], "optimizer": names["optimizer"], "batch_size": setting.batch_size}
    layers, kept = names["model"][::2], []
    steps = cl.callbacks.Each(3, lambda step, training: kept.append([f.weight.data.copy() for f in layers]))
    names["model"].fit(names["x"], names["y"], epochs=1, verbose=0, callbacks=[steps], **options)
    for weight, expected in zip(found, kept[0], strict=True):
        np.testing.assert_array_equal(weight, expected)
    played.engine.begin(setting)
    wait_until(lambda: played.last["step"] == 0)
    assert not played.engine.has_edits


# ---- a table of the user's own ---------------------------------------------------------------------------------------

WORDS = "height,colour,width,kind\n" + "".join([f"{i % 7},red,{i % 5},{'ab'[i % 7 > 3]}\n" for i in range(60)])
PRICES = "size,rooms,age,price\n" + "".join([f"{50 + i},{i % 4},{i % 9},{100.5 + 3 * i}\n" for i in range(60)])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a header and at least 20 rows, got 0 lines"),
        ("a,b\n1,2\n", "expected a header and at least 20 rows, got 2 lines"),
        (WORDS.replace("3,red,3,a", "3,red", 1), r"row 4 has 2 cells, and the header has 4: 3,red"),
        (WORDS.replace("width", "height"), "expected a different name for each column"),
        (WORDS.replace("width", ""), "expected a different name for each column"),
        ("a,b\n" + "x,y\n" * 30, "expected 1 … 64 columns of numbers beside 'b', got 0"),
        ("a,b\n" + "1,y\n" * 30, "all rows have the same 'b': there is nothing to learn"),
        ("a,b\n" + "1,5.5\n" * 30, "all rows have the same 'b'"),
        ("a,b\n" + ",y\n" * 30, "expected at least 20 rows without a gap, got 0"),
        ("a,b\n" + "".join([f"1,word{i}\n" for i in range(30)]), "expected at most 16 classes, 'b' has 30"),
        ("a" * 600_000, "expected at most 524,288 letters, got 600,000"),
        ("a,b\n" + "1,\0\n" * 30, "my.csv is not a text file"),
        ('a,b\n"' + "1,2\n" * 30, "expected a header and at least 20 rows"),
    ],
)
def test_a_file_other_than_a_table_raises(text, message):
    with pytest.raises(ValueError, match=message):
        UploadedTable("my.csv", text)
    with pytest.raises(ValueError, match="a table is the name of a file, its text"):
        UploadedTable("my.csv", [text])


def test_a_table_knows_its_columns_and_classes():
    table = UploadedTable("C:\\data\\../../my.csv", "\ufeff" + WORDS + "1,red,,a\n")
    assert (table.name, table.target, table.inputs) == ("my.csv", "kind", ["height", "width"])
    assert (table.left_out, table.rows, table.classes, table.labels) == (["colour"], 60, 2, ["a", "b"])
    other = table.with_target("height")
    assert (other.inputs, other.classes, other.labels) == (["width"], 7, list("0123456"))
    assert UploadedTable("p.csv", PRICES).classes is None
    with pytest.raises(ValueError, match="there is no column 'weight', only height, colour"):
        table.with_target("weight")
    with pytest.raises(ValueError, match="the table is missing: give its file again"):
        Setting(data="table")


@pytest.mark.parametrize(("text", "target"), [(WORDS, None), (WORDS, "width"), (PRICES, None), (PRICES, "rooms")])
def test_the_code_of_a_table_does_what_is_seen(text, target, frames, tmp_path, monkeypatch):
    setting = Setting(data="table", target=target, table=UploadedTable("mine.csv", text), layers=(5,), norm="BatchNorm")
    frame = frames(setting).take_steps(3 * setting.steps)
    assert frame["problem"] is None
    (tmp_path / "mine.csv").write_text(text)
    monkeypatch.chdir(tmp_path)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(program_code(setting, 3), {})
    assert list(map(float, out.getvalue().splitlines()[-1].split())) == [
        frame["curves"][name]["value"][-1] for name in ("loss", "val_loss")
    ]


def test_other_rows_than_points_have_bars_and_digits_have_images(frames):
    setting = Setting(data="digits", points=400, layers=(6, 4), activation="Tanh")
    frame = frames(setting).take_steps(20)
    assert [units.shape for units in frame["units"]] == [(6, 8, 8), (4, 1, 10)]
    assert frame["output"].shape == (120, 10)
    np.testing.assert_allclose(frame["output"].sum(axis=-1), 1, rtol=1e-5)
    weights = frame["weights"][0]
    scaled = 128 + 127 * weights / abs(weights).max(axis=0)
    np.testing.assert_array_equal(frame["units"][0], np.rint(scaled).T.reshape(6, 8, 8))
    names = build_objects(setting)
    for f, w, b in zip(names["model"].functions[::2], frame["weights"], frame["biases"], strict=True):
        f.weight.data, f.bias.data = w, b
    said = names["model"][:4].predict(names["x"])
    means = np.array([said[names["y"] == c].mean(axis=0) for c in range(10)])
    np.testing.assert_allclose(frame["units"][1][:, 0], (128 + 127 * means / abs(means).max(axis=0)).T, atol=0.6)
    frame = frames(Setting(data="table", table=UploadedTable("p.csv", PRICES), layers=(3,))).take_steps(5)
    assert [units.shape for units in frame["units"]] == [(3, 1, 8)]


# ---- kernels --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(15))
def test_the_kernels_of_a_step_one_by_one_make_the_step(seed, frames):
    draw = draw_setting if seed < 12 else draw_names_setting
    setting = dataclasses.replace(draw(seed), schedule="constant")
    played = frames(setting)
    played.take_steps([2, setting.steps, 2 * setting.steps + 1][seed % 3])
    before = played.last
    count, number = None, 0
    while count is None or number < count:
        played.others.clear()
        played.engine.run_kernel()
        wait_until(lambda: played.others and played.others[-1][0] == "kernel")
        message = played.others[-1][1]
        number, count = message["at"], message["of"]
        assert message["step"] == before["step"]
        is_check = message["kernel"] in ("all_finite", "check_labels")
        assert any(operand["written"] for operand in message["operands"]) or is_check
    player = played.engine.player
    done = player._next_step[1].model.state_dict()  # of the copies, whose kernels have run
    wait_until(lambda: played.last["step"] == before["step"] + 1)
    assert not played.last["playing"]
    for name, array in player.model.state_dict().items():
        np.testing.assert_array_equal(array, done[name])


def test_kernels_are_described_before_and_after_each_pass(frames):
    played = frames(Setting(layers=(8,)))
    played.engine.follow((1, 2, 1))
    played.engine.show_kernels()
    wait_until(lambda: played.others)
    kind, message = played.others[-1]
    assert kind == "kernels"
    assert [stage["name"] for stage in message["stages"]] == [
        "as recorded", "after drop_unread", "after fuse_epilogue", "after place_temporaries",
    ]  # fmt: skip
    first, last = message["stages"][0], message["stages"][-1]
    assert len(last["calls"]) < len(first["calls"])
    assert last["size"] < first["size"]
    assert (last["microseconds"] > 0).all()
    assert [kernel["kernel"] for kernel in message["kernels"]] == last["calls"]
    fused = message["kernels"][0]
    assert fused["kernel"] == "matmul_relu"
    assert [caller["text"].split("(")[0] for caller in fused["callers"]] == [
        "y = kernels.matmul",
        "self.y = kernels.relu",
    ]
    assert all(kernel["callers"] for kernel in message["kernels"])
    does = [(kernel["kernel"], kernel["does"]) for kernel in message["touching"]]
    assert does == [
        ("matmul", ["reads it"]),
        ("matmul", ["writes its gradient"]),
        ("matmul_relu_grad", ["reads it"]),
        ("all_finite", ["reads its gradient"]),
        ("adam", ["reads it", "writes it", "reads its gradient"]),
    ]


def test_a_kernel_shows_what_it_reads_and_writes(frames):
    played = frames(Setting(layers=(8,), activation="Tanh"))
    played.engine.run_kernel()
    wait_until(lambda: played.others and played.others[-1][0] == "kernel")
    message = played.others[-1][1]
    result, x, weight, bias = (operand["values"] for operand in message["operands"])
    names = [operand["name"] for operand in message["operands"]]
    assert names == ["its result", "x, the batch", "0.weight", "0.bias"]
    np.testing.assert_allclose(result, np.tanh(x @ weight + bias[0]), rtol=1e-5)
    np.testing.assert_array_equal(weight, played.last["weights"][0])
    while message["kernel"] != "adam":
        played.others.clear()
        played.engine.run_kernel()
        wait_until(lambda: played.others and played.others[-1][0] == "kernel")
        message = played.others[-1][1]
    updated = message["operands"][0]
    assert updated["name"].startswith("0.weight, 0.bias, 2.weight")
    assert not np.array_equal(updated["before"], updated["values"])
    assert "before" not in message["operands"][1]


@pytest.mark.sources
def test_kernels_have_lines_and_machine_instructions():
    assert split_fused_name("matmul_relu") == ["matmul", "relu"]
    assert split_fused_name("softmax_loss_grad") == ["softmax_loss_grad"]
    with pytest.raises(ValueError, match="there is no kernel 'os'"):
        split_fused_name("os")
    for name in ("matmul", "adam", "softmax_loss", "batch_norm", "dropout", "relu", "tanh_grad"):
        file, lines = find_lines(name)
        assert file.startswith("caffelite/_kernels/loops/")
        assert name in lines[0].lower()
        assert 2 <= len(lines) <= 60
    assert [name for name in kernels.KERNELS if not find_lines(name)[1]] == []
    found = describe_loop("sgd")
    if shutil.which("objdump"):
        assert found["problem"] == ""
        assert any("fm" in text for text, _ in found["instructions"])
    assert "one of many cases" in describe_loop("relu")["problem"]


def test_the_lesson_has_steps_that_do_what_they_say():
    """Each at its own speed: after so many seconds of playing."""

    def play(setting, epochs):
        names = build_objects(setting)
        try:
            return names["model"].fit(
                names["x"],
                names["y"],
                loss=names["loss"],
                optimizer=names["optimizer"],
                epochs=epochs,
                batch_size=setting.batch_size,
                validation_data=names["held_out"],
                metrics=[setting.metric],
                verbose=0,
            )
        except cl.TrainingDiverged:
            return None

    check_lesson(play)


# ---- the page -------------------------------------------------------------------------------------------------------


@pytest.fixture
def program():
    """Yield the command, running, and the address that it prints."""
    command = [sys.executable, "-u", "-m", "caffelite", "playground", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.address = process.stdout.readline().rpartition(" ")[2].strip()
    yield process
    process.kill()
    process.communicate()


def test_pages_agree_and_bad_requests_raise(program):
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
        ("weight", {"value": None}),
        ("weight", {"value": 1001}),
        ("read", {"text": "Max", "draw": 0}),
        ("read", {"text": "abcdefghi", "draw": 0}),
        ("read", {"text": None, "draw": 0}),
        ("read", {"text": "max", "draw": -1}),
        ("read", {"text": "max", "draw": 1.5}),
        ("loop", {"kernel": "../../etc/passwd"}),
        ("loop", {"kernel": 3}),
        ("table", {"name": "x.csv", "text": "a,b\n1,2"}),
        ("table", {"name": 3, "text": None}),
        ("set", {"setting": {"data": "table"}}),
        ("fly", {}),
        (None, {}),
    ]:
        one.last.pop("refused", None)
        one.ask(what, **more)
        one.wait_for("refused")
    assert "refused" not in other.last
    one.ask("code")
    names = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(one.wait_for("code")["text"], names)
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


@posix
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
    assert "-m pip install starlette uvicorn websockets" in capsys.readouterr().err


@pytest.mark.slow
def test_a_step_of_the_lesson_sets_itself_up_above_the_net_and_fits_on_a_projector(browser, program):
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    page.goto(program.address)
    page.wait_for_function("() => document.querySelector('#parameters').textContent.includes('123')")
    page.click("#take")
    page.wait_for_function("() => document.querySelector('#parameters').textContent === '· 3 parameters'")
    again, after = (page.locator(f"#{name}") for name in ("take", "after"))
    assert [again.inner_text(), after.inner_text()] == ["Start again", "Next ›"]
    main = "document.querySelector('#lesson button.main').id"
    assert page.evaluate(main) == "after"
    assert again.bounding_box()["height"] < 24
    assert page.input_value("#speed") == "30"
    for number in range(1, 12):
        assert f"{number} of 11" in page.inner_text("#lessontitle")
        lesson, graph = (page.locator(name).bounding_box() for name in ("#lessontext", "#graph"))
        assert lesson["y"] + lesson["height"] < graph["y"]
        assert lesson["y"] + lesson["height"] < 330
        if number < 11:
            page.click("#after")
    page.wait_for_function("() => document.querySelector('#columns').dataset.sizes === '27 8 16 27'")
    assert page.input_value("#speed") == "30"
    assert page.is_disabled("#after")
    page.click("#more")
    page.click("#take")
    page.wait_for_function("() => document.querySelector('#columns').dataset.sizes === '27 8 16 27'")
    page.click("#before")
    page.wait_for_function("() => document.querySelector('#columns').dataset.sizes === '2 16 16 3'")
    other = browser.new_page(viewport={"width": 900, "height": 720})
    other.goto(program.address)  # it shows the speed at which the program trains
    other.wait_for_function("() => document.querySelector('#speed').value === '300'")
    across = {name: other.locator(f"#{name}").bounding_box()["width"] for name in ("lesson", "output", "choose")}
    assert across["lesson"] == across["output"] > 400
    assert across["choose"] > 800  # below both


def test_a_change_after_a_divergence_plays_on(browser, program):
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    page.goto(f"{program.address}#lesson=2")
    check_divergence(page)


@pytest.mark.sources
def test_the_lesson_leads_to_pages_and_sections_by_their_titles():
    docs = Path(cl.__file__).parents[1] / "docs"
    lesson = (STATIC / "lesson.js").read_text(encoding="utf-8")
    links = re.findall(r'\["([\w-]+)\.html(?:#([\w-]+))?", "([^"]+)"\]', lesson)
    assert len(links) == 11
    for page, section, words in links:
        headings = re.findall(r"^#+ (.+)", (docs / f"{page}.md").read_text(encoding="utf-8"), re.MULTILINE)
        assert words in (headings if section else headings[:1])
        assert section in ("", re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-"))  # as Sphinx makes it


def test_the_pages_spell_as_the_documentation_does():
    files = [path for path in STATIC.iterdir() if path.suffix in (".html", ".js")]
    text = " ".join(path.read_text(encoding="utf-8") for path in files)
    assert re.findall(r"\b\w+(?:al|or|im|ul|ar)is(?:e|es|ed|ing|ation)\b", text) == []


def test_share_copies_the_address_of_the_site_or_a_link_that_works_here(browser, program):
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(program.address)
    page.wait_for_function("() => document.querySelector('#parameters').textContent.includes('123')")
    page.click("#share")
    page.wait_for_function("() => document.querySelector('#share').textContent.includes('Copied')")
    other = context.new_page()
    answer = other.goto(page.evaluate("navigator.clipboard.readText()"))
    assert answer.ok
    other.wait_for_function("() => document.querySelector('#parameters').textContent.includes('123')")


def test_the_site_is_the_documentation_that_the_package_names(monkeypatch):
    from caffelite.web.playground import page

    for urls, site in [(None, None), (["Source, https://a/b", "Documentation, https://c/d"], "https://c/d/")]:
        package = Message()
        for url in urls or ():
            package["Project-URL"] = url
        monkeypatch.setattr(page, "metadata", lambda name, package=package: package)
        assert page.find_site.__wrapped__() == site


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), pytest.param(390, "dark", marks=pytest.mark.slow)])
def test_the_page_works_in_a_browser(width, scheme, browser, program):
    said = []
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))

    def has(selector, text):
        found = "([selector, text]) => document.querySelector(selector).textContent.includes(text)"
        page.wait_for_function(found, arg=[selector, text])

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
    page.click("#data [data-name=circles]")
    page.evaluate("document.querySelector('#rest').open = true")
    for name, value in {
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
    across, height = page.evaluate(
        "[document.querySelector('#graph').clientWidth, document.querySelector('#graph').clientHeight]"
    )
    for up in range(5, int(height), 4):  # until there is a link
        page.click("#graph", position={"x": across / 4, "y": up})
        if "Click or tap to follow" in page.inner_text("#pointed"):
            break
    page.wait_for_selector("#follow:not(.hidden)")
    gradients = [float(page.inner_text(f"#{name}").replace("−", "-")) for name in ("gradient", "difference")]
    assert gradients[0] == pytest.approx(gradients[1], rel=0.01, abs=1e-6)
    assert page.locator("#products tr").count() == 3
    assert "matmul" in page.inner_text("#touching")
    assert "self.weight.add_grad_of(kernels.matmul" in page.inner_text("#touching")
    page.click("#touching tr:last-child button")
    has("#looptitle", "The loop of sgd")
    has("#looptext", "w[i] -= lr * v[i]" if (LOOPS / "update.pyx").exists() else "is not installed here")
    page.click("#close")
    page.click("#leave")
    page.wait_for_selector("#follow.hidden", state="attached")
    for name, value in (("layer", 1), ("from", 2), ("to", 3)):
        page.fill(f"#follow{name}", str(value))
    page.press("#followto", "Enter")
    has("#followtitle", "The weight from x₂ to unit 3 of layer 1")
    check_edit(page)
    page.click("#leave")
    page.hover("#graph", position={"x": across / 3, "y": 10})
    page.focus("#graph")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    has("#outputtitle", "Unit 2 of layer 2, bias ")
    page.keyboard.press("Escape")
    has("#outputtitle", "What the net predicts")

    steps = page.inner_text("#steps")
    page.click("#tab-program")
    page.click("#kernel")
    has("#rantitle", "Kernel 1 of")
    page.click("#kernel")
    has("#rantitle", "Kernel 2 of")
    assert page.locator("#kernels tr.current").count() == 1
    assert "µs" in page.inner_text("#stagefacts")
    page.select_option("#stage", "0")
    has("#stagefacts", "kernels")
    page.focus("#bars")
    page.press("#bars", "ArrowRight")
    has("#barfacts", "1. matmul")
    assert page.inner_text("#steps") == steps
    page.click("#step")
    page.wait_for_function("() => document.querySelectorAll('#kernels tr.current').length === 0")

    page.focus("#columns .handle")
    page.press("#columns .handle", "ArrowRight")
    page.click("#columns button[aria-label='a unit less in layer 1']")
    page.wait_for_function("() => document.querySelector('#columns').dataset.sizes === '2 7 8 2'")
    page.press("#columns .handle >> nth=0", "ArrowRight")
    page.wait_for_function("() => document.querySelector('#columns').dataset.sizes === '2 8 7 2'")
    one, other = (page.locator("#columns .handle").nth(i).bounding_box() for i in (1, 0))
    page.mouse.move(one["x"] + 5, one["y"] + 5)
    page.mouse.down()
    page.mouse.move(other["x"], other["y"] + 5, steps=4)
    page.mouse.up()
    page.wait_for_function("() => document.querySelector('#columns').dataset.sizes === '2 7 8 2'")
    page.click("#columns button[aria-label='remove layer 1']")
    page.wait_for_function("() => document.querySelector('#columns').dataset.sizes === '2 8 2'")
    page.click("#tab-code")
    has("#text", "x, y = circles(300, 0.1, np.random.default_rng(3))")
    has("#text", "cl.SGD(model.parameters(), lr=0.1, momentum=0.9)")
    for step in ("7", "14"):
        page.click("#epoch")
        page.wait_for_function(f"() => document.querySelector('#steps').textContent === '{step}'")
    has("#text", "epochs=2,")
    page.click("#share")
    address = page.url
    page.click("#take")
    has("#lessontitle", "1 of 11")
    page.click("#after")
    has("#lessontitle", "2 of 11")
    page.wait_for_function("() => document.querySelector('[aria-checked=true]')?.dataset.name === 'plane'")
    page.wait_for_function("() => Number(document.querySelector('#steps').textContent) > 0")  # it plays by itself
    page.click("#play")
    page.click("#again")
    page.click("#theme")
    other = browser.new_page()
    other.goto(address)
    other.wait_for_function("() => document.querySelector('[aria-checked=true]')?.dataset.name === 'circles'")
    page.wait_for_function("() => document.querySelector('[aria-checked=true]')?.dataset.name === 'circles'")
    has("#lessontitle", "Lesson: 11 steps")  # the step has other data
    other.close()

    check_names(page)
    page.click("#data [data-name=digits]")
    page.wait_for_function("() => document.querySelector('#columns').dataset.sizes === '64 8 10'")
    page.click("#epoch")
    page.wait_for_function("() => document.querySelectorAll('#mistakes figure').length === 12")
    assert int(page.get_attribute("#regions", "data-wrong")) > 0
    mine = {"name": "mine.csv", "mimeType": "text/csv", "buffer": WORDS.encode()}
    page.set_input_files("#file", mine)
    has("#table", "mine.csv: 60 rows. Skipped because they aren't numeric: colour.")
    page.select_option("[data-set=target]", "width")
    page.wait_for_function("() => document.querySelector('#columns').dataset.sizes === '1 8 5'")
    page.set_input_files("#file", {**mine, "buffer": b"a,b"})
    has("#gone", "expected a header and at least 20 rows")
    page.set_input_files("#file", {**mine, "buffer": b"a" * 2**21})
    has("#gone", "the playground takes at most half a megabyte")
    page.click("#share")
    has("#gone", "Your table stays on this machine")
    page.click("#data [data-name=moons]")
    page.wait_for_function("() => document.querySelector('[data-set=points]').value === '300'")  # as before the table
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert said == []
    program.kill()
    page.wait_for_selector("#gone:not(.hidden)")
