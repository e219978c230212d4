"""The linter of the prose finds what is hard to read, and takes no code, table or formula for prose."""

import pytest

from tests.tools import prose
from tests.tools.prose import (
    ROOT,
    findings,
    findings_in_names,
    paragraphs_of_comments,
    paragraphs_of_docstring,
    paragraphs_of_page,
    paragraphs_of_program,
    words,
)


def check_page(text):
    return [(finding.line, finding.text) for finding in findings(ROOT / "page.md", paragraphs_of_page(text))]


def check_docstring(text):
    paragraphs = paragraphs_of_docstring(text, first_line=10)
    return [(finding.line, finding.text) for finding in findings(ROOT / "file.py", paragraphs)]


def check_program(text, is_cython=False):
    return [
        (finding.line, finding.text) for finding in findings(ROOT / "file.py", paragraphs_of_program(text, is_cython))
    ]


LONG = " ".join(["Word", *["word"] * 30]) + "."


@pytest.mark.parametrize(
    "sentence",
    [
        "If your model is not a sequence, write a subclass: put its layers in attributes and write `call`.",
        "What is a gradient?",
        "The message says what was expected.",
        "There is no array here. It is no longer an array, and no less fast.",
        "A standard layer, which has weights, stands for many.",
        "Write `this is no array` in backticks.",
        "A link to [a page](such-is-no-array.md) is not read.",
        "What matters is how often the numbers travel; what is missing is a category.",
        "Where an entry leaves something open, caffelite follows NumPy, for those who know it.",
        "The loop is unrolled so that it is fast.",
        "The file which names the page which is missing, and the words, of which `Embedding` makes vectors.",
        "The gradient is that of the input, and the answer lies in nothing but the loop.",
        "A wrong shape is refused, and a callback of one's own is told the epoch; hence the name.",
        "There is no doubt, and it is no wonder: it pays off.",
        "One semicolon; two thoughts.",
        " ".join(["word"] * 30) + ".",
        "y = x W + b, dW = xᵀ dy, db = Σ dy and dx = dy Wᵀ, for n = 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16.",
    ],
)
def test_plain_sentences_are_left_alone(sentence):
    assert check_page(sentence) == []
    assert check_docstring(sentence) == []


@pytest.mark.parametrize(
    "sentence",
    [
        LONG,
        "Who wants to see it opens the page.",
        "This is no array.",
        "It needs a loss that the model has not.",
        "The shape is seen to by the layer.",
        "They are such as a net needs.",
        "Else it raises an error.",
        "The step is recorded anew.",
        "Beside it stands the loss.",
        "Every room imports the heart of the house.",
        "A second thread pays from 5 µs on.",
        "One; two; three.",
    ],
)
def test_a_habit_is_found_once(sentence):
    assert len(check_page(sentence)) == 1
    assert len(check_docstring(sentence)) == 1


def test_a_finding_has_the_line_of_its_sentence():
    page = f"---\na: b\n---\n\n# Title\n\nShort. Also\nshort. The gradient is\nno array.\n\n- {LONG}\n"
    assert [line for line, _ in check_page(page)] == [8, 11]
    assert [line for line, _ in check_docstring(f"Short.\n\nAlso short.\n{LONG}")] == [13]


@pytest.mark.parametrize(
    "page",
    [
        f"---\ntitle: {LONG}\n---\n",
        f"```python\n# {LONG}\n```\n",
        f"````{{container}}\n```\n{LONG}\n```\n````\n",
        f"| a | b |\n|---|---|\n| {LONG} | c |\n",
        f"# {LONG}\n",
        f":::{{figure}} a.png\n:alt: {LONG}\n:::\n",
        "- " + "\n- ".join(["word word word"] * 20),
    ],
)
def test_the_parts_of_a_page_that_are_not_prose_are_not_read(page):
    assert check_page(page) == []


def test_an_admonition_is_prose():
    assert len(check_page(f"```{{admonition}} Exercise 1\n:class: dropdown\n\n{LONG}\n```\n")) == 1


def test_in_a_docstring_an_indented_block_is_code_but_in_a_section_it_is_prose():
    assert check_docstring(f"Short:\n\n    {LONG}\n\nShort.") == []
    section = f"Short.\n\nParameters\n----------\nname_of_it : what is no array\n    {LONG}\n\n\nShort:\n\n    {LONG}"
    assert [line for line, _ in check_docstring(section)] == [15]


def test_abbreviations_and_initials_end_no_sentence():
    paragraph = [(1, "See e.g. C. Guo et al. 2017, Fig. 3. Then … go on. caffelite goes on.")]
    assert [sentence for _, sentence in prose.sentences(paragraph)] == [
        "See e.g. C. Guo et al. 2017, Fig. 3.",
        "Then … go on.",
        "caffelite goes on.",
    ]


def test_a_formula_or_a_name_in_backticks_is_one_word():
    assert words("X gives y = x W + b in (n, 64, 8).") == 5


PROGRAM = """
class C:
    \"\"\"The first is no array.\"\"\"

    def _private(self, x):
        \"\"\"Short.

        The second is no array.
        \"\"\"
        text = "No docstring is no array."
        if text:
            raise ValueError(
                f"{self} got {x}: "
                "the third is no "
                "array"
            )
        raise TypeError(f"{self} got {x}; the fourth is no array") from None
"""


