"""The `caffelite` command: train on built-in data, a text or a table, say how it went, and draw a picture of it.

Commands that do similar things share a file. `parser` puts them together.
"""

from caffelite.cli.parser import main

__all__ = ["main"]
