"""The `caffelite` command: train on built-in data, a text or a table, say how it went, and draw a picture of it.

Each command has a file of its own; those for tables share one, and so do those that serve pages. `parser` puts them
together.
"""

from caffelite.cli.parser import main

__all__ = ["main"]
