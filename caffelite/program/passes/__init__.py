"""The passes: each takes a Step, and returns a shorter or better placed Step with the same results to the bit."""

from collections.abc import Callable

from caffelite.program.passes.drop_unread import drop_unread
from caffelite.program.passes.fuse_epilogue import fuse_epilogue
from caffelite.program.passes.place_temporaries import place_temporaries
from caffelite.program.step import Step

#: The passes that a Program applies to a recorded step, in this order. You may remove any of them, or add others.
PASSES: list[Callable[[Step], Step]] = [drop_unread, fuse_epilogue, place_temporaries]
