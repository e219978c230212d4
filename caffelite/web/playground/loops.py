"""The loop of a kernel: its lines, which become C, and the machine instructions that the C compiler made of them."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import caffelite
from caffelite import _kernels as kernels
from caffelite.visualize.machine_code import MachineCode, machine_code

LOOPS = Path(caffelite.__file__).parent / "_kernels" / "loops"
MAX_LINES = 60  # of a loop, and of its instructions


def split_fused_name(name: str) -> list[str]:
    """Return the names of the kernels in a fused kernel; [name] if it was not fused. ValueError for any other name."""
    for known in sorted(kernels.KERNELS, key=len, reverse=True):
        if name == known or name == f"{known}_bfloat16":
            return [known]
        if name.startswith(f"{known}_"):
            try:
                return [known, *split_fused_name(name[len(known) + 1 :])]
            except ValueError:
                continue
    raise ValueError(f"there is no kernel {name!r}")


@functools.lru_cache(maxsize=256)
def describe_loop(name: str) -> dict[str, Any]:
    """Return the lines of a kernel's loop, and the instructions of its inner loop; a `problem` says why not."""
    file, lines = find_lines(name)
    instructions, count, problem = list[list[str]](), 0, ""
    kernel = kernels.KERNELS[name]
    if kernel.loops == "elementwise":
        problem = "It is one of many cases in one function, so its machine instructions are not listed here."
    else:
        try:
            code = machine_code(name)
            loops = code.loops or [code]
            inner = max(loops, key=_multiply_adds) if kernel.is_product else loops[0]
            instructions = [[i.text, i.meaning] for i in inner.instructions[:MAX_LINES]]
            count = len(inner.instructions)
        except RuntimeError as error:  # there is no disassembler
            problem = str(error)
    return {
        "kernel": name,
        "file": file,
        "lines": lines,
        "isa": kernels.ISA,
        "instructions": instructions,
        "count": count,
        "problem": problem,
    }


def _multiply_adds(loop: MachineCode) -> int:
    return sum(["fmadd" in i.name or "fmla" in i.name for i in loop.instructions])


def find_lines(name: str) -> tuple[str, list[str]]:
    """Return the file of a kernel's loop, and its lines: [] if caffelite was installed without its source."""
    loops, op = kernels.KERNELS[name].loops, kernels.KERNELS[name].op
    case = next((other for other, kernel in kernels.KERNELS.items() if kernel.op == op), name)  # full is a copy
    for path in sorted(LOOPS.glob("*.pyx")):
        text = path.read_text(encoding="utf-8")
        file = f"caffelite/_kernels/loops/{path.name}"
        if loops == "elementwise" and path.stem == "elementwise":
            if match := re.search(rf"^ +(?:el)?if op == {case.upper()}\b.*\n(?:     +.*\n)+", text, re.MULTILINE):
                return file, match[0].rstrip().split("\n")[:MAX_LINES]
        elif body := re.search(rf"^cdef int {loops}\((?:.|\n)*?(?=^\n\n|^\S|\Z)", text, re.MULTILINE):
            return file, body[0].rstrip().split("\n")[:MAX_LINES]
    return "", []
