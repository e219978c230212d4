"""Kernels: compiled computations on arrays. They know nothing of Tensors, Functions or Models.

    call.pxd        what a call is: the struct between the two sides
    border.pyx      what Python calls: checks, binds, launches
    tape.pyx        running, recording and replaying calls
    loops.pyx       the loops themselves, a family to a file: elementwise.pxi and elementary.pxi, matmul.pxi
                    (tile.h, vectors.h), reduction.pxi, softmax.pxi, loss.pxi, update.pxi, indexing.pxi, batches.pxi

The loops are compiled once for each instruction set. The best one that the processor runs is chosen here, at import;
the environment variable CAFFELITE_ISA names another.
"""

import importlib
import importlib.util
import os

from caffelite._kernels import border
from caffelite._kernels.border import (
    CURSOR,
    abs,
    abs_grad,
    adam,
    add,
    add_correct,
    add_mean,
    add_weighted_mean,
    advance,
    all_finite,
    check_labels,
    convert,
    copy,
    count_steps,
    divide,
    equal,
    exp,
    extreme_grad,
    full,
    largest,
    log,
    log_softmax,
    log_softmax_grad,
    matmul,
    matmul_stack,
    maximum,
    minimum,
    multiply,
    negative,
    output,
    power,
    power_grad_base,
    power_grad_exponent,
    put_batch,
    ravel_index,
    relu,
    relu_grad,
    sgd,
    shuffle,
    sigmoid,
    sigmoid_grad,
    smallest,
    softmax,
    softmax_grad,
    softmax_loss,
    softmax_loss_grad,
    sqrt,
    sqrt_grad,
    subtract,
    sum,
    take,
    take_batch,
    take_grad,
    tanh,
    tanh_grad,
    where,
)
from caffelite._kernels.tape import (
    OPENMP,
    PARALLEL_WORK,
    Attributes,
    Epochs,
    Kernel,
    Paused,
    Recorded,
    Recorder,
    Tape,
    address,
    after_fork,
    alike,
    are_unchanged,
    get_num_threads,
    recorder,
    refuse,
    require,
    set_num_threads,
    team_size,
)

INSTRUCTION_SETS = ("x86-64-v4", "x86-64-v3", "x86-64-v2", "generic")  # best first


def available_instruction_sets() -> list[str]:
    """The instruction sets that this installation has loops for and this processor runs, best first."""
    return [isa for isa in INSTRUCTION_SETS if border.runs(isa) and importlib.util.find_spec(_module(isa))]


def use_instruction_set(isa: str) -> None:
    """Compute with the loops of one of `available_instruction_sets()` from now on; ValueError for any other."""
    global ISA
    if isa not in available_instruction_sets():
        raise ValueError(f"CAFFELITE_ISA is {isa!r}; here there is {', '.join(available_instruction_sets()) or 'none'}")
    border.use_loops(importlib.import_module(_module(isa)).loops())
    ISA = isa


def _module(isa: str) -> str:
    return f"{__name__}.loops_{isa.replace('-', '_')}"


ISA = ""
use_instruction_set(os.environ.get("CAFFELITE_ISA") or (available_instruction_sets() or ["generic"])[0])
