"""What the tests of files share."""

import os

import pytest


@pytest.fixture(autouse=True)
def skipped_fsync(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def assert_same_state(a, b):
    first, second = a.state_dict(), b.state_dict()
    assert list(first) == list(second)
    for name, array in first.items():
        assert (array.dtype, array.shape, array.tobytes()) == (
            second[name].dtype,
            second[name].shape,
            second[name].tobytes(),
        ), name
