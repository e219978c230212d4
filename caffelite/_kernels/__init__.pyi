"""What is compiled has its signatures in its docstrings, and its types in the .pyx and .pxi files."""

from typing import Any

def __getattr__(name: str) -> Any: ...
