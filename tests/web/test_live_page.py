"""The page of `cl.live()` in a real browser."""

import json
import re
import signal

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("websockets")


import caffelite as cl
from caffelite.web import snapshots
from caffelite.web.messages import decode
from tests.web.live_training import Looking, command, fit, language_model

pytestmark = pytest.mark.usefixtures("long_timeouts")


def open_page(browser, address, said, state="running", **options):
    """Return a page of the browser. What its console says goes to `said`."""
    page = browser.new_page(**options)
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(address)
    wait_for_state(page, state)
    return page


def wait_for_state(page, state):
    page.wait_for_function(f"() => document.querySelector('#state').textContent === '{state}'")


def settled_number(page, name):
    """Return a number when it no longer changes."""
    before, after = None, number(page, name)
    while before != after:
        page.wait_for_timeout(500)
        before, after = after, number(page, name)
    return after


def number(page, name):
    """Return a number of the page, as text."""
    return page.inner_text(f'#numbers [data-number="{name}"] dd')


def values(page, chart):
    return json.loads(page.get_attribute(f'[data-chart="{chart}"]', "data-values"))


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), pytest.param(390, "dark", marks=pytest.mark.slow)])
def test_the_page_shows_a_training_and_controls_it(width, scheme, browser, program, tmp_path):
    said = []
    page = open_page(browser, program.address, said, viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.wait_for_selector("#layers tr")
    page.wait_for_function("() => Number(document.querySelector('#plane').dataset.drawn) > 1")
    page.wait_for_function("() => document.querySelectorAll('#size-charts [data-values]').length === 2")
    assert page.evaluate("document.documentElement.scrollWidth") <= width

    page.click("#pause")
    wait_for_state(page, "paused")
    assert page.inner_text("#pause") == "Go on"
    step = int(settled_number(page, "Steps").replace(",", ""))
    page.click("#step")
    page.wait_for_function(f"() => document.querySelector('[data-number=Steps] dd').textContent === '{step + 1:,}'")
    epoch = int(settled_number(page, "Epoch").split()[0].replace(",", ""))  # the step may have ended one
    page.click("#epoch")
    page.wait_for_function(
        f"() => document.querySelector('[data-number=Epoch] dd').textContent.startsWith('{epoch + 1:,} ')"
    )
    page.fill("#new-rate", "0.01")
    page.click("#rate button")
    page.wait_for_function("() => document.querySelector('[data-number=\"Learning rate\"] dd').textContent === '0.01'")
    page.wait_for_function("() => document.querySelector('[data-chart=loss]').dataset.marks.includes('new rate')")
    page.fill("#new-rate", "fast")
    page.click("#rate button")
    assert "A learning rate is a number" in page.inner_text("#said")

    found = values(page, "loss")
    assert found.keys() == {"training", "held out"}
    assert 0 < found["training"] < 1
    assert 0.5 < values(page, "accuracy")["held out"] <= 1
    assert "training" in page.get_attribute('[data-chart="loss"] canvas', "aria-label")
    page.check("#log")
    page.wait_for_selector('[data-chart="loss"][data-scale="log"]')
    page.fill("#smoothing", "0.9")
    page.focus('[data-chart="loss"] canvas')
    page.keyboard.press("Home")
    page.wait_for_function("() => document.querySelector('[data-chart=loss]').dataset.cursor !== ''")
    assert "at step" in page.get_attribute('[data-chart="loss"] canvas', "aria-label")
    page.hover('[data-chart="loss"] canvas')

    page.click("#time")
    page.wait_for_selector(".kernel")
    assert "sgd" in page.inner_text("#times")
    assert re.search(r"A step on 32 rows takes [\d.]+ µs in \d+ kernels", page.inner_text("#kernels-text"))
    with page.expect_download() as download:
        page.click("#save")
    download.value.save_as(tmp_path / "model.safetensors")
    assert repr(cl.load(tmp_path / "model.safetensors")) == "Model([Linear(2, 30), ReLU(), Linear(30, 3)])"
    with page.expect_download() as download:
        page.click("#keep")
    kept = tmp_path / "kept.run"
    download.value.save_as(kept)
    content = decode(kept.read_bytes())
    assert content["parts"]["status"]["epoch"] == epoch + 1
    assert content["parts"]["regions"]["labels"].shape == (snapshots.GRID, snapshots.GRID)
    bad = tmp_path / "bad.run"
    bad.write_text("no")
    page.set_input_files("#open", bad)
    page.wait_for_function("() => document.querySelector('#said').textContent.startsWith('bad.run cannot be opened')")

    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.click("#pause")
    wait_for_state(page, "running")
    page.click("#stop")
    wait_for_state(page, "stopped")
    page.wait_for_function("() => document.querySelector('#said').textContent.includes('This page stays as it is')")
    assert page.is_disabled("#pause")
    assert page.is_enabled("#keep")
    assert [line for line in said if "WebSocket" not in line] == []  # which tries to come back


def test_a_chart_zooms_and_gives_its_picture_and_numbers(browser, folder, tmp_path):
    said = []

    def chart_range(name="loss"):
        return json.loads(page.get_attribute(f'[data-chart="{name}"]', "data-range"))

    def wait_for_range(condition):
        page.wait_for_function(f"() => (([left, right]) => {condition})(JSON.parse($('loss').dataset.range))")

    with command(folder) as program:
        page = open_page(browser, program.address, said, "finished", viewport={"width": 1440, "height": 900})
        page.evaluate("() => { window.$ = (name) => document.querySelector(`[data-chart='${name}']`); }")
        page.wait_for_function("() => $('loss')?.dataset.range")
        whole = chart_range()
        box = page.locator('[data-chart="loss"] canvas').bounding_box()
        page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 60, steps=3)
        page.mouse.up()
        wait_for_range(f"left > {whole[0]} && right < {whole[1]}")
        zoomed = chart_range()
        assert 0.1 < (zoomed[1] - zoomed[0]) / (whole[1] - whole[0]) < 0.35
        page.wait_for_function(
            f"() => $('learning rate').dataset.range === '{json.dumps(zoomed, separators=(',', ':'))}'"
        )
        page.keyboard.press("-")
        wait_for_range(f"right - left > {1.5 * (zoomed[1] - zoomed[0])}")
        page.click('[data-chart="loss"] .whole')
        wait_for_range(f"left === {whole[0]} && right === {whole[1]}")
        page.focus('[data-chart="loss"] canvas')
        page.keyboard.press("+")
        wait_for_range(f"right - left < {0.6 * (whole[1] - whole[0])}")
        page.keyboard.press("Escape")
        wait_for_range(f"left === {whole[0]} && right === {whole[1]}")
        for name in ("PNG", "CSV"):
            with page.expect_download() as download:
                page.click(f'[aria-label="loss as {name}"]')
            download.value.save_as(tmp_path / f"loss.{name}")
        last = values(page, "loss")["training"]
        marks = json.loads(page.get_attribute('[data-chart="loss"]', "data-marks"))
    assert (tmp_path / "loss.PNG").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    head, *rows, end = (tmp_path / "loss.CSV").read_text().split("\n")
    assert (head, end) == ("line,step,mean,least,greatest", "")
    rows = [row.split(",") for row in rows if row.startswith("training,")]
    assert (len(rows), float(rows[-1][1]), float(rows[-1][2])) == (40, whole[1], last)
    losses = [float(row[2]) for row in rows]
    best = losses.index(min(losses))
    assert marks == ([] if best == 39 else [["lowest loss", float(rows[best][1])]])
    assert [line for line in said if "WebSocket" not in line] == []


