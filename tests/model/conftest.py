"""Fixtures that several test files of this folder use."""

import pytest

import caffelite as cl


@pytest.fixture(params=[1, 3])
def threads(request, restored_threads):
    cl.set_num_threads(request.param)
    return request.param
