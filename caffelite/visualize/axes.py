"""Axes and figures in the common style of all pictures."""

from __future__ import annotations

from typing import Any


def style_axes(axes: Any, title: str, grid: str | None = None, loc: str = "left") -> None:
    """Set the title, and remove the box. Behind the picture are the lines of a grid: "x", "y", "both" or none."""
    axes.grid(visible=False)
    if grid is not None:
        axes.grid(axis=grid)
    axes.set_axisbelow(True)
    axes.set_title(title, loc=loc)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)


def make_figure(width: float = 10, height: float = 4.375, **options: Any) -> Any:
    """Return an empty figure of this size in inches."""
    from caffelite._support.figures import Figure

    return Figure(width, height, **options)


def make_axes(width: float, height: float) -> Any:
    """Return the only axes of a new figure of this size in inches."""
    return make_figure(width, height).subplots()
