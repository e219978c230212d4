"""The colours and the style of pictures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# M. Okabe and K. Ito, "Color Universal Design", 2008: colours that stay apart for colour-blind readers.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#000000")
INK = "#333333"  # text and outlines
FAINT = "#DDDDDD"  # grid lines
CURVES = tuple([PALETTE[i] for i in (0, 4, 2, 1, 3, 5, 7, 6)])  # neighbours differ in lightness, too

#: Settings of matplotlib: no frame, large letters, faint lines behind the curves.
STYLE: Any = {
    "axes.prop_cycle": f"cycler(color={CURVES})",
    **dict.fromkeys([f"axes.spines.{side}" for side in ("left", "right", "top", "bottom")], False),
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": FAINT,
    **dict.fromkeys([f"{axis}tick.{kind}.size" for axis in "xy" for kind in ("major", "minor")], 0),
    **dict.fromkeys(["text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"], INK),
    **dict.fromkeys(["font.size", "axes.titlesize", "axes.labelsize"], 11),
    **dict.fromkeys(["xtick.labelsize", "ytick.labelsize", "legend.fontsize"], 10),
    "axes.titlelocation": "left",
    "legend.frameon": False,
}


@contextmanager
def style() -> Iterator[None]:
    """Draw in this style. Then the user's settings return. It decorates functions, too: `@style()`."""
    from matplotlib import rc_context

    import caffelite._support.figures  # noqa: F401 (raises ImportError without matplotlib)

    with rc_context(STYLE):
        yield
