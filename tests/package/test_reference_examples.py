"""The examples of the reference, docs/reference/examples/, run and print what they show."""

import ast
import doctest
import importlib
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import caffelite as cl

DOCS = Path(__file__).parents[2] / "docs"
FILES = sorted((DOCS / "reference" / "examples").glob("*.txt"))
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


def test_each_name_in_the_reference_has_an_example_or_is_listed_without_one(monkeypatch):
    """Otherwise the site can't be built."""
    monkeypatch.syspath_prepend(DOCS / "_extensions")
    listed_names = importlib.import_module("signatures").listed_names
    names = set()
    for page in (DOCS / "reference").glob("*.md"):
        for block in re.findall(r"```\{reference\}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            module = re.search(r"^:module: (\S+)$", block, re.M)
            lines = [line for line in block.splitlines() if not line.startswith(":")]
            names |= {f"{module[1] if module else 'caffelite'}.{name}" for name in listed_names(lines)}
    source = (DOCS / "_extensions" / "reference.py").read_text(encoding="utf-8")
    no_example = ast.literal_eval(re.search(r"^NO_EXAMPLE = (\{.*?^\})", source, re.DOTALL | re.M)[1])
    assert len(names) > 180
    assert names - no_example <= EXAMPLES.keys()
    assert not no_example & EXAMPLES.keys()


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
