"""The passes: each takes a RecordedStep, and returns a shorter or better placed one with the same bits as results."""

from collections.abc import Callable

from caffelite.program.ir import RecordedStep
from caffelite.program.passes.drop_unread import drop_unread
from caffelite.program.passes.fuse_epilogue import fuse_epilogue
from caffelite.program.passes.place_temporaries import place_temporaries

#: The passes that a Program applies to a recorded step, in this order. You may remove any of them, or add others.
PASSES: list[Callable[[RecordedStep], RecordedStep]] = [drop_unread, fuse_epilogue, place_temporaries]
