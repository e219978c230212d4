"""Tables of numbers, words and dates: the layers that read frames, and nets trained on files.

`columns.py` and `splines.py` are the layers; `column_types.py` and `dates.py` turn a column into numbers. The other
files are for the commands `caffelite train`, `predict` and `export`: they read a file, train nets, and report.
"""

from caffelite.tables.columns import Columns
from caffelite.tables.splines import Splines
from caffelite.tables.table_model import TableModel

__all__ = ["Columns", "Splines", "TableModel"]