@pytest.mark.slow
def test_two_fingers_zoom_a_chart_and_one_scrolls_the_page(browser, folder):
    said = []
    with command(folder) as program:
        size = {"width": 390, "height": 900}
        page = open_page(browser, program.address, said, "finished", viewport=size, has_touch=True, is_mobile=True)
        device = page.context.new_cdp_session(page)

        def chart_range(name="loss"):
            return json.loads(page.get_attribute(f'[data-chart="{name}"]', "data-range"))

        def touch(kind, *points):
            points = [{"x": x, "y": y, "id": i} for i, (x, y) in enumerate(points)]
            device.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

        def wait_for_range(condition):
            loss = "document.querySelector('[data-chart=loss]')"
            page.wait_for_function(f"() => (([left, right]) => {condition})(JSON.parse({loss}.dataset.range))")

        page.wait_for_function("() => document.querySelector('[data-chart=loss]')?.dataset.range")
        page.locator('[data-chart="loss"] canvas').scroll_into_view_if_needed()
        box, whole = page.locator('[data-chart="loss"] canvas').bounding_box(), chart_range()
        y, place = box["y"] + 60, lambda share: box["x"] + share * box["width"]

        def step_at(share):
            left, right = chart_range()
            return left + (share * box["width"] - 52) / (box["width"] - 62) * (right - left)

        before = step_at(0.45), step_at(0.55)
        touch("touchStart", (place(0.45), y), (place(0.55), y))
        for i in range(1, 6):
            touch("touchMove", (place(0.45 - 0.05 * i), y), (place(0.55 + 0.05 * i), y))
        touch("touchEnd")
        wait_for_range(f"right - left < {0.3 * (whole[1] - whole[0])}")
        assert np.allclose((step_at(0.2), step_at(0.8)), before, atol=0.01 * whole[1])
        page.wait_for_function(
            f"() => document.querySelector('[data-chart=\"learning rate\"]').dataset.range"
            f" === '{json.dumps(chart_range(), separators=(',', ':'))}'"
        )
        zoomed = chart_range()
        page.touchscreen.tap(place(0.5), y)
        page.wait_for_timeout(600)
        page.touchscreen.tap(place(0.5), y)
        page.wait_for_timeout(100)
        assert chart_range() == zoomed  # two slow taps
        page.touchscreen.tap(place(0.5), y)
        wait_for_range(f"left === {whole[0]} && right === {whole[1]}")

        scrolled = page.evaluate("scrollY")
        touch("touchStart", (place(0.5), y))
        for i in range(1, 6):
            touch("touchMove", (place(0.5), y - 30 * i))
        touch("touchEnd")
        page.wait_for_function(f"() => scrollY > {scrolled + 50}")
        assert chart_range() == whole
    assert [line for line in said if "WebSocket" not in line] == []