def test_all_docstrings_and_messages_of_a_program_are_read():
    assert [line for line, _ in check_program(PROGRAM)] == [3, 8, 13, 17]
    warnings = "warnings.warn('This is no array.', UserWarning)\nreturn warn(f'{x} is no array')\nprint('Is no array.')"
    assert [line for line, _ in check_program(f"def f(x):\n  {warnings.replace(chr(10), chr(10) + '  ')}")] == [2, 3]


def test_a_program_in_cython_is_read_but_no_code_in_c():
    function = "cdef inline int _private(C self, double *x) except -1"
    cython = PROGRAM.replace("class C", "cdef class C").replace("def _private(self, x)", function)
    cython = cython.replace("{self}", "{(<object> self).name}")
    cython += 'cdef extern from *:\n    """\n    int a; int b; int c;\n    """\n    int f(int *x) nogil\n'
    assert [line for line, _ in check_program(cython, is_cython=True)] == [3, 8, 13, 17]


def test_comments_are_read_and_no_other_signs_of_number():
    comments = """\
# A comment that is
# no array.
x = "# is no array"  # the gradient is no x

text = '''
# is no array
'''
#   python is no array
# ---- this is no array ----
y = 1  # type: ignore  is no array
z = 2  # in z
# is no array
"""
    found = [(f.line, f.text) for f in findings(ROOT / "file.py", paragraphs_of_comments(comments))]
    assert [line for line, _ in found] == [1, 3, 12]
    assert [line for line, _ in check_program(comments)] == [1, 3, 12]
    assert [line for line, _ in check_program(f"cdef int f(int* x):  # is no array\n    pass  # {LONG}", True)] == [
        1,
        2,
    ]


def check_names(tmp_path, package, test="", suffix="py"):
    """Return the findings of two files of the package, and of a test, as lines and texts."""
    paths = [tmp_path / name for name in (f"a.{suffix}", f"b.{suffix}", "test_it.py")]
    for path, text in zip(paths, [*package, test], strict=True):
        path.write_text(text)
    prose.ROOT, root = tmp_path, prose.ROOT
    try:
        return [(path.name, line, text) for path, line, text in findings_in_names(paths[:2], paths[2:])]
    finally:
        prose.ROOT = root


def test_names_that_break_a_rule_are_found(tmp_path):
    first = "class Kept:\n    def checked(self):\n        pass\n\ndef rows_of(x):\n    def of():\n        pass\n"
    second = "class Rows:\n    pass\n"
    assert check_names(tmp_path, [first, second]) == [
        ("a.py", 1, "class Kept: name it with a noun of the field"),
        ("a.py", 5, "function rows_of: name it with a verb, or with what it returns"),
        ("a.py", 2, "function checked: name it with a verb, or with what it returns"),
        ("a.py", 6, "function of: name it with a verb, or with what it returns"),
    ]
    assert check_names(tmp_path, [second, f"\n{second}"]) == [
        ("a.py", 1, "class Rows: b.py has one, too"),
        ("b.py", 2, "class Rows: a.py has one, too"),
    ]
    assert check_names(tmp_path, [second, "class Columns:\n    def check(self):\n        pass\n"]) == []


def test_names_in_cython_are_found(tmp_path):
    cython = (
        "cdef class Alone:\n    cdef inline double* rows_of(self, int n) noexcept nogil:\n        return 0\n\n"
        "    cpdef told_apart(self):\n        x = found(1)\n\ncdef int checked = length(3)\n"
    )
    assert [line for _, line, _ in check_names(tmp_path, [cython, ""], suffix="pyx")] == [1, 2, 5]


def test_the_name_of_a_test_is_a_sentence(tmp_path):
    names = [
        "else_it_is_there",
        "an_array_is_no_list",
        "the_sum_is_written_anew",
        "a_list_is_not_an_array",
        "is_no_longer_slow",
    ]
    test = "".join(f"def test_{name}():\n    pass\n\n" for name in names) + "def a_list_is_no_array():\n    pass\n"
    assert [line for _, line, _ in check_names(tmp_path, ["", ""], test)] == [1, 4, 7]
    lines = [f"def test_{'x' * length}(): pass\n" for length in (85, 86)]
    assert [line for _, line, _ in check_names(tmp_path, ["", ""], "".join(lines))] == [2]


def test_helpers_classes_and_fixtures_of_tests_have_names_by_the_same_rules(tmp_path):
    names = ["checked", "about", "of_rows", "rows_of", "check_rows", "as_rows"]
    test = "".join(f"def {name}(): pass\n" for name in names) + "class Kept: pass\nclass Rows: pass\n"
    assert [line for _, line, _ in check_names(tmp_path, ["class Rows: pass\n", ""], test)] == [1, 2, 3, 4, 7]
    names = ["no_training", "threads_restored", "narrow", "recorded", "saved_model", "one_thread", "browser"]
    test = "".join(f"@pytest.fixture\ndef {name}(): pass\n" for name in names)
    found = [line for _, line, text in check_names(tmp_path, ["", ""], test) if text.startswith("fixture")]
    assert found == [2, 4, 6, 8]


def test_the_linter_fails_if_there_is_something_to_rewrite(tmp_path, capsys, monkeypatch):
    page = tmp_path / "README.md"
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    page.write_text("All is well here.\n")
    assert prose.main([]) == 0
    page.write_text("This is no array. Else it is none.\n")
    assert prose.main([]) == 1
    assert "README.md:1: “is no array”: write “is not a …”" in capsys.readouterr().out
    assert prose.main(["--figures"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["README.md", "2", "8", "4.0", "0", "3"]
