"""Compiled functions have their signatures in their docstrings, and their types in the .pyx and .pxi files."""

from typing import Any

def __getattr__(name: str) -> Any: ...
