"""Fixtures that several test files of this folder use."""

import pytest


@pytest.fixture
def path(tmp_path):
    return tmp_path / "net.onnx"
