"""Programs: caffelite records a step once, improves it by passes, and replays it without Python."""

from caffelite.program.cache import ProgramCache
from caffelite.program.passes import PASSES
from caffelite.program.program import Program, capture

__all__ = ["PASSES", "Program", "ProgramCache", "capture"]
