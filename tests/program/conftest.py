"""Fixtures that several test files of this folder use."""

import pytest

from caffelite.program import program as programs
from tests.program.steps import COMBINATIONS, name_passes


@pytest.fixture(params=COMBINATIONS, ids=name_passes)
def passes(request, monkeypatch):
    """Every combination of passes."""
    monkeypatch.setattr(programs, "PASSES", request.param)
