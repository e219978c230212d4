"""Reading tables from files."""

import gzip
import os
import threading

import numpy as np
import pytest

from caffelite.tables import reading
from caffelite.tables.reading import read
from tests.conftest import posix


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


def words(column):
    return [None if code < 0 else column.words[code] for code in column.codes]


def test_numbers_words_and_what_is_missing_are_read(path):
    table = read(write(path, "a, b,c ,d\n1,x, 1e3,2020\n,?,NA,\n\n-.5, y z ,None,nan\n 2 ,x,inf,null\n"))
    np.testing.assert_array_equal(table.columns["a"], [1, np.nan, -0.5, 2])
    assert words(table.columns["b"]) == ["x", None, "y z", "x"]
    np.testing.assert_array_equal(table.columns["c"], [1000, np.nan, np.nan, np.inf])
    np.testing.assert_array_equal(table.columns["d"], [2020, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(table.lines, [2, 3, 5, 6])


@pytest.mark.parametrize(
    ("text", "delimiter"),
    [
        ("a,b\n1.5,x\n", None),
        ("a;b\n1,5;x\n", None),
        ("a;b\n1.5;x\n", None),
        ("a\tb\n1.5\tx\n", None),
        ("a|b\n1.5|x\n", None),
        ("a:b\n1.5:x\n", ":"),
        ('"a","b"\n"1.5","x"\n', None),
        ("\ufeffa,b\r\n1.5,x\r\n", None),
    ],
)
def test_delimiters_are_found_and_decimal_commas_read_between_semicolons(text, delimiter, path):
    table = read(write(path, text), delimiter)
    assert list(table.columns) == ["a", "b"]
    np.testing.assert_array_equal(table.columns["a"], [1.5])
    assert words(table.columns["b"]) == ["x"]


def test_points_of_thousands_between_semicolons_are_not_decimal(path, monkeypatch):
    monkeypatch.setattr("caffelite.tables.reading.CHUNK", 1)
    table = read(write(path, "a;b;c\n1.234;1.5;1.5\n2,5;2.5;2,5\n"))
    assert table.columns["a"].reading.values.tolist()[:2] == [1234, 2.5]
    np.testing.assert_array_equal(table.columns["b"], [1.5, 2.5])
    assert words(table.columns["c"]) == ["1.5", "2,5"]
    assert table.columns["c"].reading is None


def test_a_comma_between_commas_is_not_a_decimal_comma(path):
    assert words(read(write(path, 'a,b\n"1,234",x\n')).columns["a"]) == ["1,234"]


def test_quoted_cells_hold_anything_and_errors_name_the_line_of_the_file(path):
    text = 'a,b\n1,"x, ""y""\nz"\n2,w\n3\n'
    with pytest.raises(ValueError, match=r"table.csv: line 5 has 1 cell, the first has 2$"):
        read(write(path, text))
    table = read(write(path, text.removesuffix("3\n")))
    assert words(table.columns["b"]) == ['x, "y"\nz', "w"]
    np.testing.assert_array_equal(table.lines, [3, 4])


def test_gzip_is_read(path):
    path.write_bytes(gzip.compress(b"a,b\n1,x\n"))
    assert list(read(path).columns) == ["a", "b"]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="not a whole gzip file"):
        read(path)


def test_a_gzip_file_is_unpacked_no_further_than_its_size_explains(path, monkeypatch):
    monkeypatch.setattr(reading, "MAX_EXTRA_BYTES", 10_000)
    unpacked = []
    read1 = reading.LimitedGzipFile.read1
    monkeypatch.setattr(reading.LimitedGzipFile, "read1", lambda self, *size: unpacked.append(1) or read1(self, *size))
    for content in (b"x" * 3_000_000, b"a,b\n" + b"\n" * 3_000_000):
        path.write_bytes(gzip.compress(content))
        unpacked.clear()
        with pytest.raises(ValueError, match=r"unpacked table is larger than 3\d\d\.\d kB, .* unpack the file first"):
            read(path)
        assert 0 < len(unpacked) < 100  # of 8 kB each


@posix
def test_a_pipe_is_read_whole(path):
    os.mkfifo(path)
    text = "a,b\n" + "1,2\n" * 5000 + "x,3\n"  # more than a buffer, and read twice
    writer = threading.Thread(target=path.write_text, args=[text])
    writer.start()
    table = read(path)
    writer.join()
    assert len(table.lines) == 5001
    assert table.columns["a"].words == ["1", "x"]


def test_a_first_line_longer_than_a_cell_may_be_is_read(path):
    names = [f"column_number_{i:07}" for i in range(7000)]
    assert list(read(write(path, f"{','.join(names)}\n{','.join('1' * 7000)}\n")).columns) == names


def test_a_cell_that_is_too_long_raises_with_its_line(path):
    with pytest.raises(ValueError, match="line 1 is not a row of comma-separated values: field larger than"):
        read(write(path, "x" * 200_000))


def test_a_column_that_turns_out_to_be_words_has_the_words_it_began_with(path, monkeypatch):
    monkeypatch.setattr("caffelite.tables.reading.CHUNK", 2)
    table = read(write(path, "a,b,c\n01,1,1\n1.0,2,2\n,3,3\nx,4,4\n1,5,1_0\n"))
    assert words(table.columns["a"]) == ["01", "1.0", None, "x", "1"]
    np.testing.assert_array_equal(table.columns["b"], [1, 2, 3, 4, 5])
    assert words(table.columns["c"]) == ["1", "2", "3", "4", "1_0"]  # a number to Python alone


def test_numbers_are_words_if_the_user_wants_that(path):
    table = read(write(path, "a,b\n01,1\n1,2\n"), as_words=["a"])
    assert words(table.columns["a"]) == ["01", "1"]
    np.testing.assert_array_equal(table.columns["b"], [1, 2])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty, expected the names of columns in its first line"),
        (b"\n\n", "is empty"),
        (b"a,b\n", "has the names of columns and no rows"),
        (b"1,2\n3,4\n", "begins with numbers, expected the names of columns"),
        (b"a,b,a\n1,2,3\n", "has more than one column 'a'"),
        (b"a,b\ncaf\xe9,1\n", "is not a text in UTF-8, it has the byte 0xe9"),
        ("a,b\n1,2\n".encode("utf-16"), "is not a text in UTF-8"),
        (b'a,b\n1,"x\n', "line 2 is not a row of comma-separated values"),
        (b'a,b\n1,"x"y\n', "line 2 is not a row of comma-separated values"),
        (b"a,b\n1,2,3\n", "line 2 has 3 cells, the first has 2"),
    ],
)
def test_something_other_than_a_table_raises(content, message, path):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read(path)
