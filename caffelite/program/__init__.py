"""Programs: a step recorded once, tidied by passes, replayed without Python."""

from caffelite.program.kept import Programs
from caffelite.program.passes import PASSES
from caffelite.program.program import Program, capture

__all__ = ["PASSES", "Program", "Programs", "capture"]
