"""matplotlib's figures without pyplot. So no global state changes, and no window opens.

This imports matplotlib, the extra `plot`. So import this file only inside functions that draw.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

from caffelite._support.extras import install_command

try:
    import matplotlib.figure
except ImportError:
    raise ImportError(f"pictures are drawn by matplotlib, which is not installed: {install_command('plot')}") from None


class Figure(matplotlib.figure.Figure):
    """A white figure, its size in inches. A notebook shows it even if pyplot is not imported."""

    def __init__(self, width: float, height: float, layout: Any = "constrained", **options: Any) -> None:
        super().__init__(figsize=(width, height), layout=layout, facecolor="white", **options)

    def _repr_png_(self) -> bytes:
        picture = BytesIO()
        self.savefig(picture, format="png")
        return picture.getvalue()