def test_the_page_of_a_gpt_shows_texts_and_its_attention(browser):
    model, x, y = language_model()
    said = []
    with Looking(model=model, x=x, y=y) as looking:
        page = open_page(browser, looking.live.address, said, viewport={"width": 390, "height": 900})
        page.wait_for_function("() => document.querySelectorAll('#written li').length > 1")
        assert page.inner_text("#given") == model.vocabulary.decode(x[0])
        assert set(page.inner_text("#written li:last-child p")) <= set("the cat sat on the mat. ")
        assert page.inner_text("#written li:last-child .steps").startswith("step ")
        page.click('[aria-label="layer 1, head 2"]')
        page.wait_for_function("() => document.querySelector('#map').dataset.shown === 'layer 1, head 2'")
        assert page.get_attribute('[aria-label="layer 1, head 2"]', "aria-pressed") == "true"
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.close()
    assert said == []


def test_the_page_of_a_classifier_shows_a_confusion_matrix(browser):
    x = np.random.default_rng(0).normal(size=(60, 5))
    y = x.argmax(axis=1)
    said = []
    with Looking(model=cl.MLP(5, [20, 5], seed=0), x=x, y=y) as looking:
        page = open_page(browser, looking.live.address, said, viewport={"width": 390, "height": 900})
        page.wait_for_function("() => document.querySelector('#mistakes').dataset.wrong === '0'")
        assert json.loads(page.get_attribute("#confusion", "data-counts")) == np.diag(np.bincount(y)).ravel().tolist()
        assert page.get_attribute("#confusion canvas", "aria-label").endswith("class 4: 100 % right")
        page.close()
    assert said == []


