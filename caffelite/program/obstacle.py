"""Why a step can't be replayed."""

from __future__ import annotations

from caffelite._support.warnings import Line


class Obstacle:
    """Why a step can't be replayed, and, if known, the user's line that a replay would not repeat."""

    def __init__(self, reason: str, line: Line | None = None) -> None:
        self.reason, self.line = reason, line

    def __str__(self) -> str:
        return self.reason if self.line is None else f"{self.reason} ({self.line})"
