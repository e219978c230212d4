"""Kernels: compiled computations on arrays. They know nothing of Tensors, Functions or Models.

    kernel.pyx      the facts that are the same for all calls of a kernel
    call.pxd        a call: the struct between bindings and loops
    operations.py   the table of the elementwise operations
    generate.py     writes their bindings, and the types of all compiled functions, before a build
    bindings.pyx    the functions that Python calls: they check, bind, launch; one file of bindings/ for each family
    openmp.py       how long OpenMP's threads spin while they wait
    launch.pyx      threads; running a call
    record.pyx      recording calls
    guards.pyx      what a recording depends on
    replay.pyx      running recorded calls again, without Python
    loops/          the loops, one file for each family; setup.py links them into one module per instruction set

The loops are compiled once for each instruction set. On import this module selects the best instruction set that the
processor has. The environment variable CAFFELITE_ISA selects another one. The variable CAFFELITE_BFLOAT16 selects
one of the ways to compute products of bfloat16 operands. They all give the same bits.
"""

import importlib
import importlib.util
import os

from caffelite._kernels.openmp import limit_spinning

with limit_spinning():  # this loads OpenMP
    from caffelite._kernels import bindings
from caffelite._kernels.bindings import *  # noqa: F403

try:
    from caffelite._kernels.kernel import KERNELS, Kernel
except ModuleNotFoundError as error:
    folder = os.path.dirname(os.path.dirname(__file__))
    missing = f"the sources of caffelite in {folder} are not compiled: run `make spiral` there"
    raise ImportError(f"{missing}, or start Python in another folder if caffelite is installed") from error
from caffelite._kernels.guards import AttributeGuard, GuardTable, are_unchanged
from caffelite._kernels.launch import (
    OPENMP,
    PARALLEL_WORK,
    ThreadTuner,
    after_fork,
    available_threads,
    current_precision,
    get_num_threads,
    portable_kernels,
    precision,
    set_num_threads,
    thread_limit,
)
from caffelite._kernels.record import (
    RecordedArray,
    RecordedCall,
    Recorder,
    pause_recording,
    raise_unrecordable,
    recorder,
)
from caffelite._kernels.replay import BestHook, EpochHook, EpochReplay, EvaluationHook, Replay

INSTRUCTION_SETS = ("x86-64-v4", "x86-64-v3", "x86-64-v2", "generic")  # best first
BFLOAT16_METHODS = ("fastest", "one by one", "in pairs", "in tiles")  # in the order of loops/panel.h


def available_instruction_sets() -> list[str]:
    """Return the instruction sets that this installation has loops for and this processor runs, best first."""
    return [isa for isa in INSTRUCTION_SETS if bindings.runs(isa) and importlib.util.find_spec(_module(isa))]


def use_instruction_set(isa: str) -> None:
    """Compute with the loops of one of `available_instruction_sets()` from now on; ValueError for any other."""
    global ISA
    if isa not in available_instruction_sets():
        raise ValueError(f"CAFFELITE_ISA is {isa!r}; expected {' or '.join(available_instruction_sets()) or 'none'}")
    bindings.use_loops(importlib.import_module(_module(isa)))
    ISA = isa


def use_bfloat16(way: str) -> None:
    """Compute products of bfloat16 operands in one of `BFLOAT16_METHODS` from now on.

    Raise ValueError if the processor or the instruction set in use can't.
    """
    if way not in BFLOAT16_METHODS or not importlib.import_module(_module(ISA)).compute_bfloat16(
        BFLOAT16_METHODS.index(way)
    ):
        ways = ", ".join(BFLOAT16_METHODS)
        raise ValueError(f"CAFFELITE_BFLOAT16 is {way!r}, which {ISA} can't do here; the ways are {ways}")


def _module(isa: str) -> str:
    return f"{__name__}.loops_{isa.replace('-', '_')}"


ISA = ""
use_instruction_set(os.environ.get("CAFFELITE_ISA") or (available_instruction_sets() or ["generic"])[0])
if "CAFFELITE_BFLOAT16" in os.environ:
    use_bfloat16(os.environ["CAFFELITE_BFLOAT16"])
