"""`cl.live()`: who may reach its server, what its page shows, and that a training is the same with it."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from conftest import bits

import caffelite as cl

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
client = pytest.importorskip("websockets.sync.client")
exceptions = pytest.importorskip("websockets.exceptions")

from caffelite.web import live as live_module  # noqa: E402
from caffelite.web import server as server_module  # noqa: E402
from caffelite.web.messages import encode  # noqa: E402
from caffelite.web.server import Server  # noqa: E402

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
SECONDS = 20  # that anything may take


def decoded(content):
    """A message as the page reads it."""
    length = int.from_bytes(content[:4], "little")
    start = 4 + length

    def revived(x):
        if isinstance(x, list):
            return [revived(item) for item in x]
        if isinstance(x, dict) and "$array" in x:
            size = int(np.prod(x["$array"]))
            return np.frombuffer(content, x["type"], size, start + x["at"]).reshape(x["$array"])
        return {name: revived(value) for name, value in x.items()} if isinstance(x, dict) else x

    return revived(json.loads(content[4:start]))


# ---- messages -------------------------------------------------------------------------------------------------------


def test_messages_carry_arrays_of_any_shape():
    message = {
        "kind": "é",
        "a": np.arange(6.0).reshape(2, 3),
        "b": [np.array([True, False]), {"c": np.array([1, -2]), "d": np.zeros((0, 3), np.uint8)}],
        "e": [None, 1, 2.5, float("nan"), np.float32(0.5), np.int64(7)],
    }
    found = decoded(encode(message))
    np.testing.assert_array_equal(found["a"], message["a"])
    assert found["a"].dtype == np.float32
    np.testing.assert_array_equal(found["b"][0], [1, 0])
    np.testing.assert_array_equal(found["b"][1]["c"], [1, -2])
    assert found["b"][1]["d"].shape == (0, 3)
    assert found["kind"] == "é"
    assert found["e"] == [None, 1, 2.5, None, 0.5, 7]


# ---- the server -----------------------------------------------------------------------------------------------------


class Echo:
    """A room that sends back what it gets."""

    page = "live.html"

    def __init__(self):
        self.channels, self.got = [], []

    def joined(self, channel):
        self.channels.append(channel)
        channel.send("hello", {"x": np.arange(3)})

    def received(self, channel, message):
        self.got.append(message)
        if message.get("bad"):
            raise ValueError("it is bad")
        channel.send("echo", message)

    def left(self, channel):
        self.channels.remove(channel)


@pytest.fixture
def room():
    return Echo()


@pytest.fixture
def server(room):
    server = Server(room)
    server.start()
    wait_until(lambda: server._server.started)
    yield server
    server.stop()


def wait_until(is_done, seconds=SECONDS):
    end = time.monotonic() + seconds
    while not is_done():
        assert time.monotonic() < end
        time.sleep(0.01)


def connected(server, origin=None, token=None, host=None, **options):
    token = server.token if token is None else token
    origin = f"http://127.0.0.1:{server.port}" if origin is None else origin
    address = f"ws://{host or '127.0.0.1'}:{server.port}/socket?token={token}"
    return client.connect(address, origin=origin or None, open_timeout=SECONDS, **options)


def answer(server, path, host=None):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=SECONDS)) as connection:
        connection.request("GET", path, headers={"Host": host or f"127.0.0.1:{server.port}"})
        response = connection.getresponse()
        return response.status, response.headers, response.read()


def test_the_page_needs_the_token(server):
    path = server.address.removeprefix(f"http://127.0.0.1:{server.port}")
    status, headers, content = answer(server, path)
    assert status == 200
    assert b"<!doctype html>" in content
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    for wrong in ("/", "/?token=", "/?token=x", path[:-1]):
        status, headers, content = answer(server, wrong)
        assert status == 403
        assert b"<!doctype" not in content
        assert headers["Content-Security-Policy"] == policy


def test_only_files_of_the_pages_are_served(server):
    assert answer(server, "/static/live.js")[0] == 200
    assert answer(server, "/static/style.css")[1]["Content-Type"].startswith("text/css")
    for path in (
        "/static/live.html",
        "/static/..%2fserver.py",
        "/static/../server.py",
        "/static/none.js",
        "/static/",
        "/etc",
    ):
        assert answer(server, path)[0] == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "0.0.0.0:{port}"])
def test_another_host_is_not_answered(host, server):
    path = server.address.removeprefix(f"http://127.0.0.1:{server.port}")
    status, _, content = answer(server, path, host.format(port=server.port))
    assert (status, content) == (421, b"This is another host.")


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "https://127.0.0.1:{port}", "http://127.0.0.1:1", "null", ""]
)
def test_a_socket_of_another_origin_is_refused(origin, server, room):
    with (
        pytest.raises(exceptions.InvalidStatus, match="403"),
        connected(server, origin=origin.format(port=server.port)),
    ):
        pass
    assert room.channels == []


def test_a_socket_with_a_wrong_token_is_refused(server):
    for token in ("", "x", server.token[:-1], server.token + "x"):
        with pytest.raises(exceptions.InvalidStatus, match="403"), connected(server, token=token):
            pass


def test_a_socket_talks_both_ways_and_what_is_no_message_is_refused(server, room):
    with connected(server) as page:
        assert decoded(page.recv())["kind"] == "hello"
        page.send(json.dumps({"a": 1}))
        assert decoded(page.recv()) == {"kind": "echo", "a": 1}
        for text in ("nonsense", "[1]", '{"bad": 1}', "[" * 100_000):
            page.send(text)
            assert decoded(page.recv())["kind"] == "refused"
    wait_until(lambda: room.channels == [])


def test_a_message_that_is_too_long_ends_the_page_alone(server):
    with connected(server) as page, connected(server) as other:
        page.recv()
        page.send("x" * (server_module.LONGEST + 1))
        with pytest.raises(exceptions.ConnectionClosedError, match="1009"):
            page.recv(timeout=SECONDS)
        other.recv()
        other.send("{}")
        assert decoded(other.recv(timeout=SECONDS))["kind"] == "echo"


def test_a_page_too_many_is_told_so(server, monkeypatch):
    monkeypatch.setattr(server_module, "MOST_PAGES", 3)
    with contextlib.ExitStack() as stack:
        pages = [stack.enter_context(connected(server)) for _ in range(100)]
        assert decoded(pages[0].recv())["kind"] == "hello"
        for page in pages[3:]:
            with pytest.raises(exceptions.ConnectionClosedError, match="3 pages are open already"):
                page.recv(timeout=SECONDS)
    wait_until(lambda: server.pages == 0)


def test_a_page_that_reads_slowly_misses_messages_and_memory_stays_bounded(server, room):
    with connected(server, max_queue=1) as page:
        wait_until(lambda: room.channels)
        (channel,) = room.channels
        array = np.zeros(100_000)
        for i in range(300):  # 120 MB in all
            channel.send("numbers", {"i": i, "array": array})
        assert len(channel._waiting) <= 2
        found = []
        while not found or found[-1] < 299:
            message = decoded(page.recv(timeout=SECONDS))
            if message["kind"] == "numbers":
                found.append(message["i"])
        assert len(found) < 300
        assert found == sorted(found)


def test_a_server_that_stops_does_so_at_once_and_again(room):
    server = Server(room)
    server.start()
    wait_until(lambda: server._server.started)
    with connected(server) as page:
        page.recv()
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 5
        with pytest.raises(exceptions.ConnectionClosed):
            page.recv(timeout=SECONDS)
    server.stop()
    channel = server_module.Channel(server_module.asyncio.new_event_loop())
    channel._loop.close()
    channel.send("numbers", {})  # to nobody


def test_a_port_that_is_taken_is_named(server):
    with pytest.raises(OSError, match=f"give another port, or port=0: '127.0.0.1:{server.port}'"):
        Server(Echo(), server.port)


# ---- the callback ---------------------------------------------------------------------------------------------------


@pytest.fixture
def watching(monkeypatch):
    """A callback whose server ends with the test."""
    monkeypatch.setattr(live_module, "_servers", {})
    yield cl.live(open_browser=False)
    for page in live_module._servers.values():
        page.server.stop()


def train(callbacks, epochs=30, seed=0, **options):
    x, y = cl.datasets.spiral(seed=seed)
    model = cl.Model(
        [cl.Linear(2, 16), cl.ReLU(), cl.Dropout(0.1), cl.Linear(16, 8), cl.Tanh(), cl.Linear(8, 3)], seed=seed
    )
    given = {"loss": cl.SoftmaxLoss(), "optimizer": cl.Adam(model.parameters(), lr=0.01), "verbose": 0, **options}
    history = model.fit(x, y, epochs=epochs, metrics=["accuracy"], validation_split=0.2, callbacks=callbacks, **given)
    return model, history


class Page:
    """A page in Python: the last message of each kind, and what it asks for."""

    def __init__(self, address):
        origin, _, token = address.partition("/?")
        self.stack = contextlib.ExitStack()
        address = f"{origin.replace('http', 'ws')}/socket?{token}"
        self.socket = self.stack.enter_context(client.connect(address, origin=origin, max_size=None))
        self.last, self.count = {}, 0
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        with contextlib.suppress(exceptions.ConnectionClosed):
            for content in self.socket:
                message = decoded(content)
                self.last[message["kind"]] = message
                self.count += 1

    def ask(self, what, **more):
        self.socket.send(json.dumps({"ask": what, **more}))

    def wait_for(self, kind, is_right=lambda message: True):
        wait_until(lambda: kind in self.last and is_right(self.last[kind]))
        return self.last[kind]

    def close(self):
        self.stack.close()
        self.thread.join(SECONDS)


@contextlib.contextmanager
def looking(watching, **options):
    """A training that takes long, in a thread, and a page that looks at it. Yields the page and what comes of it."""
    found = {}

    def run():
        try:
            found["model"], found["history"] = train([watching], 200_000, **options)
        except BaseException as error:
            found["error"] = error

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: watching.address is not None or "error" in found)
    page = Page(watching.address)
    try:
        yield page, found
    finally:
        page.ask("stop")
        thread.join(SECONDS)
        page.close()
    assert not thread.is_alive()
    assert "error" not in found, found.get("error")


def test_a_training_with_a_page_has_the_bits_of_one_without(watching, capsys):
    alone, _ = train([], 300)
    train([watching], 1)
    assert capsys.readouterr().out == f"caffelite: the training is shown at {watching.address}\n"
    page = Page(watching.address)
    shown, history = train([watching], 300)
    progress = page.wait_for("progress", lambda message: message["state"] == "ended")
    assert bits(shown) == bits(alone)
    assert (progress["epoch"], progress["epochs"], progress["step"]) == (300, 300, 300 * 8)
    assert capsys.readouterr().out == ""  # the same page
    for name, curve in progress["curves"].items():
        assert curve["epoch"][-1] == 300
        np.testing.assert_allclose(curve["value"], np.array(history[name])[curve["epoch"] - 1], rtol=1e-6)
    page.close()


def test_the_page_shows_layers_and_the_plane(watching):
    with looking(watching) as (page, _):
        run = page.wait_for("run")
        layers = page.wait_for("layers")["layers"]
        plane = page.wait_for("plane")
    assert run["parameters"] == 2 * 16 + 16 + 16 * 8 + 8 + 8 * 3 + 3
    assert run["view"] == "plane"
    assert [layer["name"] for layer in layers] == [
        f"{i} {name}" for i, name in enumerate(["Linear", "ReLU", "Dropout", "Linear", "Tanh", "Linear"])
    ]
    assert all(layer["weights"] > 0 and layer["gradients"] > 0 for layer in layers if layer["size"])
    assert 0 <= layers[1]["dead"] <= 1
    assert 0 <= layers[4]["saturated"] <= 1
    np.testing.assert_allclose(plane["scores"].sum(axis=-1), 1, rtol=1e-5)
    assert plane["x"].shape == (240, 2)
    assert set(plane["y"]) == {0, 1, 2}


def test_a_page_pauses_takes_a_step_goes_on_changes_the_rate_saves_and_stops(watching, tmp_path):
    with looking(watching) as (page, found):
        page.wait_for("progress", lambda message: message["epoch"] > 3)
        page.ask("pause")
        paused = page.wait_for("progress", lambda message: message["state"] == "paused")
        time.sleep(0.3)
        assert page.last["progress"]["step"] == paused["step"]
        for i in range(1, 4):
            page.ask("step")
            page.wait_for(
                "progress", lambda message, i=i: message["step"] == paused["step"] + i and message["state"] == "paused"
            )
        page.ask("rate", value=0.002)
        page.wait_for("progress", lambda message: abs(message["lr"] - 0.002) < 1e-9)
        page.ask("save")
        saved = page.wait_for("model")
        path = tmp_path / "model.safetensors"
        path.write_bytes(saved["bytes"].tobytes())
        assert repr(cl.load(path)).startswith("Model([Linear(2, 16)")
        page.ask("go")
        page.wait_for("progress", lambda message: message["epoch"] > paused["epoch"] + 3)
        for wrong in ({"what": "rate", "value": -1}, {"what": "rate", "value": "x"}, {"what": "fly"}):
            page.last.pop("refused", None)
            page.ask(wrong.pop("what"), **wrong)
            page.wait_for("refused")
        page.ask("stop")
        page.wait_for("progress", lambda message: message["state"] == "stopped")
    assert found["history"].epochs < 200_000


def test_a_page_that_is_closed_while_the_training_waits_lets_it_go_on(watching):
    with looking(watching) as (page, _):
        page.ask("pause")
        paused = page.wait_for("progress", lambda message: message["state"] == "paused")
        page.close()
        page.__init__(watching.address)
        page.wait_for("progress", lambda message: message["state"] == "running" and message["step"] > paused["step"])


def test_two_pages_agree_and_one_that_comes_late_sees_a_training_that_has_ended(watching):
    with looking(watching) as (page, _):
        other = Page(watching.address)
        other.ask("pause")
        states = [p.wait_for("progress", lambda message: message["state"] == "paused") for p in (page, other)]
        assert states[0]["step"] == states[1]["step"]
        other.close()
        page.ask("stop")
    late = Page(watching.address)
    assert late.wait_for("progress")["state"] == "stopped"
    assert late.wait_for("plane")["classes"] is True
    late.ask("pause")
    assert late.wait_for("refused")["why"] == "the training has ended"
    late.ask("save")
    assert len(late.wait_for("model")["bytes"]) > 1000
    late.close()


def test_images_show_mistakes_and_filters(watching):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 1, 8, 8)), rng.integers(0, 10, 64)
    model = cl.Model([cl.Conv2d(1, 4, 3), cl.ReLU(), cl.Flatten(), cl.Linear(4 * 36, 10)], seed=0)
    given = {"loss": cl.SoftmaxLoss(), "optimizer": cl.SGD(model.parameters(), lr=1e-4), "verbose": 0}
    model.fit(x, y, epochs=1, callbacks=[watching], **given)
    page = Page(watching.address)
    model.fit(x, y, epochs=2, callbacks=[watching], **given)
    images = page.wait_for("images")
    page.close()
    guesses = model.predict(x).argmax(axis=1)
    wrong = np.flatnonzero(guesses != y)
    assert (images["wrong"], images["of"]) == (len(wrong), 64)
    np.testing.assert_array_equal(images["truth"], y[wrong[:24]])
    np.testing.assert_array_equal(images["guesses"], guesses[wrong[:24]])
    assert images["images"].shape == (min(24, len(wrong)), 8, 8, 1)
    assert images["filters"].shape == (4, 3, 3, 1)


@pytest.mark.parametrize("data", ["tokens", "frame", "batches", "two inputs", "call"])
def test_any_training_can_be_shown(data, watching):
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
    given = {"loss": loss, "optimizer": cl.SGD(model.parameters(), lr=0.01), "verbose": 0, "epochs": 3}
    batches = [(x[:10], y[:10]), (x[10:], y[10:])] if data == "batches" else None
    train([watching], 1)
    page = Page(watching.address)
    model.fit(*([batches] if batches else [x, y]), callbacks=[watching], **given)
    progress = page.wait_for("progress", lambda message: message["state"] == "ended" and message["epochs"] == 3)
    layers = page.wait_for(
        "layers", lambda message: len(message["layers"]) == (len(model.functions) if model.is_sequence() else 1)
    )
    assert progress["epoch"] == 3
    assert sum(layer["size"] for layer in layers["layers"]) == sum(p.size for p in model.parameters())
    page.close()


def test_curves_of_a_folder_are_kept_and_shown_beside_the_next_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(live_module, "_servers", {})
    monkeypatch.setattr(live_module, "NAME", "first")
    folder = tmp_path / "runs"
    watching = cl.live(open_browser=False, folder=folder)
    _, history = train([watching], 5)
    content = json.loads((folder / "first.json").read_text())
    assert content["history"] == dict(history)
    (folder / "other.json").write_text("{}")
    (folder / "broken.json").write_text("{")
    monkeypatch.setattr(live_module, "NAME", "second")
    page = Page(watching.address)
    train([watching], 6)
    run = page.wait_for("run", lambda message: message["name"] == "second")
    assert [(other["name"], len(other["history"]["loss"])) for other in run["earlier"]] == [("first", 5)]
    page.close()
    live_module._servers[0].server.stop()


def test_early_stopping_beside_a_page_that_nobody_looks_at_stays_without_python(watching, monkeypatch):
    looks = []
    monkeypatch.setattr(cl.callbacks.EarlyStopping, "look", lambda self, *given: looks.append(1))
    calls = []
    call = cl.callbacks.EarlyStopping.call
    monkeypatch.setattr(
        cl.callbacks.EarlyStopping, "call", lambda self, others: calls.append(call(self, others)) or calls[-1]
    )
    train([cl.callbacks.EarlyStopping(patience=3000), watching], 3000)
    assert any(made is not None for made in calls)
    assert len(calls) < 1000


@pytest.mark.parametrize("given", [{"port": -1}, {"port": 65536}, {"port": True}, {"port": "1"}])
def test_a_port_that_is_none_is_refused(given):
    with pytest.raises(ValueError, match=r"live: port: expected an integer of 0 … 65535"):
        cl.live(**given)


def test_without_the_extra_it_is_said_what_to_install():
    program = "import sys; sys.modules['uvicorn'] = None; import caffelite as cl; cl.live()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "ImportError: cl.live needs uvicorn, which is not installed: pip install 'caffelite[web]'" in done.stderr


PROGRAM = """
import caffelite as cl
x, y = cl.datasets.spiral(seed=0)
model = cl.MLP(2, [30, 3], seed=0)
model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=cl.SGD(model.parameters(), lr=0.1), epochs=10**8, verbose=0,
          validation_split=0.2, metrics=["accuracy"], callbacks=[cl.live(open_browser=False)])
