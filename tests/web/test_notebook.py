"""Pages in the cells of a notebook: without a notebook, and in JupyterLab by a browser."""

import base64
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("websockets")

import caffelite as cl
from caffelite._support.extras import install_command
from caffelite.web import cell
from caffelite.web.messages import decode
from caffelite.web.page_file import make_page_file
from caffelite.web.playground.page import Playground
from tests.web.live_training import fit

SECONDS = 60  # that a test waits at most


class Widget:
    """A widget without a notebook. It keeps what it sends, and `say` is a page of the notebook."""

    comm = None

    def __init__(self, page=None):
        self.sent, self.changed = [], threading.Condition()

    def on_msg(self, listener):
        self.listener = listener

    def send(self, content, buffers):
        with self.changed:
            self.sent.append((content, [decode(bytes(each)) for each in buffers]))
            self.changed.notify_all()

    def say(self, message=None, place="a"):
        text = None if message is None else json.dumps(message)
        self.listener(self, {"place": place, "text": text}, [])

    def wait_for(self, kind, condition=lambda message: True, place="a"):
        """Return a message to a place, as soon as the condition holds. Answer the others, as a page does."""
        seen, end = 0, time.monotonic() + SECONDS
        while time.monotonic() < end:
            with self.changed:
                self.changed.wait_for(lambda count=seen: len(self.sent) > count, 1.0)
                news, seen = self.sent[seen:], len(self.sent)
            for message in [each for content, messages in news if content["place"] == place for each in messages]:
                if message["kind"] == kind and condition(message):
                    return message
            if place is not None:
                self.say(place=place)
        raise AssertionError(f"no such {kind}")


class Echo:
    """A page that notes what happens to it."""

    html = "live.html"

    def __init__(self):
        self.events = []

    def on_connect(self, channel):
        self.events.append("connected")

    def on_disconnect(self, channel):
        self.events.append("gone")

    def on_receive(self, channel, message):
        self.events.append(message)
        if "why" in message:
            raise ValueError(message["why"])


@pytest.fixture
def notebook(monkeypatch):
    """As if this program were the kernel of a notebook. Returns its widgets, and what its cells show."""
    display = pytest.importorskip("IPython.display")
    widgets, shown = [], []

    def make_widget(page):
        widgets.append(Widget())
        return widgets[-1]

    monkeypatch.setattr(cell, "in_notebook", lambda: True)
    monkeypatch.setattr(cell, "make_widget", make_widget)
    monkeypatch.setattr("caffelite.web.live.has_widgets", lambda: True)
    monkeypatch.setattr(display, "display", shown.append)
    return widgets, shown


@pytest.fixture
def echo(monkeypatch):
    """Return a page in a cell, and its widget."""
    monkeypatch.setattr(cell, "make_widget", Widget)
    page = Echo()
    page.cell = cell.Cell(page)
    return page, page.cell.widget


def test_a_cell_shows_a_training_before_its_page_answers_and_then_obeys_it(notebook):
    live, results = cl.live(open_browser=False), []
    thread = threading.Thread(target=lambda: results.append(fit([live], epochs=10**8)), daemon=True)
    thread.start()
    while not notebook[0]:
        time.sleep(0.01)
    (widget,), shown = notebook
    early = widget.wait_for("status", place=None)
    assert early["state"] == "running"
    assert shown == [widget]
    assert all(content["unheard"] for content, _ in widget.sent)  # no page was heard yet
    widget.say()
    widget.wait_for("status", lambda status: status["step"] > early["step"])
    widget.say({"kind": "pause"})
    widget.wait_for("status", lambda status: status["state"] == "paused")
    widget.say({"kind": "rate", "value": -1})
    assert "a learning rate is a number" in widget.wait_for("refused")["why"]
    widget.say({"kind": "stop"})
    thread.join(SECONDS)
    assert results
    widget.wait_for("status", lambda status: status["state"] == "stopped")


