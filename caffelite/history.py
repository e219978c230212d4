"""History: what `fit` returns."""

from __future__ import annotations

from typing import Any


class History(dict):
    """What a training run measured: `history["loss"]` and so on, one number for each completed epoch.

    The numbers are means over the rows of an epoch, taken while it ran, penalties (weight decay) not included. What was
    measured on validation data after the epoch has `val_` before its name.
    """

    @property
    def epochs(self) -> int:
        """The number of completed epochs."""
        return len(self["loss"])

    def plot(self) -> Any:
        """Draw a panel for each quantity over the epochs; returns the matplotlib figure. Needs the extra `plot`."""
        from matplotlib.figure import Figure

        names = [name for name in self if not name.startswith("val_")]
        figure = Figure(figsize=(5 * len(names), 3.5), layout="constrained")
        for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
            self.draw(axes, name)
        return figure

    def draw(self, axes: Any, name: str) -> None:
        """Draw one quantity, and its validation counterpart if there is one, on matplotlib axes."""
        for key, label in ((name, "training"), (f"val_{name}", "validation")):
            if key in self:
                axes.plot(range(1, self.epochs + 1), self[key], label=label, marker="o" if self.epochs == 1 else "")
        axes.set(xlabel="epoch", title=name)
        axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        if f"val_{name}" in self:
            axes.legend()
