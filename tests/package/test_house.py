"""The measures of the house count what they say, and the rules for names tell a verb from a participle."""

import pytest

from tests.tools import house
from tests.tools.names import definitions, is_noun, is_participle


@pytest.mark.parametrize("name", ["checked", "_made", "told_apart", "drawn_anew", "held_out", "found_in", "taken_for"])
def test_a_participle_is_found(name):
    assert is_participle(name)


@pytest.mark.parametrize(
    "name",
    [
        "check",
        "made_rows",
        "named_parameters",
        "sorted",
        "reversed",
        "embed",
        "seed",
        "feed",
        "read",
        "set",
        "_",
        "__init__",
    ],
)
def test_a_verb_or_a_noun_is_not_a_participle(name):
    assert not is_participle(name)


@pytest.mark.parametrize(
    "name",
    ["OfEpoch", "TeamOfRanks", "Own", "OwnHosts", "_Given", "Shown", "ShownTogether", "Kept", "Alone", "NotToSet"],
)
def test_a_preposition_a_pronoun_or_an_adjective_is_not_a_noun(name):
    assert not is_noun(name)


@pytest.mark.parametrize(
    "name", ["ProcessGroup", "SharedStep", "GRU", "RNN", "BatchNorm", "Offset", "OneHot", "Tensor", "_T"]
)
def test_a_noun_of_the_field_is_one(name):
    assert is_noun(name)


def test_the_lines_of_functions_are_counted_with_and_without_docstring(tmp_path):
    python = tmp_path / "a.py"
    python.write_text(
        'class C:\n    def f(\n        x,\n    ):\n        """One.\n\n        Two.\n        """\n        return x\n'
    )
    assert [d[2:6] for d in definitions(python)] == [("C", True, 9, 0), ("f", False, 8, 4)]
    cython = tmp_path / "a.pyx"
    cython.write_text(
        'cdef class C:\n    cdef int f(\n        int x\n    ):\n        """One."""\n\n        return x\n\n\nx = 1\n'
    )
    assert [d[2:6] for d in definitions(cython)] == [("C", True, 7, 0), ("f", False, 6, 1)]


#: For each measure, a file that it counts once, and one that it does not count.
FILES = {
    "participles": [("core/a.py", "def checked(): ..."), ("core/a.py", "def check(): ...")],
    "of-endings": [("core/a.pyx", "cdef int size_of(x):\n    pass"), ("core/a.py", "def size(x): ...")],
    "of": [("core/a.py", "class C:\n    def of(self): ..."), ("core/a.py", "class Of: ...")],
    "classes": [("c/a.py", "class Zero: ..."), ("pytorch/a.py", "class Zero: ...")],
    "old-files": [("data/door.py", ""), ("data/loader.py", "")],
    "training": [("training/a.py", ""), ("training/epochs/a.py", "")],
    "core": [("core/a.pyx", ""), ("core/__init__.py", "")],
    "processes": [("model/a.py", "of_team = 1"), ("model/a.py", "teamwork = Rank = 1")],
    "columns": [
        ("model/a.py", "from caffelite.functions import (\n    Columns,\n)"),
        ("cli/a.py", "from caffelite.tables import x"),
    ],
    "top": [("a/b.py", ""), ("__main__.py", "")],
    "files": [("core/a.py", "x = 1\n" * 501), ("_kernels/loops/a.pyx", "x = 1\n" * 501)],
    "long-classes": [
        ("core/a.py", "class C:\n" + "    x = 1\n" * 350),
        ("core/a.py", "class C:\n" + "    x = 1\n" * 349),
    ],
    "functions": [("core/a.py", "def f():\n" + "    x = 1\n" * 50), ("core/a.py", "def f():\n" + "    x = 1\n" * 49)],
    "tests": [("../tests/a/test_b.py", "x = 1\n" * 901), ("../tests/a/test_b.py", "x = 1\n" * 900)],
    "assertions": [
        ("../tests/a/test_b.py", "def test_c():\n    fit()"),
        ("../tests/a/test_b.py", "def test_c():\n    assert fit()"),
    ],
}


def count(measure, root):
    return sum(place.count for place in house.MEASURES[measure].places(house.House(root)))


def write(root, path, text):
    file = root / "caffelite" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize("measure", FILES)
def test_a_measure_counts_a_fault_and_nothing_else(measure, tmp_path):
    (path, fault), (other, right) = FILES[measure]
    write(tmp_path / "right", "zero.py", "class Zero: ...")
    write(tmp_path / "wrong", "zero.py", "class Zero: ...")
    before = count(measure, tmp_path / "right")
    write(tmp_path / "right", other, right)
    write(tmp_path / "wrong", path, fault)
    assert (count(measure, tmp_path / "right") - before, count(measure, tmp_path / "wrong") - before) == (0, 1)


HELPERS = {
    "tests/conftest.py": "@pytest.fixture\ndef leak_check():\n    yield\n    assert not threads()\n",
    "tests/helpers.py": "def compare(a, b):\n    assert a == b\n\ndef fit(x):\n    return x\n",
    "tests/a/other.py": "from tests.helpers import compare as same\n\ndef twice(x):\n    return same(x, x)\n",
}


@pytest.mark.parametrize(
    ("test", "asserts"),
    [
        ("twice(3)", True),
        ("helpers.compare(1, 1)", True),
        ("helpers.fit(1)", False),
        ("compare(1, 1)", False),
        ("cl.check_gradients(model, x)", True),
        ("np.testing.assert_allclose(x, x)", True),
        ("with pytest.warns(UserWarning): fit()", True),
        ("run('x = 1\\nassert x == 1')", True),
        ("run('we assert x')", False),
    ],
)
def test_an_assertion_may_be_in_a_helper(test, asserts, tmp_path):
    imports = "from tests import helpers\nfrom tests.a.other import twice\n"
    test_b = {"tests/a/test_b.py": f"{imports}\ndef test_b():\n    {test}\n"}
    for path, text in (HELPERS | test_b).items():
        write(tmp_path, f"../{path}", text)
    assert count("assertions", tmp_path) == (not asserts)


@pytest.mark.parametrize("test", ["def test_b(leak_check)", "@pytest.mark.usefixtures('leak_check')\ndef test_b()"])
def test_an_assertion_may_be_in_a_fixture(test, tmp_path):
    for path, text in (HELPERS | {"tests/a/test_b.py": f"{test}: fit()\n"}).items():
        write(tmp_path, f"../{path}", text)
    assert count("assertions", tmp_path) == 0


def test_the_model_and_its_fit_are_measured(tmp_path):
    write(
        tmp_path,
        "model/a.py",
        'def fit(): ...\n\nclass Model:\n    def fit(self):\n        """Train."""\n        return 1\n',
    )
    write(tmp_path, "textbook.py", "class Model:\n    def fit(self): ...\n")
    assert [count(measure, tmp_path) for measure in ("model", "fit", "lines")] == [4, 2, 8]


def test_a_limit_that_is_exceeded_fails(tmp_path, capsys):
    write(tmp_path, "core/a.py", "def length(): ...\n")
    assert house.main([], tmp_path) == 0
    assert not [line for line in capsys.readouterr().out.splitlines() if line.endswith("*")]
    write(tmp_path, "core/a.py", "def of(): ...\n")
    assert house.main([], tmp_path) == 1
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.endswith("*")] == ["of"]
    assert house.main(["--list", "of"], tmp_path) == 0
    assert capsys.readouterr().out == "caffelite/core/a.py:1: of\n"