def test_the_page_compares_runs_and_shows_one(browser, program, tmp_path):
    said = []
    fit([cl.live(open_browser=False, folder=tmp_path / "runs")], 40)
    (name,) = [
        p.stem for p in (tmp_path / "runs").glob("*.run") if decode(p.read_bytes())["parts"]["status"]["epoch"] == 40
    ]
    page = open_page(browser, program.address, said, viewport={"width": 1440, "height": 900})
    page.check(f'[aria-label="compare {name}"]')
    page.wait_for_function(f"() => document.querySelector('[data-chart=loss]').dataset.values.includes('{name}')")
    page.click(f'[aria-label="show {name}"]')
    page.wait_for_function("() => document.querySelector('[data-number=Epoch] dd').textContent.startsWith('40 ')")
    assert page.inner_text("#state") == "finished"
    assert page.is_disabled("#pause")
    page.click('tr:first-child [aria-label^="show"]')
    wait_for_state(page, "running")
    assert page.is_enabled("#pause")
    assert said == []


def test_the_page_shows_names_settings_and_own_values_also_as_a_file(browser, tmp_path):
    for lr, epochs in ((0.1, 30), (0.02, 40)):
        model = cl.MLP(2, [20, 3], seed=0)
        live = cl.live(open_browser=False, folder=tmp_path / "runs", name=f"lr {lr}", note=f"is {lr} too large?")

        def log(epoch, history, live=live):
            live.log("gap", history["loss"][-1] - 1)
            live.log("gradients", 3.0)
            live.log("weights", np.arange(6.0).reshape(2, 3))

        fit([live, log], epochs, model=model, optimizer=cl.SGD(model.parameters(), lr=lr))
    said = []
    with command(tmp_path / "runs") as program:
        page = open_page(browser, program.address, said, "finished", viewport={"width": 1440, "height": 900})
        page.check('[aria-label="compare lr 0.1"]')
        page.wait_for_function("() => document.querySelector('[data-chart=gap]').dataset.values.includes('lr 0.1')")
        assert values(page, "gap").keys() == {"lr 0.02", "lr 0.1"}
        assert values(page, "loss").keys() == {"lr 0.02", "lr 0.1"}
        sizes = '#size-charts [data-chart="gradients"]'
        assert json.loads(page.get_attribute(sizes, "data-values")).keys() == {"0 Linear", "2 Linear"}
        assert values(page, "gradients") == {"lr 0.02": 3, "lr 0.1": 3}
        assert page.inner_text("#note") == "is 0.02 too large?"
        assert "is 0.1 too large?" in page.inner_text("#list tr:nth-child(2)")
        layers = ["0 Linear, weights", "0 Linear, gradients", "2 Linear, weights", "2 Linear, gradients"]
        assert page.locator("#histogram-charts h3").all_inner_texts() == layers
        medians = [values(page, name)["median"] for name in layers]
        assert medians[1] > 0 < medians[3]
        with page.expect_download() as download:
            page.click('[aria-label="0 Linear, weights as CSV"]')
        download.value.save_as(tmp_path / "histogram.csv")
        head = page.inner_text("#settings-head").split("\t")
        assert head[-1] == "lr"
        assert page.locator("#list td:last-child").all_inner_texts() == ["0.02", "0.1"]
        assert page.inner_text("#about").startswith("lr 0.02 · ")
        assert "weights, step " in page.inner_text("#pictures figcaption")
        with page.expect_download() as download:
            page.click("#keep-page")
        download.value.save_as(tmp_path / "run.html")
        loss = values(page, "loss")
        page.close()
    page = browser.new_page(viewport={"width": 390, "height": 900})
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto((tmp_path / "run.html").as_uri())
    wait_for_state(page, "finished")
    page.wait_for_function("() => document.querySelector('[data-chart=loss]').dataset.values.includes('lr 0.1')")
    assert values(page, "loss") == loss
    assert [values(page, name)["median"] for name in layers] == medians
    assert page.inner_text("#note") == "is 0.02 too large?"
    rows = [row.split(",") for row in (tmp_path / "histogram.csv").read_text().splitlines()[1:]]
    last = {name: float(value) for name, _, value, *_ in rows}
    assert [*last] == ["1 %", "10 %", "25 %", "50 %", "75 %", "90 %", "99 %"]
    assert sorted(last.values()) == [*last.values()]
    assert last["50 %"] == medians[0]
    assert number(page, "Epoch").startswith("40 ")
    assert not page.is_visible("#pause")
    assert page.is_disabled('[aria-label="show lr 0.1"]')
    assert not [url for url in asked if url.startswith("http")]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert [line for line in said if "WebSocket" not in line] == []


