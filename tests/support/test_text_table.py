import pickle
import re

import pytest

from caffelite._support.text_table import format_bytes, shorten, text_table


def test_columns_are_as_wide_as_their_widest_cell_and_aligned_as_asked():
    assert text_table(["kernel", "µs", "note"], [["matmul", "12.50", "a"], ["add", "3", ""]], "<><").splitlines() == [
        "kernel     µs  note",
        "-------------------",
        "matmul  12.50  a",
        "add         3",
    ]


def test_the_prompt_shows_a_table_line_by_line():
    assert repr(text_table(["a", "b"], [["1", "2"]], "<<")) == "a  b\n----\n1  2"


def test_the_rule_is_as_long_as_the_longest_line():
    assert text_table(["a", "b"], [["1", "long"]], "<<").splitlines() == ["a  b", "-------", "1  long"]


def test_a_table_without_rows_is_its_head():
    assert text_table(["a", "bc"], [], "<>") == "a  bc\n-----"


@pytest.mark.parametrize(("rows", "alignment"), [([["1"]], "<>"), ([["1", "2", "3"]], "<>"), ([["1", "2"]], "<")])
def test_every_line_has_as_many_cells_as_there_are_columns(rows, alignment):
    with pytest.raises(ValueError, match="zip"):
        text_table(["a", "b"], rows, alignment)


def test_one_column_is_cut_if_lines_would_be_longer_than_120():
    rows = [["1", "long " * 30, "end"], ["2", "short", "end"]]
    lines = text_table(["", "function", "more"], rows, "><<", cut=1).splitlines()
    assert max(map(len, lines)) == 120
    assert lines[2].endswith("…  end")
    assert "…" not in lines[3]
    assert "…" not in text_table(["", "function", "more"], rows[1:], "><<", cut=1)


def test_in_a_notebook_a_table_is_html_of_the_same_cells_without_colours_of_its_own():
    made = text_table(["name", "<b>"], [["a & b", "1"], ["c", "22"]], "<>")
    html = made._repr_html_()
    cells = re.findall(r"<t[hd] style=\"text-align:(left|right);white-space:pre\">([^<]*)</t[hd]>", html)
    expected = ["name", "&lt;b&gt;", "a &amp; b", "1", "c", "22"]
    assert cells == [(("left", "right")[i % 2], cell) for i, cell in enumerate(expected)]
    assert html.count("<tr>") == 3
    assert "color" not in html
    assert isinstance(made, str)
    assert pickle.loads(pickle.dumps(made))._repr_html_() == html


def test_a_text_is_cut_to_one_line():
    assert shorten("a\n b", 5) == "a b"
    assert shorten("abcdef", 5) == "abcd…"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (10_440, "10.4 kB"), (999_960, "1.0 MB"), (5e12, "5,000.0 GB")],
)
def test_memory_is_given_in_the_unit_that_leaves_it_below_a_thousand(count, text):
    assert format_bytes(count) == text
