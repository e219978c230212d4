"""Tables of numbers and words: read them from files, convert them for nets, train, and report.

The commands `caffelite train`, `predict` and `export` use these modules.
"""
