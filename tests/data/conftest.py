"""Fixtures that several test files of this folder use."""

import threading

import pytest

from caffelite import sources


@pytest.fixture
def small_buffers(monkeypatch):
    """Buffers of some hundreds of rows, in blocks of a few."""
    monkeypatch.setattr(sources, "BUFFER", 2**15)
    monkeypatch.setattr(sources, "BLOCK", 2**10)


@pytest.fixture
def thread_leak_check():
    yield
    assert [thread.name for thread in threading.enumerate() if "prefetch" in thread.name] == []
