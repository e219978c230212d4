"""A training that is shown, and what tests of pages wait for."""

import contextlib
import subprocess
import sys
import threading
import time
from pathlib import Path

from websockets.exceptions import ConnectionClosed

import caffelite as cl
from tests.tools.page_client import SECONDS, Page

X, Y = cl.datasets.spiral(seed=0)


def fit(callbacks=(), epochs=200, x=X, y=Y, model=None, optimizer=None, **options):
    model = cl.MLP(2, [20, 3], seed=0) if model is None else model
    optimizer = cl.SGD(model.parameters(), lr=0.05, momentum=0.9) if optimizer is None else optimizer
    options = {"loss": cl.SoftmaxLoss(), "verbose": 0} | options
    history = model.fit(x, y, optimizer=optimizer, epochs=epochs, callbacks=[*callbacks], **options)
    return model, history


def language_model(characters=True):
    """Return a small GPT, and text for it as rows and targets."""
    sentence = "the cat sat on the mat. " * 40
    vocabulary = cl.Vocabulary([sentence], characters=characters)
    tokens = vocabulary.encode(sentence)
    count = (len(tokens) - 1) // 8
    x, y = tokens[: 8 * count].reshape(count, 8), tokens[1 : 8 * count + 1].reshape(count, 8)
    size = len(vocabulary)
    layers = [cl.Embedding(size, 8), cl.TransformerBlock(8, heads=2, causal=True), cl.Linear(8, size)]
    model = cl.Model(layers, seed=0)
    model.vocabulary = vocabulary
    return model, x, y


class Looking:
    """A training that goes on, in another thread, until the block ends, with a page that looks at it."""

    def __init__(self, live=None, beside=(), **options):
        self.live = cl.live(open_browser=False) if live is None else live
        self.callbacks = [*beside, self.live]
        self.options = {"epochs": 10**8} | options
        self.error = self.result = None

    def _train(self):
        try:
            self.result = fit(self.callbacks, **self.options)
        except BaseException as error:
            self.error = error

    def __enter__(self):
        self.thread = threading.Thread(target=self._train, daemon=True)
        self.thread.start()
        end = time.monotonic() + SECONDS
        while self.live.address is None or self.live._training is None:
            assert time.monotonic() < end
            time.sleep(0.005)
        self.page = Page(self.live)
        return self

    def __exit__(self, *exception):
        with contextlib.suppress(ConnectionClosed, OSError):  # it has ended already
            if self.thread.is_alive():
                (self.page if self.page.thread.is_alive() else Page(self.live)).ask("stop")
        self.thread.join(SECONDS)
        assert not self.thread.is_alive()
        self.page.close()


@contextlib.contextmanager
def command(*arguments):
    """`caffelite live` with these arguments, which runs until the end of the block, and the address of its page."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "caffelite", "live", "--no-browser", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(cl.__file__).parents[1],
    )  # fmt: skip
    process.address = process.stdout.readline().rpartition(" ")[2].strip()
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


PROGRAM = """
import sys
import caffelite as cl
x, y = cl.datasets.spiral(seed=0)
model = cl.MLP(2, [30, 3], seed=0)
model.fit(x, y, loss=cl.SoftmaxLoss(), optimizer=cl.SGD(model.parameters(), lr=0.1), epochs=10**8, verbose=0,
          validation_split=0.2, metrics=["accuracy"], callbacks=[cl.live(open_browser=False, folder=sys.argv[1])])
"""