def test_a_cell_shows_the_last_training_to_pages_that_come_later(notebook):
    live = cl.live(open_browser=False)
    widget, shown = live.open_cell().widget, notebook[1]
    widget.say(place="early")
    assert widget.sent == [({"place": "early", "unheard": False}, [])]  # there is nothing to show, but it was heard
    fit([live], epochs=3)
    assert widget.wait_for("status", lambda status: status["state"] == "finished", place="early")
    assert shown == []  # another cell has shown it before
    widget.say(place="later")
    status = widget.wait_for("status", place="later")
    assert (status["state"], status["epoch"]) == ("finished", 3)
    widget.say({"kind": "pause"}, place="later")
    assert widget.wait_for("refused", place="later")["why"] == "no training runs"
    fit([live], epochs=2)
    assert widget.wait_for("status", place="later")["epoch"] == 3
    widget.wait_for("status", lambda status: status["epoch"] == 2, place="later")
    assert len(notebook[0]) == 1


def test_the_page_in_a_cell_changes_no_bit_of_a_training(notebook):
    alone, shown = fit(epochs=30), fit([cl.live(open_browser=False)], epochs=30)
    assert alone[1] == shown[1]
    for p, q in zip(alone[0].parameters(), shown[0].parameters(), strict=True):
        np.testing.assert_array_equal(p.data, q.data)


def test_messages_wait_for_an_answer_and_newer_ones_replace_them(echo):
    page, widget = echo
    widget.say()
    widget.say()
    widget.sent.clear()
    (channel,) = page.cell.open_channels()
    for number in range(5):
        channel.send("frame", {"number": number})
    channel.send("other", {})
    assert [[m["number"] for m in messages] for _, messages in widget.sent] == [[0]]
    widget.say()
    assert [m.get("number") for m in widget.sent[-1][1]] == [4, None]
    assert [content["unheard"] for content, _ in widget.sent] == [False, False]
    channel.send("frame", {"number": 5})
    channel.wait_until_sent(1.0)  # the end of a training does not wait
    assert widget.sent[-1][1][0]["number"] == 5


def test_a_page_that_the_kernel_does_not_hear_gets_messages_now_and_then_and_learns_why(echo, monkeypatch):
    monkeypatch.setattr(cell, "MAX_WAIT", 0.05)
    monkeypatch.setattr(cell, "MAX_SILENCE", 0.2)
    page, widget = echo
    widget.say()
    (channel,) = page.cell.open_channels()
    begun, frames = time.monotonic(), 0
    while (passed := time.monotonic() - begun) < 0.5 or len(widget.sent) < 5:
        channel.send("frame", {})
        frames += 1
        time.sleep(0.005)
    assert [content["unheard"] for content, _ in widget.sent[:3]] == [False, True, True]
    assert len(widget.sent) <= min(1 + passed / 0.05, frames)
    assert page.events == ["connected"]  # this thread hears pages, so the silence says nothing
    widget.say()
    assert widget.sent[-1][0] == {"place": "a", "unheard": False}


def test_a_page_that_is_silent_while_the_kernel_could_hear_it_has_gone(echo, monkeypatch):
    monkeypatch.setattr(cell, "MAX_WAIT", 0.02)
    monkeypatch.setattr(cell, "MAX_SILENCE", 0.1)
    page, widget = echo
    widget.say()
    (channel,) = page.cell.open_channels()

    def send():
        while page.events == ["connected"]:
            channel.send("frame", {})
            time.sleep(0.005)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert page.events == ["connected", "gone"]
    widget.say()  # it was only slow
    assert page.events == ["connected", "gone", "connected"]


