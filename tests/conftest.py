"""What several test files share."""

import itertools
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

import caffelite as cl

HERE = Path(__file__).parent

# A failed assert of a helper shows its values, as one of a test does.
pytest.register_assert_rewrite("tests.reference", *(f"tests.{path.parent.name}" for path in HERE.glob("*/__init__.py")))

# The tests press Ctrl-C, which a job in the background of a shell ignores, and what it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No picture opens a window. matplotlib reads this once, when it is first imported.
os.environ["MPLBACKEND"] = "agg"

# These folders compare caffelite with libraries from their first line on. onnx comes with onnxruntime.
NEEDED = {
    "onnxruntime": "onnx",
    "sklearn": "sklearn",
}
collect_ignore = [name for library, name in NEEDED.items() if find_spec(library) is None]

# For tests of what Windows does not have.
posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX: its links, FIFOs, modes, limits, signals or forks")

# How many cases hypothesis draws: 12 a test, the same every time. For 10,000 an operator, others with every seed:
#   python -m pytest tests -k random_shapes --hypothesis-profile=thorough --hypothesis-seed=0
settings.register_profile("quick", max_examples=12, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=10_000, deadline=None)
settings.load_profile("quick")


def classifier(*sizes, seed=0, dtype=np.float32):
    """Return a Model of Linear layers of these sizes, with ReLU between them."""
    model = cl.Model(seed=seed, dtype=dtype)
    for i, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        if i > 0:
            model.add(cl.ReLU())
        model.add(cl.Linear(inputs, outputs))
    return model


def train(model, x, y=None, *, lr=0.1, momentum=0.9, **options):
    """`model.fit` with the usual loss and optimizer, unless others are given."""
    options = {"loss": cl.SoftmaxLoss(), "verbose": 0, **options}
    if "optimizer" not in options:
        options["optimizer"] = cl.SGD(model.parameters(), lr=lr, momentum=momentum)
    return model.fit(x, y, **options)


def training_step(model, optimizer, loss=None):
    """Return the function of a batch that makes a training step by hand and returns the loss."""
    loss = loss or cl.SoftmaxLoss()

    def step(x, y):
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        return value

    return step


def bits(model):
    """Return the bytes of all parameters."""
    return b"".join(p.data.tobytes() for p in model.parameters())


@pytest.fixture
def restored_threads():
    """Put the number of threads back after the test."""
    before = cl.get_num_threads()
    yield
    cl.set_num_threads(before)


@pytest.fixture
def missing_matplotlib(monkeypatch):
    """As if matplotlib were not installed."""
    monkeypatch.delitem(sys.modules, "caffelite._support.figures", raising=False)
    for name in [*[name for name in sys.modules if name.split(".")[0] == "matplotlib"], "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture
def forbidden_training(monkeypatch):
    """Fail a test that trains where arguments are wrong."""
    monkeypatch.setattr(cl.Model, "fit", lambda *args, **options: pytest.fail("it trained"))


@pytest.fixture(scope="module")
def chromium():
    """Chromium, driven by Playwright. The environment variable CHROMIUM may name it."""
    playwright = pytest.importorskip("playwright.sync_api")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip("there is no Chromium")
    with playwright.sync_playwright() as p:
        chromium = p.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def browser(chromium):
    """Chromium with the pages of one test."""
    yield chromium
    for context in chromium.contexts:
        context.close()


def copy_project(target):
    """Copy the project to a folder as it is under version control: without what was built or installed."""
    made = (".venv", ".git", "build", "dist", "classroom", "_build", "gallery", "_notebooks", ".hypothesis")
    made += ("__pycache__",)
    made += ("*.so", "*.pyd", "*.egg-info")
    shutil.copytree(HERE.parent, target, ignore=shutil.ignore_patterns(*made), dirs_exist_ok=True)


def unpack_source_distribution(folder):
    """Make the source distribution in a folder and unpack it there: the project in it, and the archive."""
    copied = folder / "copied"
    copy_project(copied)
    run(sys.executable, "setup.py", "-q", "sdist", "-d", folder, cwd=copied)
    shutil.rmtree(copied)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz"), archive


def run(*command, cwd, **options):
    """Return what a command prints; an AssertionError with all of it if the command fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
