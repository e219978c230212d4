"""The passes: each takes a Step and returns one that gives the same bits, shorter or better placed."""

from collections.abc import Callable

from caffelite.program.passes.drop_unread import drop_unread
from caffelite.program.passes.fuse_epilogue import fuse_epilogue
from caffelite.program.passes.place_temporaries import place_temporaries
from caffelite.program.step import Step

#: What a Program does to a step that it has recorded, in this order. Any of them may be left out, and others put in.
PASSES: list[Callable[[Step], Step]] = [drop_unread, fuse_epilogue, place_temporaries]
