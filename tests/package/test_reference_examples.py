"""The examples of the reference, docs/reference/examples/, run and print what they show."""

import doctest
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import caffelite as cl

FILES = sorted((Path(__file__).parents[2] / "docs" / "reference" / "examples").glob("*.txt"))
EXAMPLES = {
    name: text
    for path in FILES
    for name, text in re.findall(
        r"^# (caffelite\S+)\n(.*?)(?=^# caffelite|\Z)", path.read_text(encoding="utf-8"), re.DOTALL | re.M
    )
}
NEEDED = {
    "caffelite.minimize": "scipy",
    "caffelite.onnx": "onnx",
    "caffelite.plots": "matplotlib",
    "caffelite.sklearn": "sklearn",
}
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def test_there_are_examples_for_most_of_what_is_offered():
    assert len(FILES) > 10
    assert len(EXAMPLES) > 180


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.usefixtures("restored_threads")
def test_an_example_prints_what_it_shows(name, tmp_path, monkeypatch):
    for prefix, library in NEEDED.items():
        if name.startswith(prefix):
            pytest.importorskip(library)
    if name == "caffelite.machine_code" and shutil.which("objdump") is None:
        pytest.skip("there is no disassembler")
    monkeypatch.chdir(tmp_path)
    test = doctest.DocTestParser().get_doctest(EXAMPLES[name], {"np": np, "cl": cl}, name, None, 0)
    assert test.examples
    told = []
    doctest.DocTestRunner(verbose=False, optionflags=OPTIONS).run(test, out=told.append)
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
    assert not told, "".join(told)
