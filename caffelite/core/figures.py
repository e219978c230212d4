"""What is drawn on: matplotlib's figures, made without pyplot, so that nothing global changes and no window opens.

This imports matplotlib, the extra `plot`; who draws imports this when it does.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

import matplotlib.figure


class Figure(matplotlib.figure.Figure):
    """White paper of a width and a height in inches. A notebook shows it, whether or not pyplot was imported."""

    def __init__(self, width: float, height: float, layout: Any = "constrained", **options: Any) -> None:
        super().__init__(figsize=(width, height), layout=layout, facecolor="white", **options)

    def _repr_png_(self) -> bytes:
        picture = BytesIO()
        self.savefig(picture, format="png")
        return picture.getvalue()
