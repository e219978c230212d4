"""Settings of the playground that are drawn at random, its frames, and what its page shows of names."""

import dataclasses
import re
import time

import numpy as np

from caffelite.web.playground import config as choices
from caffelite.web.playground.config import Setting
from caffelite.web.playground.data import DATA
from caffelite.web.playground.engine import Engine
from tests.tools.page_client import SECONDS


def wait_until(is_done):
    end = time.monotonic() + SECONDS
    while not is_done():
        assert time.monotonic() < end
        time.sleep(0.01)


def draw_features(rng):
    """Return the point itself, or some of the features."""
    names = tuple([name for name in choices.FEATURES if rng.random() < 0.5])
    return choices.POINT if rng.random() < 0.5 else names or ("x₁x₂",)


def draw_setting(seed):
    """Return a setting with everything drawn at random."""
    rng = np.random.default_rng(seed)
    return Setting(
        data=str(rng.choice([name for name in DATA if name != "names"])),
        points=int(rng.integers(20, 200)),
        features=draw_features(rng),
        noise=float(rng.choice([0, 0.1, 0.5])),
        split=float(rng.choice([0.1, 0.5, 0.9])),
        layers=tuple(rng.integers(1, 17, rng.integers(0, 4)).tolist()),
        activation=str(rng.choice(choices.ACTIVATIONS)),
        loss=str(rng.choice([*choices.CLASSIFICATION_LOSSES, *choices.REGRESSION_LOSSES])),
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


def draw_names_setting(seed):
    """Return a setting of names with everything else drawn at random."""
    return dataclasses.replace(draw_setting(seed), data="names")


class Frames:
    """An engine, and the frames that it has shown."""

    def __init__(self, setting):
        self.all, self.others = [], []
        self.engine = Engine(setting, self.show)

    def show(self, kind, message):
        if kind == "frame":
            self.all.append(message)
        else:
            self.others.append((kind, message))

    @property
    def last(self):
        return self.all[-1]

    def take_steps(self, steps):
        """Take steps, and wait until it has paused."""
        target = self.engine.steps + steps
        self.engine.take_steps(steps)
        wait_until(lambda: (self.last["step"] == target and not self.last["playing"]) or self.last["problem"])
        return self.last


def check_edit(page):
    """Set the weight that is followed, of a net that waits."""
    for text, selector, said in (
        ("0.25", "#value", "0.250000"),
        ("1001", "#gone", "expected a weight from -1000 to 1000"),
        ("", "#gone", "expected a weight from -1000 to 1000, got N"),
    ):
        page.fill("#newvalue", text)
        page.press("#newvalue", "Enter")
        page.wait_for_function(f"() => document.querySelector('{selector}').textContent.includes('{said}')")
    assert page.inner_text("#value") == "0.250000"
    page.wait_for_function("() => document.querySelector('#text').textContent.includes('weights that were set')")


def check_names(page):
    """Look at what a page shows of a net that learns names."""
    page.click("#data [data-name=names]")
    page.wait_for_function("() => document.querySelector('#columns').dataset.sizes === '27 8 27'")
    page.wait_for_function("() => document.querySelector('[data-set=points]').value === '600'")  # all of them
    for name in ("noise", "activation", "norm", "loss"):
        assert page.is_hidden(f"[data-set={name}]")
    for name in ("features", "choice", "mistakes", "heldlabel", "column"):
        assert page.is_hidden(f"#{name}")
    page.click("#more")
    page.wait_for_function("() => document.querySelector('#columns').dataset.sizes === '27 8 4 27'")
    page.click("#epoch")
    page.wait_for_function("() => document.querySelectorAll('#written li').length === 10")
    page.wait_for_function("() => document.querySelector('#losses').dataset.loss > 1")
    assert "costs −ln 1/27 = 3.30" in page.inner_text("#losses")
    page.fill("#prefix", "Zo1")
    assert page.input_value("#prefix") == "zo"
    page.wait_for_selector("#regions[aria-label^='what the net expects after zo: ']")
    written = page.inner_text("#written")
    page.click("#others")
    page.wait_for_function("(old) => document.querySelector('#written').innerText !== old", arg=written)
    page.focus("#graph")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#outputtitle:text-is('Unit 1 of layer 1, after each letter')")
    page.keyboard.press("Escape")
    page.wait_for_function("() => document.querySelector('#outputtitle').textContent === 'What the net writes'")
    page.click("#graph", position={"x": page.evaluate("document.querySelector('#graph').clientWidth") / 6, "y": 270})
    assert page.is_hidden("#follow")
    page.click("#data [data-name=moons]")
    page.wait_for_function("() => document.querySelector('#columns').dataset.sizes === '2 8 4 2'")
    assert page.is_hidden("#names")
    assert page.is_visible("#choice")
    assert page.input_value("[data-set=points]") == "300"
    page.click("#fewer")
    page.wait_for_function("() => document.querySelector('#columns').dataset.sizes === '2 8 2'")
    assert page.evaluate("document.querySelector('#regions').height") == 440


def check_divergence(page):
    """Let lesson 2 diverge, and look at what a page shows of a net without hidden layers."""
    page.wait_for_selector("#lessontitle:text-is('2 of 11: The learning rate')")
    page.wait_for_function("() => document.querySelector('#columns').dataset.sizes === '2 1'")
    page.select_option("#speed", label="as fast as it goes")
    page.select_option("[data-set=rate]", "3")
    page.wait_for_selector("#losses:text-is('The loss has exploded.')")
    page.select_option("[data-set=rate]", "0.1")
    page.wait_for_selector("#gone.hidden", state="attached")
    page.wait_for_function("() => Number(document.querySelector('#steps').textContent.replaceAll(',', '')) > 100")
    page.click("#play")
    page.wait_for_selector("#play:text-is('Play')")
    assert re.fullmatch(r"Training: on average \S+ off\. Test: on average \S+ off\.", page.inner_text("#losses"))
    assert page.inner_text("#meaning").startswith("A link's colour")
    page.select_option("[data-set=rate]", "10")
    for _ in range(200):  # steps, and no play
        if page.inner_text("#losses") == "The loss has exploded.":
            break
        page.click("#epoch")
    page.wait_for_selector("#losses:text-is('The loss has exploded.')")
    page.select_option("[data-set=rate]", "0.1")
    page.wait_for_selector("#gone.hidden", state="attached")
    page.click("#step")
    page.wait_for_selector("#steps:text-is('1')")
    assert page.inner_text("#losses") == "The curves begin after the first epoch."
