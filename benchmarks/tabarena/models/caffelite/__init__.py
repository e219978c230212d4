"""caffelite as a model of TabArena."""

from __future__ import annotations

from tabarena.models.caffelite.hpo import gen_caffelite
from tabarena.models.caffelite.info import caffelite_info, caffelite_method_metadata

__all__ = ["caffelite_info", "caffelite_method_metadata", "gen_caffelite"]