def test_the_page_of_a_folder_shows_its_runs_and_no_controls(browser, folder, tmp_path):
    said = []
    with command(folder) as program:
        page = open_page(browser, program.address, said, "finished", viewport={"width": 1440, "height": 900})
        assert number(page, "Epoch").startswith("40 ")
        assert not page.is_visible("#pause")
        assert not page.is_visible("#kernels")
        older = page.get_attribute("#list tr:nth-child(2)", "data-run")
        page.check(f'[aria-label="compare {older}"]')
        page.wait_for_function(f"() => document.querySelector('[data-chart=loss]').dataset.values.includes('{older}')")
        page.click(f'[aria-label="show {older}"]')
        page.wait_for_function("() => document.querySelector('[data-number=Epoch] dd').textContent.startsWith('30 ')")
        assert older in page.inner_text("#about")
        fit([cl.live(open_browser=False, folder=folder)], 50)
        page.wait_for_selector("#list tr:nth-child(3)")
        assert said == []
        program.send_signal(signal.SIGINT)
        page.wait_for_function("() => document.querySelector('#said').textContent.includes('has ended')")


def test_a_page_says_that_the_program_is_gone(browser, program):
    page = open_page(browser, program.address, [])
    program.kill()
    page.wait_for_selector("#said.bad")
    assert page.inner_text("#said").startswith("The training program has ended")
    assert page.is_disabled("#pause")


def contrast(one, other):
    def light(colour):
        parts = [int(n) / 255 for n in re.findall(r"\d+", colour)[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted([light(one), light(other)], reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_and_controls_have_names(scheme, browser, program):
    page = open_page(browser, program.address, [], color_scheme=scheme)
    page.wait_for_selector("#layers tr")
    words = "h1, h2, h3, p, dt, dd, td, th, button, label, span, li"
    pairs = page.evaluate(
        f"() => [...document.querySelectorAll('{words}')]"
        + """
        .filter((e) => e.innerText?.trim() && e.checkVisibility() && !e.disabled)
        .map((e) => {
          let ground = e;
          while (getComputedStyle(ground).backgroundColor === 'rgba(0, 0, 0, 0)') ground = ground.parentElement;
          return [e.innerText, getComputedStyle(e).color, getComputedStyle(ground).backgroundColor];
        })"""
    )
    assert len(pairs) > 40
    assert [(text, round(contrast(a, b), 2)) for text, a, b in pairs if contrast(a, b) < 4.5] == []
    unnamed = page.evaluate("""() => [...document.querySelectorAll('button, input, canvas')].filter(
        (e) => !(e.innerText?.trim() || e.getAttribute('aria-label') || e.labels?.length)).map((e) => e.outerHTML)""")
    assert unnamed == []
