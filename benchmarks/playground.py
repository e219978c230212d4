"""The playground's speed: steps a second beside those of `fit`, and frames a second.

python benchmarks/playground.py           # the training alone
python benchmarks/playground.py --page    # with a page in a browser, which draws (needs playwright and Chromium)

`fit` trains the same net on the same data with the same validation, without a callback. The two take turns, and both
take the same steps: when a net has learned all, its gradients become so small that steps take longer.
"""

import argparse
import os
import shutil
import statistics
import time

import harness

import caffelite as cl
from caffelite.web.playground.code import build_objects
from caffelite.web.playground.config import Setting
from caffelite.web.playground.page import Playground

SETTINGS = {
    "spiral, 2-8-8-3": Setting(),
    "spiral, 2-16-16-3": Setting(layers=(16, 16)),
    "digits, 64-16-16-10": Setting(data="digits", points=1797, layers=(16, 16)),
}
SECONDS = 2.0
CHROMIUM = os.environ.get("CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


def time_fit(setting):
    """How many steps `fit` takes in some seconds, and the seconds."""
    objects = build_objects(setting)

    class Stop:
        steps = 0

        def begin(self, _):
            self.end_at = time.perf_counter() + SECONDS

        def due(self, epochs):
            return epochs + max(1, 10_000 // setting.steps)

        def steps_done(self, count):
            self.steps += count

        def __call__(self, *_):
            return time.perf_counter() > self.end_at

    stop, begin = Stop(), time.perf_counter()
    objects["model"].fit(
        objects["x"],
        objects["y"],
        loss=getattr(cl, setting.loss)(),
        optimizer=objects["optimizer"],
        epochs=10**7,
        batch_size=setting.batch_size,
        validation_data=objects["held_out"],
        metrics=[setting.metric],
        callbacks=[stop],
        verbose=0,
    )
    return stop.steps, time.perf_counter() - begin


def time_playground(setting, steps, playground, count_frames):
    """Return steps a second of the playground until it has taken so many, and frames a second that the page draws."""
    playground.on_receive(None, {"ask": "set", "setting": setting.described()})
    engine, frames, begin = playground.engine, count_frames(), time.perf_counter()
    engine.play()
    time.sleep(SECONDS / 2)  # as it begins again, `steps` may still be those of the training before
    while engine.steps < steps:
        time.sleep(0.02)
    seconds = time.perf_counter() - begin
    rates = engine.steps / seconds, (count_frames() - frames) / seconds
    engine.play(False)
    time.sleep(0.2)
    return rates


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="with a page in a browser")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a try, not a measurement")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds = 1
    playground = Playground()
    frames_shown = [0]
    show = playground.engine.show

    def count(kind, message):
        frames_shown[0] += kind == "frame"
        show(kind, message)

    playground.engine.show = count
    if not arguments.page:
        measure(playground, arguments.rounds, lambda: frames_shown[0])
    else:
        from playwright.sync_api import sync_playwright

        with sync_playwright() as p:
            browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.goto(playground.server.address)
            page.wait_for_function("document.body.dataset.frames > 0")
            measure(playground, arguments.rounds, lambda: int(page.evaluate("document.body.dataset.frames")))
            browser.close()
    playground.stop()


def measure(playground, rounds, count_frames):
    rows = []
    for name, setting in SETTINGS.items():
        results = []
        for _ in range(rounds):
            steps, seconds = time_fit(setting)
            results.append((steps / seconds, *time_playground(setting, steps, playground, count_frames)))
        fit, playground_rate, frames = (statistics.median(column) for column in zip(*results, strict=True))
        share = statistics.median([b / a for a, b, _ in results])
        rows.append([name, f"{fit:,.0f}", f"{playground_rate:,.0f}", f"{share:.0%}", f"{frames:.0f}"])
    print(harness.environment("starlette", "uvicorn"))
    print(harness.table(["", "fit, steps/s", "playground, steps/s", "share", "frames/s"], rows))


if __name__ == "__main__":
    main()
