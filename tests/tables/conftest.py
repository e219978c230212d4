"""Fixtures that several test files of this folder use."""

from types import SimpleNamespace

import pytest

from tests.tables.shop import run, shop, write_rows


@pytest.fixture
def path(tmp_path):
    return tmp_path / "table.csv"


@pytest.fixture(scope="module")
def trained_models(tmp_path_factory):
    """Return a model of each task that `caffelite train` has written, with what was printed."""
    folder = tmp_path_factory.mktemp("trained")
    data = write_rows(folder / "shop.csv", shop())
    found = SimpleNamespace(folder=folder, data=data)
    for name, target, other in (("classes", "sold", "price"), ("values", "price", "sold")):
        model = folder / f"{name}.safetensors"
        said = run("train", data, "--target", target, "--drop", other, "--nets", 4, "--output", model)
        assert said.err == ""
        assert said.status == 0
        setattr(found, name, SimpleNamespace(model=model, picture=folder / f"{name}.png", out=said.out))
    return found
