"""Fixtures that several test files of this folder use."""

import subprocess
import sys
from pathlib import Path

import pytest

import caffelite as cl


@pytest.fixture
def long_timeouts(monkeypatch):
    """Parts of the page may take long: a machine that does other things, too, takes long for all."""
    from caffelite.web import controls, live, updates

    monkeypatch.setattr(updates, "FIRST_SHARE", 60.0)
    monkeypatch.setattr(live, "SECONDS_AT_END", 60.0)
    for module in (live, controls):
        monkeypatch.setattr(module, "SECONDS_PAUSED", 60.0)


@pytest.fixture
def folder(tmp_path):
    """Return a folder with two runs, of 30 and 40 epochs."""
    from tests.web.live_training import fit  # which needs packages that may be missing

    live = cl.live(open_browser=False, folder=tmp_path / "runs")
    fit([live], 30)
    fit([live], 40)
    return tmp_path / "runs"


@pytest.fixture
def frames():
    """Return a function that makes an engine of a setting, with its frames."""
    from tests.web.playground_frames import Frames, wait_until  # which need packages that may be missing

    found = []

    def make(setting):
        found.append(Frames(setting))
        wait_until(lambda: found[-1].all)
        return found[-1]

    yield make
    for one in found:
        one.engine.stop()
        assert not one.engine._thread.is_alive()


@pytest.fixture
def program(tmp_path):
    """Yield a program that trains until it is interrupted, and the address of its page."""
    from tests.web.live_training import PROGRAM

    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "runs")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(cl.__file__).parents[1]
    )
    process.address = process.stdout.readline().rpartition(" ")[2].strip()
    yield process
    process.kill()
    process.communicate()
