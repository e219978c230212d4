"""The playground of the site: its engine computes what caffelite does, and its page works without a server."""

import contextlib
import dataclasses
import gzip
import importlib.util
import io
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

from caffelite.web.playground import config as choices
from caffelite.web.playground.code import build_objects, program_code
from caffelite.web.playground.config import Setting
from caffelite.web.playground.names import NEW, TRAINING
from caffelite.web.playground.names_view import NamesView
from caffelite.web.playground.view import View
from caffelite.web.playground.weight_trace import explain_weight
from tests.web.lesson import check_lesson
from tests.web.playground_frames import check_divergence, check_edit, check_names, draw_names_setting, draw_setting

pytestmark = pytest.mark.sources
DOCS = Path(__file__).parents[2] / "docs"
SETTINGS, NAMES_SETTINGS = 200, 40
STEPS = 50
ENGINE = """
globalThis.engine = (() => {{ {training} return module_training; }})();
globalThis.makeSetting = (() => {{ {setting} return module_setting; }})().makeSetting;
globalThis.programCode = (() => {{ {code} return module_code; }})().programCode;
globalThis.NamesView = (() => {{ {names} return module_names; }})().NamesView;
globalThis.View = (() => {{ {view} return module_view; }})().View;
globalThis.explainWeight = (() => {{ {trace} return module_trace; }})().explainWeight;
const pixels = 64 * 1797, letter = (i) => digits.charCodeAt(i) - 97;
globalThis.images = {{
  images: Float32Array.from({{ length: pixels }}, (_, i) => letter(i) / 16),
  labels: Array.from({{ length: 1797 }}, (_, i) => letter(pixels + i)),
}};
globalThis.train = (message, epochs) => {{
  const training = new engine.Training(makeSetting(message), images);
  while (training.history.loss.length < epochs && training.problem === null) training.takeStep();
  return training;
}};
"""


@pytest.fixture(scope="module")
def builder():
    """Return the extension of the site that builds the page."""
    spec = importlib.util.spec_from_file_location("site_playground", DOCS / "_extensions" / "playground_page.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(builder, tmp_path_factory):
    """Return a folder with the page, which has the kernels of one net, and no machine code: that would take longer."""
    loop = {"file": "a.pyx", "lines": ["w[i] -= lr * v[i]"], "isa": "", "instructions": [], "count": 0, "problem": ""}
    folder = tmp_path_factory.mktemp("site") / "_static" / "playground"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "lesson_settings", lambda: [Setting()])
        patch.setattr(builder, "describe_loop", lambda name: {"kernel": name, **loop})
        builder.write_page(folder)
    return folder


@pytest.fixture
def engine(browser, builder, site):
    """Yield a page that has the engine."""
    page = browser.new_page()
    parts = {name: builder.bundle(f"{name}.js").removeprefix('"use strict";\n') for name in
             ("training", "setting", "code", "names", "view", "trace")}  # fmt: skip
    page.add_script_tag(content=(site / "digits.js").read_text())
    page.add_script_tag(content=ENGINE.format(**parts))
    yield page
    page.close()