def test_each_place_of_a_cell_has_a_channel_until_it_is_closed(echo):
    page, widget = echo
    (every,) = page.cell.open_channels()
    every.send("frame", {})
    assert widget.sent[-1][0] == {"place": None, "unheard": True}
    widget.say({"ask": 1})
    widget.say({"why": "no"}, place="b")
    assert widget.sent[-1][1] == [{"kind": "refused", "why": "no"}]
    assert page.events == ["connected", "gone", {"ask": 1}, "connected", {"why": "no"}]
    widget.listener(widget, {"place": "a", "closed": True}, [])
    assert page.events[-1] == "gone"
    assert len(page.cell.open_channels()) == 1


@pytest.mark.parametrize("page", ["live", "playground"])
def test_a_notebook_without_anywidget_gets_the_command_that_installs_it(page, monkeypatch):
    monkeypatch.setattr(cell, "in_notebook", lambda: True)
    monkeypatch.setitem(sys.modules, "anywidget", None)
    message = f"cl.{page} in a notebook needs anywidget, which is not installed: {install_command('notebook')}"
    with pytest.raises(ImportError, match=f"^{re.escape(message)}$"):
        getattr(cl, page)()._repr_mimebundle_()
    assert not cell.has_widgets()  # so a training prints its address


def test_without_a_notebook_a_page_is_its_text_with_the_address():
    playground = cl.playground()
    assert playground is cl.playground()
    assert playground._repr_mimebundle_(include=None, exclude=None) is None
    assert cl.live()._repr_mimebundle_() is None
    address = re.fullmatch(r"The playground is at (http://127\.0\.0\.1:\d+/\?token=\S+)", repr(playground))[1]
    with urllib.request.urlopen(address) as answer:
        assert b"<title>caffelite: playground</title>" in answer.read()


@pytest.mark.parametrize("name", ["live.html", "playground.html"])
def test_a_page_file_has_all_that_the_page_needs(name):
    html = make_page_file(name)
    assert "/static/" not in html
    assert '<link rel="stylesheet"' not in html
    imports = json.loads(re.search(r'<script type="importmap">(.*)</script>', html)[1])["imports"]
    assert {"messages", "charts", "connection", name.removesuffix(".html")} <= imports.keys()
    for source in imports.values():
        with urllib.request.urlopen(source) as answer:
            needed = re.findall(r'^import .* from "(.*)";$', answer.read().decode(), re.MULTILINE)
        assert {*needed} <= imports.keys()


NOTEBOOK = """
<body><script type="module">
  import cell from "data:text/javascript;base64,%s";
  const html = "<html><script>frameElement.connect(() => {}, (why) => { top.why = why; })</" + "script>";
  window.sent = [];
  window.listeners = {};
  const model = { get: () => html, send: (content) => sent.push(content), on: (kind, f) => { listeners[kind] = f; } };
  cell.render({ model, el: document.body });
</script>
"""


def test_a_page_in_a_cell_asks_again_until_the_kernel_answers(browser):
    page = browser.new_page()
    page.clock.install()
    page.set_content(NOTEBOOK % base64.b64encode((cell.STATIC / "cell.js").read_bytes()).decode())
    page.wait_for_function("() => window.sent?.length === 1")
    page.clock.run_for(10_000)
    sent = page.evaluate("sent")
    assert len(sent) == 4  # at first, and after 1, 3 and 7 seconds
    assert sent == sent[:1] * 4
    assert "waits for the notebook's kernel" in page.evaluate("why")
    page.evaluate("listeners['msg:custom']({ place: sent[0].place, unheard: false }, [])")
    page.clock.run_for(100_000)
    assert page.evaluate("sent.length") == 5  # an answer to the answer
    assert page.evaluate("why") is None
    page.close()


# ---- in JupyterLab ------------------------------------------------------------------------------------------------

