"""Kernels: compiled computations on arrays. They know nothing of Tensors, Functions or Models.

    kernel.pyx      what is true of all calls of a kernel
    call.pxd        what a call is: the struct between the two sides
    border.pyx      what Python calls: checks, binds, launches; a family to a file of border/
    launch.pyx      threads; running a call
    record.pyx      noting calls
    watch.pyx       what a recording depends on
    replay.pyx      recorded calls run again, without Python
    loops.pyx       the loops themselves, a family to a file of loops/

The loops are compiled once for each instruction set. The best one that the processor runs is chosen here, at import;
the environment variable CAFFELITE_ISA names another.
"""

import importlib
import importlib.util
import os

from caffelite._kernels import border
from caffelite._kernels.border import *  # noqa: F403
from caffelite._kernels.kernel import KERNELS, Kernel
from caffelite._kernels.launch import (
    OPENMP,
    PARALLEL_WORK,
    Alone,
    after_fork,
    get_num_threads,
    set_num_threads,
    team_size,
)
from caffelite._kernels.record import Paused, Recorded, RecordedCall, Recorder, recorder, refuse
from caffelite._kernels.replay import EpochReplay, Replay
from caffelite._kernels.watch import Attributes, Surroundings, are_unchanged

INSTRUCTION_SETS = ("x86-64-v4", "x86-64-v3", "x86-64-v2", "generic")  # best first


def available_instruction_sets() -> list[str]:
    """The instruction sets that this installation has loops for and this processor runs, best first."""
    return [isa for isa in INSTRUCTION_SETS if border.runs(isa) and importlib.util.find_spec(_module(isa))]


def use_instruction_set(isa: str) -> None:
    """Compute with the loops of one of `available_instruction_sets()` from now on; ValueError for any other."""
    global ISA
    if isa not in available_instruction_sets():
        raise ValueError(f"CAFFELITE_ISA is {isa!r}; here there is {', '.join(available_instruction_sets()) or 'none'}")
    border.use_loops(importlib.import_module(_module(isa)))
    ISA = isa


def _module(isa: str) -> str:
    return f"{__name__}.loops_{isa.replace('-', '_')}"


ISA = ""
use_instruction_set(os.environ.get("CAFFELITE_ISA") or (available_instruction_sets() or ["generic"])[0])