def fit(setting, epochs):
    names = build_objects(setting)
    names["history"] = names["model"].fit(
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
    return names


def draw_comparable_setting(seed):
    """Draw a setting whose losses do not depend on how a sum is rounded.

    A hinge or an absolute error gives each point a gradient of a few possible sizes. Such gradients may cancel, and
    rules that divide by their size then make long steps of rounding errors. So does a norm of two numbers.
    """
    setting = draw_setting(seed) if seed < SETTINGS else draw_names_setting(seed)
    is_divided = setting.optimizer not in ("SGD", "momentum")
    if is_divided and setting.loss in ("HingeLoss", "MAELoss"):
        setting = dataclasses.replace(setting, optimizer="momentum")
    layers = [max(units, 4) for units in setting.layers] if setting.norm == "LayerNorm" else setting.layers
    size = max(setting.batch_size, 4) if setting.norm == "BatchNorm" else setting.batch_size
    return dataclasses.replace(setting, layers=tuple(layers), batch_size=size)


@pytest.mark.filterwarnings("ignore:Layers .* with nothing between them:caffelite.TrainingWarning")
def test_the_engine_computes_the_losses_of_caffelite_and_writes_its_program(engine):
    settings = [draw_comparable_setting(seed) for seed in range(SETTINGS + NAMES_SETTINGS)]
    epochs = [min(-(-STEPS // s.steps), s.epochs if s.schedule == "cosine" else STEPS) for s in settings]
    cases = list(zip([setting.to_message() for setting in settings], epochs, strict=True))
    computed = engine.evaluate(
        """(cases) => cases.map(([message, epochs]) => {
          const { history, problem } = train(message, epochs);
          return { history, problem, code: programCode(makeSetting(message), epochs) };
        })""",
        cases,
    )
    differing = []
    for setting, (_, epochs), found in zip(settings, cases, computed, strict=True):
        assert found["problem"] is None, setting
        assert found["code"] == program_code(setting, epochs)
        history = fit(setting, epochs)["history"]
        # the bias before a BatchNorm has a gradient of rounding errors alone, and the mean follows this bias
        has_mean = setting.norm != "BatchNorm" or setting.optimizer in ("SGD", "momentum")
        for name in ("loss", "val_loss") if has_mean else ("loss",):
            found_curve, curve = found["history"][name], history[name]
            first = -(-10 // setting.steps)
            np.testing.assert_allclose(found_curve[:first], curve[:first], rtol=1e-5, atol=1e-6, err_msg=f"{setting}")
            if not np.allclose(found_curve, curve, rtol=1e-5, atol=1e-6):
                differing.append(setting)
    assert len(differing) < SETTINGS // 20, differing  # rounding errors may grow


def test_the_engine_does_what_the_lesson_says(engine):
    def play(setting, epochs):
        found = engine.evaluate(
            """([message, epochs]) => {
              const { history, problem } = train(message, epochs);
              return { history, problem };
            }""",
            [setting.to_message(), epochs],
        )
        if found["problem"]:
            assert "diverged" in found["problem"]
            return None
        return found["history"]

    check_lesson(play)


def test_the_engine_shows_units_and_weights_as_caffelite_does(engine):
    for data, norm in itertools.product(["spiral", "waves", "digits"], choices.NORMS):
        compare_views(data, norm, engine)


def compare_views(data, norm, engine):
    setting = Setting(data=data, layers=(5, 3), activation="GELU", norm=norm, optimizer="SGD", rate=0.1, dropout=0.2)
    names, place = fit(setting, 1), (1, 4, 2)
    found = engine.evaluate(
        """([message, place]) => {
          const training = train(message, 1), { output, units, weights } = new View(training).snapshot();
          return { output: [...output], units: units.map((u) => [...u]), weights: weights.map((w) => [...w]),
            weight: explainWeight(training, place) };
        }""",
        [setting.to_message(), place],
    )
    view = View(setting, names).snapshot()
    np.testing.assert_allclose(found["output"], np.ravel(view["output"]), rtol=1e-3, atol=1e-4)
    for ours, theirs in zip(found["units"], view["units"], strict=True):
        np.testing.assert_allclose(ours, np.ravel(theirs).astype(float), atol=1)
    for ours, theirs in zip(found["weights"], view["weights"], strict=True):
        np.testing.assert_allclose(ours, np.ravel(theirs), rtol=1e-3, atol=1e-4)
    trace = explain_weight(names["model"], setting, names["x"], names["y"], place)
    for name in ("value", "loss", "gradient", "difference"):
        assert found["weight"][name] == pytest.approx(trace[name], rel=1e-3, abs=1e-5)
    assert found["weight"]["gradient"] == pytest.approx(found["weight"]["difference"], rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("layers", [(8, 12, 5), (6,), ()])
def test_the_engine_reads_letters_and_writes_names_as_caffelite_does(layers, engine):
    setting = Setting(data="names", points=400, layers=layers, dropout=0.1)
    objects = fit(setting, 30)
    found = engine.evaluate(
        """(message) => {
          const view = new NamesView(train(message, 30)), refused = [];
          const snapshots = Array.from({ length: 10 }, (_, draw) => {
            view.read("mia", draw);
            return view.snapshot();
          });
          const { output, units, weights } = snapshots[0];
          for (const asked of [["Max", 0], ["abcdefghi", 0], [null, 0], ["max", -1], ["max", 1.5]]) {
            try { view.read(...asked); } catch ({ message }) { refused.push(message); }
          }
          return { output: [...output], units: units.map((u) => [...u]), weights: weights.map((w) => [...w]), refused,
            written: snapshots.map(({ written, kinds }) => [written, kinds]) };
        }""",
        setting.to_message(),
    )
    views = [NamesView(setting, objects).snapshot("mia", draw) for draw in range(10)]
    assert found["written"] == [[view["written"], view["kinds"]] for view in views]
    assert {kind for view in views for kind in view["kinds"]} >= {NEW, TRAINING}
    view = views[0]
    assert len(found["refused"]) == 5
    np.testing.assert_allclose(found["output"], np.ravel(view["output"]), rtol=1e-3, atol=1e-4)
    for ours, theirs in zip(found["units"], view["units"], strict=True):
        np.testing.assert_allclose(ours, np.ravel(theirs).astype(float), atol=1)
    for ours, theirs in zip(found["weights"], view["weights"], strict=True):
        np.testing.assert_allclose(ours, np.ravel(theirs), rtol=1e-3, atol=1e-4)


def test_the_engine_refuses_the_settings_that_caffelite_refuses(engine):
    for message, problem in [
        ({"data": "cats"}, "data: expected one of spiral, moons"),
        ({"points": 20.5}, "points: expected an integer of 20"),
        ({"rate": "0.1"}, "rate: expected a number"),
        ({"layers": [17]}, "layers: expected sizes of 1 … 16"),
        ({"layers": [4] * 7}, "layers: expected at most 6 sizes"),
        ({"features": ["x₂", "x₁"]}, "features: expected some of x₁"),
        ({"colour": "red"}, "a setting has no 'colour'"),
    ]:
        said = engine.evaluate(
            "(message) => { try { makeSetting(message); } catch ({ message }) { return message; } }", message
        )
        assert said.startswith(problem)
        with pytest.raises(ValueError, match=problem):
            Setting.from_message(message)


@pytest.mark.filterwarnings("ignore:Layers .* with nothing between them:caffelite.TrainingWarning")
@pytest.mark.parametrize(("width", "scheme"), [pytest.param(1440, "light", marks=pytest.mark.slow), (390, "dark")])
def test_the_page_works_from_a_disk_without_a_network(width, scheme, browser, site):
    said = []
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
    page = context.new_page()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))

    def steps():
        return int(page.inner_text("#steps").replace(",", ""))

    def has(selector, text):
        page.wait_for_function(f"() => document.querySelector('{selector}').textContent.includes('{text}')")

    address = f"{(site / 'index.html').as_uri()}"
    page.goto(address)
    page.wait_for_function("() => Number(document.querySelector('#steps').textContent) > 20")  # it begins by itself
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("new MutationObserver(() => { window.isSpoken = true; }).observe(outputtitle, { childList: true })")
    page.wait_for_function("(old) => Number(document.body.dataset.frames) > Number(old) + 3",
                           arg=page.get_attribute("body", "data-frames"))  # fmt: skip
    assert not page.evaluate("window.isSpoken")  # again
    page.click("#play")
    has("#play", "Play")
    page.press("#followto", "Enter")
    has("#touching", "reads it")
    page.wait_for_selector("#weightkernels")
    page.click("#data [data-name=circles]")
    page.select_option("[data-set=activation]", "none")
    page.wait_for_function("() => document.querySelector('#columns').dataset.sizes === '2 8 8 2'")
    page.click("#featurelist button:has-text('x₁²')")
    page.click("#featurelist button:has-text('x₂²')")
    page.wait_for_function("() => document.querySelector('#columns').dataset.sizes === '4 8 8 2'")
    page.click("#epoch")
    page.wait_for_function("() => document.querySelector('#steps').textContent === '7'")
    has("#text", "x = np.stack([a, b, a**2, b**2], axis=1)")
    has("#text", "epochs=1,")
    names = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(page.inner_text("#text"), names)
    assert float(page.get_attribute("#losses", "data-loss")) == pytest.approx(names["history"]["loss"][0], rel=1e-5)
    page.click("#share")
    shared = page.url
    assert shared.startswith(address + "#")

    for name, value in (("layer", 1), ("from", 2), ("to", 3)):
        page.fill(f"#follow{name}", str(value))
    page.press("#followto", "Enter")
    has("#followtitle", "The weight from x₂ to unit 3 of layer 1")
    gradients = [float(page.inner_text(f"#{name}").replace("−", "-")) for name in ("gradient", "difference")]
    assert gradients[0] == pytest.approx(gradients[1], rel=0.01, abs=1e-6)
    check_edit(page)
    assert page.is_hidden("#weightkernels")
    has("#kernelnote", "These are the kernels of another net, 2-8-8-3 with ReLU and Adam")
    page.click("#tab-program")
    page.wait_for_selector("#kernels tr")
    page.click("#kernels tr:last-child button")
    has("#looptitle", "The loop of ")
    assert page.is_hidden("#kernel")
    assert page.is_hidden("#csv")
    links = page.eval_on_selector_all("a[href^='../../']", "(links) => links.map((a) => [a.innerText, a.href])")
    top = site.parents[1].as_uri()
    assert links[:2] == [["caffelite", f"{top}/index.html"], ["install caffelite", f"{top}/running.html"]]

    page.goto("about:blank")
    page.goto(f"{address}#lesson=6")
    has("#lessontitle", "6 of 11: Luck")
    page.wait_for_function("() => document.querySelector('#columns').dataset.sizes === '2 3 2'")
    page.wait_for_function("() => Number(document.querySelector('#steps').textContent) > 20")
    assert page.get_attribute("#lessonlink a", "href") == "../../guide.html#how-big-a-net"
    assert page.locator("[data-set=seed].pulse").count() == 1
    for _ in range(5):
        page.click("#after")
    page.select_option("[data-set=rate]", "0.03")
    assert page.url == f"{address}#lesson=11"  # and so after a visit to another page
    has("#lessontitle", "11 of 11: Names")
    page.wait_for_function("() => document.querySelector('#columns').dataset.sizes === '27 8 16 27'")
    page.wait_for_function("() => document.querySelectorAll('#written li').length === 10")
    page.click("#columns button[aria-label='remove layer 2']")
    check_names(page)
    page.click("#more")
    page.click("#more")
    page.click("#data [data-name=digits]")
    page.wait_for_function("() => document.querySelector('#columns').dataset.sizes === '64 8 4 4 10'")
    page.wait_for_function("() => document.querySelectorAll('#mistakes figure').length > 0")
    has("#lessontitle", "Lesson: 11 steps")
    page.click("#take")
    has("#lessontitle", "1 of 11")
    page.click("#data [data-name=moons]")
    has("#lessontitle", "Lesson: 11 steps")
    assert "moons" in page.url
    page.goto("about:blank")
    page.goto(shared)
    page.wait_for_function("() => document.querySelector('#columns').dataset.sizes === '4 8 8 2'")
    assert page.input_value("#speed") == "300"
    page.goto("about:blank")
    page.goto(f"{address}#{{%22points%22:1e9}}")
    has("#gone", "points: expected an integer of 20")
    assert steps() >= 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert said == []
    context.close()


@pytest.fixture
def phone(browser, site):
    """Yield the page on a phone, before its first step."""
    context = browser.new_context(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    page = context.new_page()
    page.goto((site / "index.html").as_uri())
    page.wait_for_function("() => Number(document.querySelector('#steps').textContent) > 20")
    page.tap("#play")
    page.wait_for_selector("#play:text-is('Play')")
    page.tap("#again")
    page.wait_for_selector("#steps:text-is('0')")
    yield page
    context.close()


def tap_net(page, across, down):
    """Tap the net at a part of its width, and at pixels from its middle."""
    page.locator("#graph").scroll_into_view_if_needed()
    box = page.locator("#graph").bounding_box()
    page.touchscreen.tap(box["x"] + across * box["width"], box["y"] + box["height"] / 2 + down)


def is_in_view(page, selector):
    box = page.locator(selector).bounding_box()
    return box["y"] >= 0 and box["y"] + box["height"] <= 844


def test_a_change_after_a_divergence_plays_on(browser, site):
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    page.goto(f"{(site / 'index.html').as_uri()}#lesson=2")
    check_divergence(page)


@pytest.mark.slow
def test_a_tap_shows_a_unit_large_until_the_next(phone):
    width = phone.evaluate("document.querySelector('#graph').clientWidth")
    across = (44 + (width - 88) / 3) / width  # of the first hidden layer
    height = phone.locator("#output").bounding_box()["height"]
    for down, words in ((22, "Unit 5 of layer 1"), (-22, "Unit 4 of layer 1")):
        tap_net(phone, across, down)
        phone.wait_for_selector(f"#outputtitle:text('{words}')")
        assert is_in_view(phone, "#regions")
        assert phone.locator("#output").bounding_box()["height"] == pytest.approx(height, abs=1)
    tap_net(phone, across, -22)
    phone.wait_for_selector("#outputtitle:text-is('What the net predicts')")
    tap_net(phone, across, 22)
    phone.wait_for_selector("#outputtitle:text('Unit 5 of layer 1')")
    tap_net(phone, 0.01, 0)  # beside all units
    phone.wait_for_selector("#outputtitle:text-is('What the net predicts')")


@pytest.mark.slow
def test_fingers_hit_what_they_aim_at(phone):
    phone.evaluate("document.querySelector('#rest').open = true")
    boxes = [box for each in phone.locator(":is(button, select, input:not([type=checkbox])):visible").all()
             if (box := each.bounding_box())["width"] > 1]  # fmt: skip
    assert len(boxes) > 40
    assert min([box["height"] for box in boxes]) >= 40
    layer = [box.bounding_box() for box in phone.locator("#columns > div:first-child button").all()]
    assert min([box["width"] for box in layer]) >= 40
    ends = [box["y"] + box["height"] for box in layer]
    assert min([below["y"] - end for below, end in zip(layer[1:], ends[:-1], strict=True)]) >= 6
    assert layer[3]["y"] >= ends[2] + 12  # × is apart from +
    graph = phone.locator("#graph").bounding_box()
    assert ends[3] <= graph["y"]


@pytest.mark.slow
def test_a_step_of_the_lesson_leads_to_what_is_out_of_view(phone):
    tops = [phone.locator(f"#{name}").bounding_box()["y"] for name in ("lesson", "output", "net", "choose", "below")]
    assert tops == sorted(tops)
    phone.tap("#take")
    for _ in range(5):
        phone.tap("#after")
    phone.wait_for_selector("#lessontitle:text('6 of 11')")
    assert phone.locator("#lessonplaces button").all_inner_texts() == ["↓ Seed", "↓ The layers"]
    for name, place in (("↓ Seed", "[data-set=seed]"), ("↓ The layers", "#columns")):
        assert not is_in_view(phone, place)
        phone.tap(f"#lessonplaces button:text-is('{name}')")
        phone.wait_for_selector(f"{place}.pulse")
        assert is_in_view(phone, place)
        phone.evaluate("scrollTo(0, 0)")
    phone.tap("#before")
    assert phone.locator("#lessonplaces button").all_inner_texts() == ["↓ Features"]


def test_a_tap_on_a_link_leads_to_its_weight_and_the_loss(phone):
    tap_net(phone, 0.75, 0)
    phone.wait_for_selector("#edit:visible")
    phone.wait_for_function("() => document.querySelector('#edit').getBoundingClientRect().bottom <= innerHeight")
    assert is_in_view(phone, "#edit")
    value = float(phone.inner_text("#value").replace("−", "-"))
    assert float(phone.input_value("#newvalue")) == pytest.approx(value, rel=1e-3)
    before = phone.inner_text("#weightloss")
    phone.fill("#newvalue", "50")
    phone.tap("#edit button")
    phone.wait_for_function("(before) => document.querySelector('#weightloss').textContent !== before", arg=before)
    assert float(phone.inner_text("#weightloss")) > float(before)


@pytest.mark.slow
def test_the_head_of_a_phone_is_low(phone):
    for width in (360, 390):
        phone.set_viewport_size({"width": width, "height": 844})
        assert phone.evaluate("document.documentElement.scrollWidth") == width
    note = phone.locator("#choose p.only-site").bounding_box()
    assert note["width"] > 320
    tops = {round(phone.locator(f"header {each}").bounding_box()["y"] / 20) for each in ("h1", "#share", "#theme")}
    assert len(tops) == 1
    assert phone.locator("header").bounding_box()["height"] < 300
    speed, rate = (phone.locator(name).bounding_box() for name in ("#speed", "[data-set=rate]"))
    assert speed["y"] == rate["y"]


def test_the_page_is_small(site):
    names = ("index.html", "playground.js", "playground.css", "style.css", "icon.svg")
    assert sum([len(gzip.compress((site / name).read_bytes())) for name in names]) < 60_000