HEAD = """
import caffelite as cl
x, y = cl.datasets.spiral(seed=0)
model = cl.MLP(2, [20, 3], seed=0)
optimizer = cl.SGD(model.parameters(), lr=0.05)
"""
FIT = "history = model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=optimizer, epochs={}, callbacks=[live], verbose=0)"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """JupyterLab in a folder of its own: its address, and the folder."""
    for name in ("anywidget", "jupyterlab", "ipykernel"):
        pytest.importorskip(name)
    folder = tmp_path_factory.mktemp("lab")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = {f"JUPYTER_{kind}_DIR": str(folder / kind) for kind in ("CONFIG", "DATA", "RUNTIME")}
    places |= {"IPYTHONDIR": str(folder / "ipython"), "PYTHONPATH": str(Path(cl.__file__).parents[1])}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}"]
    command += ["--IdentityProvider.token=", "--ServerApp.port_retries=0", f"--ServerApp.root_dir={folder}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=os.environ | places, stdout=log, stderr=log)
    address, end = f"http://127.0.0.1:{port}", time.monotonic() + 60
    while time.monotonic() < end:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/api"):
            break
        time.sleep(0.1)
    yield address, folder
    process.terminate()
    try:
        process.wait(SECONDS / 4)
    except subprocess.TimeoutExpired:  # JupyterLab fails to stop while a kernel restarts, and goes on
        process.kill()
        process.wait(SECONDS)


def write_settings(folder, **settings):
    """Write the settings of JupyterLab, in the place of earlier ones. Pages read them when they are loaded."""
    shutil.rmtree(folder / "CONFIG/lab/user-settings", ignore_errors=True)
    settings = {"notification": {"fetchNews": "false", "checkForUpdates": False}, **settings}
    for name, content in settings.items():
        path = folder / "CONFIG/lab/user-settings/@jupyterlab/apputils-extension" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))


