"""`cl.live()`: what a training shows, and what a page may do to it."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("websockets")

from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

import caffelite as cl
from caffelite._support.extras import install_command
from caffelite.web import controls, snapshots, text, updates
from caffelite.web.curves import MAX_POINTS, Curve
from caffelite.web.live import Live
from caffelite.web.messages import decode
from tests.conftest import bits, posix
from tests.tools.page_client import SECONDS, Page
from tests.web.live_training import Looking, X, Y, fit, language_model

pytestmark = pytest.mark.usefixtures("long_timeouts")


# ---- curves ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [[1] * 50, [5000], [1, 1000, 3, 1024, 7, 40_000]])
def test_a_curve_keeps_means_and_extremes_in_bounded_memory(parts):
    rng = np.random.default_rng(0)
    values, curve, done = rng.normal(size=sum(parts)), Curve(), 0
    for count in parts:
        curve.extend(np.arange(done + 1, done + count + 1), values[done : done + count])
        done += count
    assert len(curve) <= MAX_POINTS
    found, width = curve.message(), curve._width
    blocks = [values[i : i + width] for i in range(0, len(values), width)]
    np.testing.assert_allclose(found["y"], [block.mean() for block in blocks], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(found["x"][-1], len(values))
    if width > 1:
        np.testing.assert_allclose(found["low"], [block.min() for block in blocks], rtol=1e-6)
        np.testing.assert_allclose(found["high"], [block.max() for block in blocks], rtol=1e-6)


# ---- the training ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("average", [False, True])
def test_a_training_that_is_looked_at_has_the_bits_of_one_that_is_not(average):
    averages = [cl.callbacks.AverageWeights(0.99)] * average
    alone, history = fit(averages, epochs=4000, metrics=["accuracy"], validation_split=0.2)
    live = cl.live(open_browser=False)
    pages = []

    def look(step, training):
        if not pages:
            pages.append(Page(live))

    callbacks = [*averages, live, cl.callbacks.Each(100, look)]
    watch_training, other = fit(callbacks, 4000, metrics=["accuracy"], validation_split=0.2)
    assert bits(watch_training) == bits(alone)
    assert dict(history) == dict(other)
    pages[0].wait_for_state("finished")
    pages[0].close()


def test_it_does_not_bring_each_epoch_back_to_python():
    live, calls = cl.live(open_browser=False), []
    live.begin = lambda training, begin=live.begin: begin(training)
    original = Live.steps_done
    live.steps_done = lambda count: (calls.append(count), original(live, count))
    fit([live], 5000)
    assert len(calls) < 500


def test_it_prints_its_address_and_ends_with_the_training(capsys):
    live = cl.live(open_browser=False)
    assert live.address is None
    fit([live], 3)
    assert re.fullmatch(r"live: http://127\.0\.0\.1:\d+/\?token=\S+\n", capsys.readouterr().out)
    assert not live.server._thread.is_alive()
    assert [thread for thread in threading.enumerate() if thread.name == "caffelite.web"] == []


def test_fit_after_fit_has_the_same_address_and_lists_the_runs_before():
    live = cl.live(open_browser=False)
    fit([live], 50)
    address = live.address
    with Looking(live) as looking:
        assert live.address == address
        runs = looking.page.wait_for("runs", lambda message: message["runs"])
        assert [(run["state"], run["epoch"]) for run in runs["runs"]] == [("finished", 50)]
        looking.page.ask("run", name=runs["runs"][0]["name"])
        assert looking.page.wait_for("run")["parts"]["status"]["epoch"] == 50


def test_one_callback_shows_one_training_at_a_time():
    with Looking() as looking, pytest.raises(RuntimeError, match=r"shows another training now"):
        fit([looking.live], 1)


def test_a_port_that_is_taken_ends_fit_before_its_first_step():
    with Looking() as looking:
        model = cl.MLP(2, [20, 3], seed=0)
        before = [p.data.copy() for p in model.parameters()]
        with pytest.raises(OSError, match="give another port, or port=0"):
            fit([cl.live(port=looking.live.port, open_browser=False)], 1, model=model)
        assert all((p.data == old).all() for p, old in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("port", [-1, 65536, True, "1", 1.5])
def test_an_impossible_port_raises(port):
    with pytest.raises((ValueError, TypeError), match="port"):
        cl.live(port=port)


def test_without_the_extra_it_is_reported_what_to_install():
    program = "import sys; sys.modules['uvicorn'] = None; import caffelite as cl; cl.live()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    needs = f"ImportError: cl.live needs uvicorn, which is not installed: {install_command('web')}"
    assert needs in done.stderr


def test_importing_caffelite_imports_nothing_of_it():
    program = "import sys, caffelite; print([m for m in sys.modules if m.split('.')[0] in ('starlette', 'uvicorn')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_training_that_fails_reports_it():
    live, page = cl.live(open_browser=False), []
    with pytest.raises(KeyError):
        fit([live, lambda epoch, history: page.append(Page(live)) if epoch == 0 else {}["no"]], 5)
    status = page[0].wait_for_state("failed")
    assert "KeyError" in status["why"]
    page[0].close()


def test_early_stopping_is_an_end_like_others():
    live, page = cl.live(open_browser=False), []
    fit([live, lambda epoch, history: page.append(Page(live)) or epoch == 0], 5)
    assert page[0].wait_for_state("finished")["why"] == "after 1 of 5 epochs"
    page[0].close()


def test_minimize_is_shown_too():
    pytest.importorskip("scipy")
    live, page = cl.live(open_browser=False), []
    model = cl.MLP(2, [5, 3], seed=0)
    cl.minimize(model, X, Y, loss=cl.SoftmaxLoss(), max_iterations=5, verbose=0,
                callbacks=[live, lambda epoch, history: None if page else page.append(Page(live))])  # fmt: skip
    assert page[0].wait_for_state("finished")["epoch"] == 5
    page[0].close()


def test_minimize_is_paused_and_ended_too():
    pytest.importorskip("scipy")
    live, page, results = cl.live(open_browser=False), [], []
    model = cl.MLP(2, [20, 3], seed=0)

    def look(epoch, history):
        if not page:
            page.append(Page(live))
            page[0].ask("pause")
            time.sleep(1)  # until the request has come through the socket: the training ends after some 60 epochs

    options = {"loss": cl.SoftmaxLoss(), "max_iterations": 10**6, "tolerance": 1e-12, "verbose": 0}
    thread = threading.Thread(
        target=lambda: results.append(cl.minimize(model, X, Y, callbacks=[look, live], **options)), daemon=True
    )
    thread.start()
    while not page:
        time.sleep(0.01)
    epoch = page[0].wait_for_state("paused")["epoch"]
    for kind in ("epoch", "step"):
        page[0].ask(kind)
        epoch += 1
        assert page[0].wait_for("status", lambda s, n=epoch: s["epoch"] >= n)["epoch"] == epoch
    page[0].ask("rate", value=1)
    assert page[0].wait_for("refused")["why"] == "L-BFGS chooses the length of each step"
    page[0].ask("stop")
    assert page[0].wait_for_state("stopped")["why"] == "from a page"
    thread.join(SECONDS)
    assert results[0].epochs == epoch
    page[0].close()


# ---- what a page may ask for ----------------------------------------------------------------------------------------


def test_a_page_pauses_makes_steps_and_epochs_and_goes_on():
    with Looking() as looking:
        page = looking.page
        page.ask("pause")
        first = page.wait_for_state("paused")["step"]
        for i in range(1, 4):
            page.ask("step")
            assert page.wait_for("status", lambda s, i=i: s["step"] >= first + i)["step"] == first + i
        epoch = page.messages["status"]["epoch"]
        page.ask("epoch")
        status = page.wait_for("status", lambda s: s["epoch"] == epoch + 1)
        time.sleep(0.3)
        assert page.messages["status"]["step"] == status["step"]
        assert status["step"] % 10 == 0  # it ended with an epoch
        page.ask("go")
        page.wait_for("status", lambda s: s["state"] == "running" and s["epoch"] > epoch + 10)


def test_a_page_ends_the_training_in_the_middle_of_an_epoch():
    model = cl.MLP(2, [20, 3], seed=0)
    with Looking(model=model, batch_size=1, x=np.repeat(X, 3000, axis=0), y=np.repeat(Y, 3000)) as looking:
        looking.page.wait_for("status", lambda s: s["step"] > 0)
        looking.page.ask("stop")
        status = looking.page.wait_for_state("stopped")
        assert (status["epoch"], status["why"]) == (0, "from a page")
    assert looking.error is None
    assert looking.result[1].epochs == 0


def test_a_page_changes_the_rate_and_a_schedule_keeps_its_form():
    model = cl.MLP(2, [20, 3], seed=0)
    optimizer = cl.SGD(model.parameters(), lr=0.05)
    with Looking(model=model, optimizer=optimizer) as looking:
        looking.page.ask("rate", value=0.01)
        assert looking.page.wait_for("status", lambda s: s["lr"] == 0.01)["scheduled"] is False
    assert optimizer.lr == 0.01
    optimizer = cl.SGD(model.parameters(), lr=cl.schedules.linear(0.05, 10**6))
    with Looking(model=model, optimizer=optimizer, epochs=10**5) as looking:
        looking.page.ask("pause")
        before = looking.page.wait_for_state("paused")["lr"]
        looking.page.ask("rate", value=before / 2)
        assert looking.page.wait_for("status", lambda s: s["lr"] < before)["scheduled"] is True
        looking.page.ask("step")
        looking.page.wait_for("status", lambda s: s["lr"] < before / 2)


def test_a_page_saves_the_model(tmp_path):
    with Looking() as looking:
        looking.page.ask("pause")
        looking.page.wait_for_state("paused")
        looking.page.ask("save")
        saved = looking.page.wait_for("saved")
        path = tmp_path / saved["name"]
        path.write_bytes(saved["content"].tobytes())
        model = cl.load(path)
    assert re.fullmatch(r"model-.*-epoch-\d+\.safetensors", saved["name"])
    assert model.predict(X).shape == (300, 3)


def test_a_page_saves_what_a_checkpoint_has_if_weights_are_averaged(tmp_path):
    beside = [cl.callbacks.AverageWeights(0.99), cl.callbacks.Checkpoint(tmp_path / "checkpoint")]
    with Looking(beside=beside) as looking:
        looking.page.ask("pause")
        epoch = looking.page.wait_for_state("paused")["epoch"]
        looking.page.ask("epoch")
        looking.page.wait_for("status", lambda s: s["epoch"] == epoch + 1)
        looking.page.ask("save")
        (tmp_path / "saved").write_bytes(looking.page.wait_for("saved")["content"].tobytes())
        assert bits(cl.load(tmp_path / "saved")) == bits(cl.load(tmp_path / "checkpoint"))


def test_pictures_are_of_the_averaged_weights_as_the_results_are():
    slow = cl.callbacks.AverageWeights(1 - 1e-9)  # they stay what they were at the beginning
    with Looking(beside=[slow], validation_split=0.2, metrics=["accuracy"]) as looking:
        looking.page.wait_for("status", lambda s: s["results"].get("accuracy", 0) > 0.9)
        looking.page.ask("pause")
        looking.page.wait_for_state("paused")
        regions, status = looking.page.wait_for("regions"), looking.page.messages["status"]
        np.testing.assert_allclose(regions["right"], status["results"]["val_accuracy"], atol=1e-6)
        assert regions["right"] < 0.7


def test_a_page_times_the_kernels_and_the_training_is_as_before():
    with Looking() as looking:
        page = looking.page
        page.ask("pause")
        step = page.wait_for_state("paused")["step"]
        before = looking.live._training.model.state_dict()
        before = {name: array.copy() for name, array in before.items()}
        page.ask("kernels")
        kernels = page.wait_for("kernels")
        assert sum(kernels["calls"]) >= len(kernels["names"]) > 5
        assert (kernels["times"] > 0).all()
        assert "sgd" in kernels["names"]
        after = looking.live._training.model.state_dict()
        assert all((after[name] == array).all() for name, array in before.items())
        assert page.messages["status"]["step"] == step


@pytest.mark.parametrize(
    "message",
    [{}, {"kind": "format"}, {"kind": ["go"]}, {"kind": "rate"}, {"kind": "rate", "value": -1},
     {"kind": "rate", "value": "1"}, {"kind": "rate", "value": True}, {"kind": "rate", "value": 10**400},
     {"kind": "run", "name": "../../etc/passwd"}, {"kind": "run", "name": 3}, {"kind": "run", "name": "x" * 10**5}],
)  # fmt: skip
def test_other_requests_raise_and_harm_nothing(message, tmp_path):
    with Looking(cl.live(open_browser=False, folder=tmp_path)) as looking:
        looking.page.socket.send(json.dumps(message))
        assert looking.page.wait_for("refused")["why"]
        step = looking.page.wait_for("status")["step"]
        looking.page.wait_for("status", lambda s: s["step"] > step)
    assert looking.error is None


def test_a_paused_training_goes_on_when_its_pages_have_gone(monkeypatch):
    monkeypatch.setattr(controls, "RESUME_AFTER", 0.3)
    with Looking() as looking:
        looking.page.ask("pause")
        step = looking.page.wait_for_state("paused")["step"]
        looking.page.close()
        end = time.monotonic() + SECONDS
        while looking.live._status.steps == step:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_a_pause_does_not_count_as_time_of_the_training():
    with Looking() as looking:
        looking.page.ask("pause")
        seconds = looking.page.wait_for_state("paused")["seconds"]
        time.sleep(1)
        looking.page.ask("step")
        later = looking.page.wait_for("status", lambda s, n=looking.page.messages["status"]["step"]: s["step"] > n)
        assert later["seconds"] - seconds < 0.5


def test_fit_leaves_a_pause_out_of_its_time_left(capsys, monkeypatch):
    waited = []
    monkeypatch.setattr(
        "caffelite.training.callbacks.progress.Progress.exclude_time", lambda self, seconds: waited.append(seconds)
    )
    with Looking(verbose=2, epochs=10**6) as looking:
        looking.page.ask("pause")
        looking.page.wait_for_state("paused")
        time.sleep(0.5)
    assert sum(waited) > 0.4


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the system has no file of it")
def test_it_shows_the_memory_and_the_cores_of_the_program():
    with Looking() as looking:
        cores = looking.page.wait_for("status", lambda s: s["cores"] is not None)["cores"]
        before = looking.page.messages["status"]["memory"]
        held = np.ones(2**24)
        assert looking.page.wait_for("status", lambda s: s["memory"] > before + held.nbytes // 2)
    assert 0 < cores <= 64


def test_two_pages_agree_and_a_page_that_is_closed_costs_nothing(monkeypatch):
    with Looking() as looking:
        other = Page(looking.live)
        looking.page.ask("pause")
        looking.page.wait_for_state("paused")
        other.wait_for_state("paused")
        assert looking.page.messages["status"]["step"] == other.messages["status"]["step"]
        other.close()
        looking.page.ask("go")
        looking.page.wait_for_state("running")
    live = cl.live(open_browser=False)
    made = []
    monkeypatch.setattr(updates.Updates, "_make", lambda self, name, *more: made.append(name))
    fit([live], 20_000)
    assert len([name for name in made if name == "status"]) <= 1  # at the end


class Batches:
    """Batches of 5, 7, 9 … steps: an epoch has no length."""

    def __init__(self):
        self.epochs = 0

    def __iter__(self):
        self.epochs += 1
        for _ in range(3 + 2 * self.epochs):
            yield X[:8], Y[:8]


def train_to_end(live, *, x=X, y=Y, callbacks=(), **options):
    """Train, and return the parts of the page at the end."""
    model = cl.MLP(2, [20, 3], seed=0)
    given = {"loss": cl.SoftmaxLoss(), "verbose": 0, "epochs": 3} | options
    optimizer = cl.SGD(model.parameters(), lr=0.05)
    model.fit(x, y, optimizer=optimizer, callbacks=[*callbacks, live], **given)
    return decode(live.runs.content(live.runs.list_runs()[0]["name"]))["parts"]


def test_the_x_of_curves_is_the_step(monkeypatch, tmp_path):
    monkeypatch.setattr(updates, "FAST_INTERVAL", 0.0)
    monkeypatch.setattr("caffelite.web.live.FAST_INTERVAL", 0.0)
    live = cl.live(open_browser=False, folder=tmp_path / "runs")
    slowly = cl.callbacks.Each(1, lambda step, training: time.sleep(0.002))
    checkpoint = cl.callbacks.Checkpoint(tmp_path / "state")
    curves = train_to_end(live, batch_size=8, callbacks=[slowly, checkpoint])["curves"]["curves"]
    per_epoch = -(-len(X) // 8)
    np.testing.assert_array_equal(curves["loss"]["x"], [per_epoch, 2 * per_epoch, 3 * per_epoch])
    for name in ("loss of the last steps", "learning rate", "steps per second"):
        assert len(curves[name]["x"]) > per_epoch, name
        assert (np.diff(curves[name]["x"]) > 0).all(), name
    parts = train_to_end(live, batch_size=8, callbacks=[slowly], resume=tmp_path / "state", epochs=4)
    curves = parts["curves"]["curves"]
    np.testing.assert_array_equal(curves["loss"]["x"], np.arange(1, 5) * per_epoch)
    assert curves["learning rate"]["x"].min() > 3 * per_epoch
    assert parts["status"]["step"] == 4 * per_epoch


def test_epochs_without_a_length_end_at_their_last_steps(monkeypatch):
    monkeypatch.setattr(updates, "FAST_INTERVAL", 0.0)
    monkeypatch.setattr("caffelite.web.live.FAST_INTERVAL", 0.0)
    live, pages = cl.live(open_browser=False), []
    look = cl.callbacks.Each(1, lambda step, training: pages or pages.append(Page(live)))
    curves = train_to_end(live, x=Batches(), y=None, callbacks=[look])["curves"]["curves"]
    np.testing.assert_array_equal(curves["loss"]["x"], [5, 12, 21])
    assert (np.diff(curves["loss of the last steps"]["x"]) > 0).all()
    assert curves["loss of the last steps"]["x"].min() < 5
    pages[0].close()


# ---- what it shows --------------------------------------------------------------------------------------------------


def test_it_shows_curves_layers_units_and_the_plane():
    with Looking(metrics=["accuracy"], validation_split=0.2) as looking:
        curves = looking.page.wait_for("curves", lambda m: len(m["curves"].get("val_accuracy", {"y": ()})["y"]) > 50)
        layers = looking.page.wait_for("layers")
        units, regions = looking.page.wait_for("units"), looking.page.wait_for("regions")
        looking.page.wait_for("curves", lambda m: m["sizes"].keys() == {"0 Linear", "2 Linear"})
        histograms = looking.page.wait_for("histograms", lambda m: len(m["steps"]) > 2)
    history = looking.result[1]
    assert {"loss", "val_loss", "accuracy", "val_accuracy", "learning rate", "steps per second"} <= curves[
        "curves"
    ].keys()
    np.testing.assert_allclose(curves["curves"]["loss"]["y"][0], history["loss"][0], rtol=0.7)
    assert [row["name"] for row in layers["rows"]] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert all(row["size"] > 0 and row["gradient"] > 0 for row in layers["rows"])
    assert [row["name"] for row in histograms["rows"]] == ["0 Linear", "2 Linear"]
    assert all(np.isfinite(row["weights"]).all() and (row["gradients"] >= 0).all() for row in histograms["rows"])
    assert (np.diff(histograms["steps"]) > 0).all()
    assert [row["function"] for row in units["rows"]] == ["Linear(2, 20)", "ReLU()", "Linear(20, 3)"]
    assert (regions["classes"], regions["labels"].shape, regions["held_out"]) == (
        3,
        (snapshots.GRID, snapshots.GRID),
        True,
    )
    assert len(regions["points"]) == 60
    assert 0 <= regions["right"] <= 1


def watch_training(model, x, y, loss, optimizer=True, **options):
    """Return a Watched of a training that has made an epoch."""
    found = []

    class Keep:
        def begin(self, training):
            self.training = training

        def __call__(self, epoch, history):
            found.append(snapshots.TrainingView(self.training))

    optimizer = cl.SGD(model.parameters(), lr=0.01)
    model.fit(x, y, loss=loss, optimizer=optimizer, verbose=0, callbacks=[Keep()], **options)
    return found[0]


def test_the_plane_of_two_classes_by_one_output_and_of_numbers():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 2))
    model = cl.MLP(2, [5, 1], seed=0)
    found = snapshots.regions(watch_training(model, x, (x[:, :1] > 0).astype(float), cl.SigmoidLoss()))
    assert found["classes"] == 2
    assert found["right"] == ((model.predict(x) > 0) == (x[:, :1] > 0)).mean()
    found = snapshots.regions(watch_training(model, x, x[:, :1], cl.MSELoss()))
    assert found["values"].shape == (snapshots.GRID, snapshots.GRID)
    assert (
        snapshots.regions(
            watch_training(cl.MLP(3, [1], seed=0), rng.normal(size=(9, 3)), np.zeros((9, 1)), cl.MSELoss())
        )
        is None
    )


@pytest.mark.parametrize("kind", ["convolution", "linear", "in colour"])
def test_images_have_filters_and_mistakes(kind):
    rng = np.random.default_rng(0)
    channels = 3 if kind == "in colour" else 1
    x, y = rng.normal(size=(40, channels, 6, 7)), rng.integers(0, 3, 40)
    first = [cl.Flatten(), cl.Linear(42, 8)] if kind == "linear" else [cl.Conv2d(channels, 8, 3), cl.Flatten()]
    model = cl.Model([*first, cl.ReLU(), cl.Linear(8 if kind == "linear" else 160, 3)], seed=0)
    found = watch_training(model, x, y, cl.SoftmaxLoss())
    filters, mistakes = snapshots.filters(found), snapshots.mistakes(found)
    weight = first[1 if kind == "linear" else 0].weight.data
    if kind == "linear":
        np.testing.assert_array_equal(filters["filters"][2, :, :, 0], weight[:, 2].reshape(6, 7))
    else:
        np.testing.assert_array_equal(filters["filters"], np.moveaxis(weight, 1, -1))
    wrong = model.predict(x).argmax(axis=1) != y
    assert (mistakes["wrong"], mistakes["of"]) == (wrong.sum(), 40)
    assert mistakes["images"].shape == (min(18, wrong.sum()), 6, 7, channels)
    assert (np.diff(mistakes["sure"]) <= 1e-6).all()
    assert (mistakes["truth"] != mistakes["taken_for"]).all()
    assert mistakes["counts"].sum() - np.trace(mistakes["counts"]) == wrong.sum()


def test_a_classifier_of_rows_has_a_confusion_matrix():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 5)), rng.integers(0, 4, 60)
    y[:5] = -1
    model = cl.MLP(5, [9, 4], seed=0)
    found = snapshots.mistakes(watch_training(model, x, y, cl.SoftmaxLoss(ignore=-1)))
    predicted = model.predict(x[5:]).argmax(axis=1)
    counts = np.zeros((4, 4), int)
    np.add.at(counts, (y[5:], predicted), 1)
    np.testing.assert_array_equal(found["counts"], counts)
    assert (found["of"], found["wrong"]) == (55, (predicted != y[5:]).sum())
    assert "images" not in found
    two = cl.MLP(5, [9, 1], seed=0)
    found = snapshots.mistakes(watch_training(two, x, (x[:, :1] > 0).astype(float), cl.SigmoidLoss()))
    np.testing.assert_array_equal(found["counts"].sum(axis=1), [(x[:, 0] <= 0).sum(), (x[:, 0] > 0).sum()])
    assert snapshots.mistakes(watch_training(cl.MLP(5, [1], seed=0), x, x[:, :1], cl.MSELoss())) is None


@pytest.mark.parametrize("characters", [True, False])
def test_a_model_of_text_writes_some_tokens_at_each_update(characters):
    model, x, y = language_model(characters)
    vocabulary = model.vocabulary
    del model.vocabulary
    view = watch_training(model, x, y, cl.SoftmaxLoss(), epochs=20)
    assert text.TextSampler(view).write(0.0) is None
    model.vocabulary = vocabulary
    writer = text.TextSampler(view)
    length = {True: text.CHARACTERS, False: text.WORDS}[characters]
    for view.place in range(1, length + 4):
        message = writer.write(0.0)
    whole, begun = message["texts"]
    assert message["given"] == vocabulary.decode(x[0])
    assert (whole["first_step"], whole["last_step"], whole["is_whole"]) == (1, length, True)
    assert (begun["first_step"], begun["last_step"], begun["is_whole"]) == (length + 1, length + 3, False)
    assert [len(vocabulary.encode(t["written"])) for t in message["texts"]] == [length, 3]
    assert set(whole["written"]) <= set("the cat sat on the mat. ")
    for _ in range(40):
        message = writer.write(1.0)
    assert len(message["texts"]) <= text.MAX_TEXTS
    assert message["texts"][0] == whole


@pytest.mark.parametrize("rotary", [False, True])
def test_maps_of_attention_are_the_weights_of_the_values(rotary):
    model, x, y = language_model()
    layer = cl.MultiHeadAttention(8, heads=2, rotary=rotary, causal=rotary)
    model = cl.Model([model[0], layer, cl.TransformerBlock(8, heads=4, causal=True), model[2]], seed=0)
    message = text.attention(watch_training(model, x, y, cl.SoftmaxLoss()))
    assert [a.shape for a in message["maps"]] == [(2, 8, 8), (4, 8, 8)]
    assert message["tokens"] is None
    layer.forward(model[0].forward(x[:1]))
    p = text.attention_probabilities(layer)
    np.testing.assert_array_equal(np.round(255 * p), message["maps"][0])
    values = layer.v[0].reshape(8, 2, 4).transpose(1, 0, 2)
    np.testing.assert_allclose((p @ values).transpose(1, 0, 2).reshape(1, 8, 8), layer.h, rtol=1e-4, atol=1e-6)
    assert not np.triu(message["maps"][1], 1).any()
    plain = cl.MLP(2, [3], seed=0)
    assert text.attention(watch_training(plain, X, Y, cl.SoftmaxLoss())) is None


@pytest.mark.parametrize("data", ["tokens", "frame", "batches", "two inputs", "call", "sparse"])
def test_any_training_can_be_shown(data):
    class Two(cl.Model):
        def __init__(self):
            super().__init__(seed=0)
            self.f = cl.Linear(3, 1)

        def call(self, a, b=None):
            return self.f(a if b is None else a + b)

    rng = np.random.default_rng(0)
    x, y, loss, model = rng.normal(size=(20, 3)), rng.normal(size=(20, 1)), cl.MSELoss(), cl.MLP(3, [2, 1], seed=0)
    if data == "tokens":
        x, model = rng.integers(0, 5, (20, 4)), cl.Model([cl.Embedding(5, 3), cl.Flatten(), cl.Linear(12, 1)], seed=0)
    if data == "frame":
        x = {"a": rng.normal(size=20), "b": rng.choice(["x", "y"], 20)}
        model = cl.Model([cl.Splines(x, 4), cl.ReLU(), cl.Linear(4, 1)], seed=0)
    if data in ("two inputs", "call"):
        x, model = (x, x) if data == "two inputs" else x, Two()
    if data == "sparse":
        x = pytest.importorskip("scipy.sparse").csr_matrix(x)
    live, page = cl.live(open_browser=False), []
    given = {"loss": loss, "optimizer": cl.SGD(model.parameters(), lr=0.01), "verbose": 0, "epochs": 3}
    batches = [(x[:10], y[:10]), (x[10:], y[10:])] if data == "batches" else None
    callbacks = [live, lambda epoch, history: None if page else page.append(Page(live))]
    model.fit(*([batches] if batches else [x, y]), callbacks=callbacks, **given)
    status = page[0].wait_for_state("finished")
    assert (status["epoch"], status["parameters"]) == (3, sum(p.size for p in model.parameters()))
    if data != "batches":
        units = page[0].wait_for("units")
        assert "error" not in units, units
    page[0].close()


def test_a_part_that_cannot_be_made_reports_it_and_the_training_goes_on(monkeypatch):
    def fails(watch_training):
        raise ArithmeticError("no picture")

    monkeypatch.setitem(updates.PARTS, "regions", fails)
    with Looking() as looking:
        assert looking.page.wait_for("regions")["error"] == "ArithmeticError: no picture"
    assert looking.error is None
    assert looking.page.kinds.count("regions") == 1


# ---- values of the user's own ---


def test_own_numbers_become_curves_and_own_arrays_pictures():
    live = cl.live(open_browser=False, name="my net")

    def log(epoch, history):
        live.log("gap", history["loss"][-1] - 1)
        live.log("tensor", cl.Tensor(np.float32(epoch)))
        live.log("weights", np.arange(6.0).reshape(2, 3) + epoch)
        live.log("colours", [[[0, 255]], [[255, 0]], [[0, 0]]])

    parts = train_to_end(live, callbacks=[log], batch_size=8)
    curves, per_epoch = parts["curves"]["curves"], -(-len(X) // 8)
    np.testing.assert_array_equal(curves["gap"]["x"], curves["loss"]["x"])
    np.testing.assert_allclose(curves["gap"]["y"], curves["loss"]["y"] - 1, rtol=1e-5)
    np.testing.assert_array_equal(curves["tensor"]["y"], [0, 1, 2])
    assert parts["curves"]["logged"] == ["gap", "tensor"]
    weights, colours = parts["pictures"]["pictures"]
    assert (weights["name"], weights["step"]) == ("weights", 3 * per_epoch)
    np.testing.assert_array_equal(weights["pixels"][..., 0], [[0, 51, 102], [153, 204, 255]])
    np.testing.assert_array_equal(colours["pixels"], [[[0, 255, 0], [255, 0, 0]]])
    assert parts["status"]["title"] == "my net"


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("loss", 1.0, ValueError, "the page has a curve 'loss' already"),
        ("learning rate", 1.0, ValueError, "the page has a curve 'learning rate' already"),
        ("", 1.0, ValueError, "name is a text of 1 to 60 characters, got ''"),
        (3, 1.0, ValueError, "name is a text of 1 to 60 characters, got 3"),
        ("a", "high", TypeError, r"'a' is a number, or a picture of shape .*; got str"),
        ("a", np.zeros((2, 4, 4)), TypeError, r"got shape \(2, 4, 4\)"),
        ("a", np.zeros((300, 4)), ValueError, r"1 to 256 pixels a side, got 'a' of shape \(300, 4\)"),
        ("gap", np.zeros((4, 4)), ValueError, "'gap' is a number or a picture, and not both"),
    ],
)
def test_a_value_that_cannot_be_shown_raises_and_changes_nothing(name, value, error, message):
    live, errors = cl.live(open_browser=False), []

    def log(epoch, history):
        live.log("gap", epoch)
        with pytest.raises(error, match=message) as raised:
            live.log(name, value)
        errors.append(raised)

    parts = train_to_end(live, callbacks=[log])
    assert len(errors) == 3
    assert parts["curves"]["logged"] == ["gap"]
    assert "pictures" not in parts
    with pytest.raises(RuntimeError, match="no training runs; call it in a callback of fit"):
        live.log("gap", 1)


def test_own_names_are_limited():
    live = cl.live(open_browser=False)

    def log(epoch, history):
        for i in range(33):
            live.log(f"value {i}", i)

    with pytest.raises(ValueError, match="at most 32 names, got 'value 32' as another one"):
        train_to_end(live, callbacks=[log])


@pytest.mark.parametrize("name", ["", " ", "x" * 81, 3])
def test_a_run_needs_a_name_that_is_a_text(name):
    with pytest.raises(ValueError, match="live: name is a text of 1 to 80 characters, got"):
        cl.live(name=name)


@pytest.mark.parametrize("note", ["", " ", "x" * 501, 3])
def test_a_note_is_a_text(note):
    with pytest.raises(ValueError, match="live: note is a text of 1 to 500 characters, got"):
        cl.live(note=note)


# ---- attacks --------------------------------------------------------------------------------------------------------


def test_a_training_that_is_attacked_has_the_bits_of_one_that_is_not():
    def attack():
        """Wrong tokens, other origins and hosts, huge and bad messages, readers that do not read, many connections."""
        origin = live.address.partition("/?")[0]
        place = live.address.replace("http", "ws").replace("/?", "/socket?")
        huge, others = "x" * 2**21, {"Host": "evil.example"}
        with contextlib.ExitStack() as stack:
            for i in range(40):
                attacks = [
                    {"uri": place[:-1], "origin": origin},
                    {"uri": place, "origin": "http://evil.example"},
                    {"uri": place, "origin": origin, "additional_headers": others},
                    {"uri": place, "origin": origin},
                ]
                for options in attacks:
                    with contextlib.suppress(WebSocketException, OSError):
                        page = stack.enter_context(connect(**options, proxy=None, close_timeout=0.1))
                        page.send(["{", huge, '{"kind": "rate", "value": -1}', '{"kind": "run", "name": ".."}'][i % 4])
                done.append(i)

    alone, _ = fit(epochs=60_000)
    live, done = cl.live(open_browser=False), []
    thread = threading.Thread(target=attack)
    begin = live.begin
    live.begin = lambda training: (begin(training), thread.start())
    attacked, _ = fit([live], epochs=60_000)
    thread.join()
    assert len(done) > 3
    assert bits(attacked) == bits(alone)


# ---- Ctrl-C ---------------------------------------------------------------------------------------------------------


@posix
@pytest.mark.parametrize("is_paused", [False, True])
def test_ctrl_c_ends_all_and_the_page_reports_it(is_paused, program):
    page = Page(program.address)
    page.wait_for("status")
    if is_paused:
        page.ask("pause")
        page.wait_for_state("paused")
    program.send_signal(signal.SIGINT)
    _, errors = program.communicate(timeout=SECONDS)
    assert "KeyboardInterrupt" in errors.splitlines()[-1]
    assert page.wait_for_state("stopped")["why"] == "Ctrl-C"
    page.thread.join(SECONDS)
    assert not page.thread.is_alive()
