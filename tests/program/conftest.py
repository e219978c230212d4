"""Fixtures that several test files of this folder use."""

import pytest

from caffelite.program import program as programs
from tests.program.steps import COMBINATIONS


@pytest.fixture(params=COMBINATIONS, ids=lambda passes: "+".join(p.__name__ for p in passes) or "no pass")
def passes(request, monkeypatch):
    """Every combination of passes."""
    monkeypatch.setattr(programs, "PASSES", request.param)