@contextlib.contextmanager
def opened_notebook(browser, lab, name, *sources, **settings):
    """Yield a page of JupyterLab with a notebook of these cells, and what its console says."""
    address, folder = lab
    write_settings(folder, **settings)
    cells = [
        {"cell_type": "code", "id": f"c{i}", "metadata": {}, "source": s, "outputs": [], "execution_count": None}
        for i, s in enumerate(sources)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    content = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    (folder / f"{name}.ipynb").write_text(json.dumps(content))
    page, said = browser.new_page(viewport={"width": 1440, "height": 1000}), []
    page.set_default_timeout(1000 * SECONDS)
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(f"{address}/lab/workspaces/{name}/tree/{name}.ipynb")
    page.wait_for_selector("#jp-main-statusbar >> text=(ipykernel) | Idle")  # before, JupyterLab drops cells to run
    yield page, said
    page.close()


def run_all(page):
    page.click(".jp-Notebook .jp-CodeCell >> nth=0")
    page.click("text=Run >> nth=0")
    page.click("text=Run All Cells >> nth=0")


def frame_in(page, marker):
    """Return the frame of a page of caffelite, when it has this element."""
    frame = page.wait_for_selector("iframe[title=caffelite]").content_frame()
    frame.wait_for_selector(marker, state="attached")
    return frame


def wait_for_state(frame, state):
    frame.wait_for_function(f"() => document.querySelector('#state').textContent === '{state}'")


@pytest.mark.slow
def test_jupyterlab_shows_a_training_while_its_cell_runs_and_its_buttons_work(browser, lab, tmp_path):
    cells = [HEAD + "live = cl.live(name='my net')\n" + FIT.format(10**8), "print('the last cell', history.epochs > 5)"]
    with opened_notebook(browser, lab, "live", *cells) as (page, said):
        run_all(page)
        frame = frame_in(page, "[data-number=loss]")
        wait_for_state(frame, "running")
        loss = '() => document.querySelector("[data-number=loss] dd").textContent'
        first = frame.evaluate(loss)
        frame.wait_for_function(f'() => ({loss})() !== "{first}"')  # it moves
        frame.wait_for_function("() => Number(document.querySelector('#plane').dataset.drawn) > 1")
        frame.click("#pause")
        wait_for_state(frame, "paused")
        frame.click("#stop")
        wait_for_state(frame, "stopped")
        page.wait_for_selector("text=the last cell True")
        last = frame.evaluate(loss)
        with page.expect_response(lambda response: response.request.method == "PUT" and "live.ipynb" in response.url):
            page.click('[data-jp-item-name="save"]')
        page.reload()
        frame = frame_in(page, "[data-number=loss]")  # from the kernel, which keeps what the page showed
        assert frame.evaluate(loss) == last
        assert frame.inner_text("#about").startswith("my net")
        with page.expect_download() as download:
            frame.click("#keep-page")
        download.value.save_as(tmp_path / "run.html")
        page.click("text=Kernel >> nth=0")
        page.click("text=Restart Kernel… >> nth=0")
        page.click(".jp-Dialog button:has-text('Restart')")
        frame.wait_for_selector("#said:has-text('This page stays as it is')")
        assert frame.evaluate(loss) == last
        assert said == []
    page = browser.new_page()
    page.goto((tmp_path / "run.html").as_uri())
    page.wait_for_selector("[data-number=loss]")
    assert page.evaluate(loss) == last
    page.close()


@pytest.mark.slow
def test_jupyterlab_without_a_thread_for_messages_shows_a_training_and_says_that_buttons_wait(browser, lab):
    options = {"kernels-settings": {"commsOverSubshells": "disabled"}}
    cells = [HEAD + "live = cl.live()\nlive", "stop = lambda epoch, history: __import__('os').path.exists('stop')"]
    cells += [FIT.format(10**8).replace("[live]", "[live, stop]")]
    with opened_notebook(browser, lab, "deaf", *cells, **options) as (page, said):
        run_all(page)
        frame = frame_in(page, "[data-number=Steps]")
        frame.wait_for_selector("#said:has-text('The kernel is running a cell')")
        assert frame.is_disabled("#pause")
        steps = '() => document.querySelector("[data-number=Steps] dd").textContent'
        frame.wait_for_function(f'() => ({steps})() !== "{frame.evaluate(steps)}"')
        (lab[1] / "stop").touch()
        wait_for_state(frame, "finished")
        frame.wait_for_selector("#said:has-text('The training has ended: after')")
        assert said == []


@pytest.mark.slow
def test_jupyterlab_plays_the_playground_in_its_theme_while_another_cell_runs(browser, lab):
    cells = ["import caffelite as cl\ncl.playground()", "import time\ntime.sleep(100)"]
    options = {"themes": {"theme": "JupyterLab Dark"}}
    with opened_notebook(browser, lab, "playground", *cells, **options) as (page, said):
        run_all(page)
        frame = frame_in(page, "#data button")
        epochs = "() => Number(document.querySelector('#epochs').textContent.replaceAll(',', ''))"
        frame.click("#play")
        frame.wait_for_function(f"() => ({epochs})() > 1")
        first = frame.evaluate(epochs)
        frame.wait_for_function(f"() => ({epochs})() > {first}")
        frame.select_option("[data-set=activation]", "Tanh")
        frame.wait_for_selector("#text:has-text('Tanh')", state="attached")
        frame.click("#share")
        frame.wait_for_selector("#gone:has-text('In a notebook, a net has no address')")
        background = "() => getComputedStyle(document.body).backgroundColor"
        assert frame.evaluate(background) == "rgb(21, 24, 28)"
        assert frame.is_hidden("#theme")
        assert said == []


def test_the_playground_of_a_notebook_rests_when_its_place_has_gone(notebook):
    playground = Playground()
    widget = playground.open_cell().widget
    widget.say()
    widget.wait_for("setting")
    widget.say({"ask": "play"})
    widget.wait_for("frame", lambda frame: frame["playing"] and frame["step"] > 10)
    widget.listener(widget, {"place": "a", "closed": True}, [])
    end = time.monotonic() + SECONDS
    while playground.engine.playing:
        assert time.monotonic() < end
        time.sleep(0.01)
    playground.stop()