"""


@pytest.fixture
def program():
    """A program that trains until it is interrupted, and the address of its page."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.address = process.stdout.readline().rpartition(" ")[2].strip()
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("is_paused", [False, True])
def test_ctrl_c_ends_all(is_paused, program):
    page = Page(program.address)
    if is_paused:
        page.ask("pause")
        page.wait_for("progress", lambda message: message["state"] == "paused")
    program.send_signal(signal.SIGINT)
    _, errors = program.communicate(timeout=SECONDS)
    assert "KeyboardInterrupt" in errors.splitlines()[-1]
    page.thread.join(SECONDS)
    assert not page.thread.is_alive()
    page.close()


# ---- a real browser -------------------------------------------------------------------------------------------------


@pytest.fixture
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def opened(browser, address, said, **options):
    """A page of the browser. What its console says goes to `said`."""
    page = browser.new_page(**options)
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(address)
    page.wait_for_function("() => document.querySelector('#state').textContent === 'running'")
    return page


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
def test_the_page_works_in_a_browser(width, scheme, browser, program, tmp_path):
    said = []
    page = opened(browser, program.address, said, viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.wait_for_selector("[data-name=accuracy] canvas")
    page.wait_for_function("() => document.querySelectorAll('#rows tr').length === 3")
    page.wait_for_function("() => Number(document.querySelector('#plane').dataset.drawn) > 1")
    assert float(page.get_attribute("[data-name=loss]", "data-validation")) > 0
    assert "training" in page.get_attribute("[data-name=loss] canvas", "aria-label")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.click("#pause")
    page.wait_for_function("() => document.querySelector('#state').textContent === 'paused'")
    epoch = page.inner_text("#epoch")
    page.click("#step")
    page.wait_for_function("() => document.querySelector('#state').textContent === 'paused'")
    page.fill("#newrate", "0.01")
    page.click("#setrate")
    page.wait_for_function("() => document.querySelector('#lr').textContent === '0.01'")
    page.check("#log")
    page.select_option("#smooth", "0.9")
    page.hover("[data-name=loss] canvas")
    with page.expect_download() as download:
        page.click("#save")
    model = tmp_path / "model.safetensors"
    download.value.save_as(model)
    assert repr(cl.load(model)) == "Model([Linear(2, 30), ReLU(), Linear(30, 3)])"
    with page.expect_download() as download:
        page.click("#keep")
    curves = tmp_path / "curves.json"
    download.value.save_as(curves)
    content = json.loads(curves.read_text())
    assert content["history"].keys() == {"loss", "accuracy", "val_loss", "val_accuracy"}
    page.set_input_files("#open", curves)
    page.wait_for_function("() => document.querySelector('#legend').textContent.includes('Faint')")
    assert (
        page.evaluate("getComputedStyle(document.body).backgroundColor")
        == {"light": "rgb(246, 245, 241)", "dark": "rgb(21, 24, 28)"}[scheme]
    )
    before = page.inner_text("#theme")
    page.click("#theme")
    assert page.inner_text("#theme") != before
    page.click("#pause")
    page.wait_for_function("() => document.querySelector('#state').textContent === 'running'")
    page.wait_for_function(f"() => document.querySelector('#epoch').textContent !== '{epoch}'")
    page.click("#stop")
    page.wait_for_function("() => document.querySelector('#state').textContent === 'stopped'")
    assert said == []


def test_a_page_says_that_the_program_has_ended(browser, program):
    page = opened(browser, program.address, [])
    program.kill()
    page.wait_for_selector("#gone:not(.hidden)")
    assert page.inner_text("#gone").startswith("The program that trains has ended")
    assert page.is_disabled("#pause")
