import pytest

from caffelite.tables import table


def test_columns_are_as_wide_as_their_widest_cell_and_aligned_as_asked():
    assert table(["kernel", "µs", "note"], [["matmul", "12.50", "a"], ["add", "3", ""]], "<><").splitlines() == [
        "kernel     µs  note",
        "-------------------",
        "matmul  12.50  a",
        "add         3",
    ]


def test_the_rule_is_as_long_as_the_longest_line():
    assert table(["a", "b"], [["1", "long"]], "<<").splitlines() == ["a  b", "-------", "1  long"]


def test_a_table_without_rows_is_its_head():
    assert table(["a", "bc"], [], "<>") == "a  bc\n-----"


@pytest.mark.parametrize(("rows", "alignment"), [([["1"]], "<>"), ([["1", "2", "3"]], "<>"), ([["1", "2"]], "<")])
def test_every_line_has_as_many_cells_as_there_are_columns(rows, alignment):
    with pytest.raises(ValueError, match="zip"):
        table(["a", "b"], rows, alignment)
