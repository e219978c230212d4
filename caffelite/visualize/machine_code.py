"""The machine instructions of a kernel, as the disassembler `objdump` lists them, with their meaning.

The compiled loops have no names, so nothing says where a loop ends. But each kernel knows where its loop begins. From
there, we follow the instructions: on to the next one, to the targets of jumps, and into functions of the same module.
The instructions that we reach are the kernel's code. To choose among many cases, compilers make a table of addresses,
and jump to an address from it. We follow such a jump to all addresses if it has the usual form.
"""

from __future__ import annotations

import ctypes
import importlib
import re
import sys
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.text_table import TextTable, text_table
from caffelite.core.arrays import FLOATS
from caffelite.visualize.x86_glossary import meaning

CHUNK = 4096  # bytes given to objdump; a part of a function is rarely longer
MAX_LENGTH = 16  # bytes; no instruction has as many
TABLE_READS = 12  # how many instructions before a jump may read its address from a table

JUMP = re.compile(r"(?:notrack |bnd )?(jmp|b)$")
BRANCH = re.compile(r"(j(?!mp)\w+|b\.\w+|bc\.\w+|cbn?z|tbn?z)$")
CALL = re.compile(r"(call|bl)$")
END = re.compile(r"(?:repz |bnd )?(ret\w*|ud2|hlt|br|udf)$")
COMPUTES = re.compile(r"v?(f?n?m?(add|sub|mul|div|max|min|sqrt)\d*|fn?m(add|sub)\d+)(p[sd]|s[sd])$|f(ml[as]|add|mul)$")
VECTOR = re.compile(r"p[sd]$")


class MachineInstruction(NamedTuple):
    """One machine instruction."""

    address: int  #: Counted from the beginning of the module's file in memory.
    text: str  #: In Intel's syntax, numbers in base 10: `vmulps ymm0, ymm1, [rax + 32]`.
    meaning: str  #: In words; "" if it is not in the glossary.
    target: int | None  #: The address to which a jump or a call goes; None for all others.

    @property
    def name(self) -> str:
        """The mnemonic: `vmulps`."""
        return self.text.split()[0]

    @property
    def jumps_to(self) -> int | None:
        """The address to which a jump goes; None for all others, including calls."""
        return None if CALL.match(self.name) else self.target


class MachineCode(TextTable):
    """Text with one instruction per line, and its meaning. A notebook shows a table.

    `instructions` is the list of them. `loops` is a list of the innermost loops, each as MachineCode: first those that
    compute with several floats at a time, and shorter loops before longer ones.
    """

    instructions: list[MachineInstruction]
    kernel: str
    isa: str

    @property
    def loops(self) -> list[MachineCode]:
        """The innermost loops, each from the target of a jump back to the jump."""
        jumps = [(i.jumps_to, i.address) for i in self.instructions]
        back_jumps = {(to, address) for to, address in jumps if to is not None and to <= address}
        innermost = [
            (begin, end)
            for begin, end in back_jumps
            if not any((begin, end) != (b, e) and begin <= b and e <= end for b, e in back_jumps)
        ]
        loops = []
        for begin, end in innermost:
            body = [instruction for instruction in self.instructions if begin <= instruction.address <= end]
            names = [instruction.name for instruction in body if COMPUTES.match(instruction.name)]
            in_vectors = any(map(VECTOR.search, names))
            loops.append(((not in_vectors, not names, len(body), begin), body))
        return [_make_code(body, self.kernel, self.isa) for _, body in sorted(loops, key=lambda loop: loop[0])]


def machine_code(kernel: str, isa: str | None = None, dtype: Any = np.float32) -> MachineCode:
    """Return the machine instructions of a kernel, with their meanings.

    `kernel` is a name from a Program's listing: "sgd", "matmul", "softmax_loss". A fused kernel, "matmul_relu", has the
    loops of "matmul". All kernels that compute element by element, such as "relu", share their loops.

    `isa` is the instruction set, for example "x86-64-v3", which has AVX2; by default it is the one in use. `dtype` is
    float32 or float64. Some kernels have one loop for both.

    Printed, the result is a table. A notebook shows it as HTML. `code.instructions` is a list, whose elements have
    `address`, `text`, `name`, `meaning` and `target`. `code.loops` has the innermost loops, each as such a table. Loops
    that compute with several floats at a time come first, and shorter loops before longer ones. So `code.loops[0]`
    usually does most of a simple kernel's work.

    The instructions are in the order of their addresses. The kernel's own function comes first, even if functions that
    it calls have lower addresses.

    The meanings are in words, for the common instructions of x86-64. `a ← b` means that register a gets b. `16 floats
    at [rax]` are the floats in memory that start at the address in register rax.

    Raise ValueError for a kernel that does not exist, or an instruction set that this machine cannot run. Raise
    TypeError for any other dtype. Raise RuntimeError without `objdump`, which is in Debian's package `binutils` and, on
    macOS, in Xcode's tools.

    Source of the meanings: Intel, "Intel 64 and IA-32 Architectures Software Developer's Manual", volume 2.
    """
    if not isinstance(kernel, str):
        raise TypeError(f"machine_code takes the name of a kernel, such as 'sgd', got {kernel!r}")
    kernel_name = max([name for name in kernels.KERNELS if f"{kernel}_".startswith(f"{name}_")], key=len, default=None)
    if kernel_name is None:
        from difflib import get_close_matches

        close = get_close_matches(kernel, kernels.KERNELS, 1)
        hint = f"; did you mean {close[0]!r}?" if close else "; a Program's listing has names, such as 'sgd'"
        raise ValueError(f"machine_code: there is no kernel {kernel!r}{hint}")
    isa = kernels.ISA if isa is None else isa
    if isa not in (available := kernels.available_instruction_sets()):
        raise ValueError(f"machine_code: the instruction set is {isa!r}; here there is {', '.join(available)}")
    if np.dtype(dtype) not in FLOATS:
        raise TypeError(f"machine_code: expected dtype float32 or float64, got {np.dtype(dtype)}")
    addresses = importlib.import_module(kernels._module(isa)).PUBLISHED[kernels.KERNELS[kernel_name].loops]
    begin = addresses[FLOATS.index(np.dtype(dtype)) % len(addresses)]
    file, base = _find_module(begin)
    return _make_code(_follow_jumps(begin - base, file, base), kernel_name, isa)


def _make_code(instructions: list[MachineInstruction], kernel: str, isa: str) -> MachineCode:
    places = [f"{instruction.address:x}" for instruction in instructions]
    rows = [[place, i.text, i.meaning] for place, i in zip(places, instructions, strict=True)]
    table = text_table(["address", "instruction", "meaning"], rows, "><<")
    code = MachineCode(table)
    code.cells, code.alignment = table.cells, table.alignment
    code.instructions, code.kernel, code.isa = instructions, kernel, isa
    return code


# ---- which instructions ---------------------------------------------------------------------------------------------


def _follow_jumps(begin: int, file: str, base: int) -> list[MachineInstruction]:
    """Return the instructions that run from an address on: those at higher addresses, then those at lower ones."""
    listing: dict[int, tuple[str, int]] = {}  # by address: the text, and the next address
    instructions: dict[int, MachineInstruction] = {}
    pending = [begin]
    while pending:
        address = pending.pop()
        previous_lines: list[str] = []  # the lines that have run before this one
        while address not in instructions:
            if address not in listing:
                listing |= _disassemble(address, file)
            if address not in listing:
                raise RuntimeError(f"machine_code: objdump lists no instruction at {address:#x} of {file}")
            line, after = listing[address]
            instruction = instructions[address] = _parse_instruction(address, line, base)
            name, target = instruction.name, instruction.target
            if target is not None:
                pending.append(target)
            elif JUMP.match(name):
                pending += _read_jump_table(previous_lines[-TABLE_READS:], base)
            previous_lines.append(line)
            if END.match(name) or JUMP.match(name):
                break
            address = after
    return [instructions[address] for address in sorted(instructions, key=lambda address: (address < begin, address))]


def _read_jump_table(lines: list[str], base: int) -> list[int]:
    """Return the targets of a jump through a table of addresses, given the lines before it; [] for other forms.

    The form: `cmp i, most`, `ja` elsewhere, `lea t, [rip + …] # table`, `movsxd a, [t + i*4]`, `add a, t`. The table
    has an int32 for each case: its distance from the table.
    """
    text = "\n".join(lines)
    count = re.findall(r"cmp +\w+,0x([0-9a-f]+)\n+ja ", text)
    jump_table = re.findall(r"lea +(\w+),\[rip\+[^\n]*# (?:0x)?([0-9a-f]+)", text)
    if not count or not jump_table or not re.search(rf"movsxd +\w+,DWORD PTR \[{jump_table[-1][0]}\+\w+\*4", text):
        return []
    begin = int(jump_table[-1][1], 16)
    return [begin + distance for distance in (ctypes.c_int32 * (int(count[-1], 16) + 1)).from_address(base + begin)]


def _parse_instruction(address: int, line: str, base: int) -> MachineInstruction:
    """Return the instruction in a line of objdump: mnemonic, operands, `<symbol>`, `# address`."""
    line, _, comment = line.partition("#")
    code, _, symbol = line.partition("<")
    words = code.replace("notrack ", "").replace("bnd ", "").split(None, 1)
    name, operands = words[0], words[1].strip() if len(words) > 1 else ""
    if JUMP.match(name) or BRANCH.match(name) or CALL.match(name):
        target_match = re.search(r"(?:^|,\s*)(?:0x)?([0-9a-f]+)$", operands)
        function, _, distance = symbol.partition("@plt")
        if target_match and distance == ">":  # with a distance, it is only the nearest symbol
            return MachineInstruction(address, f"{name} {function}", meaning(name, [function]), None)
        if target_match:
            target = int(target_match[1], 16)
            operands = operands[: target_match.start(1)].removesuffix("0x") + f"{target:x}"
            return MachineInstruction(address, f"{name} {operands}", meaning(name, [f"{target:x}"]), target)
    constant = re.match(r"\s*(?:0x)?([0-9a-f]+)", comment)
    parts = _parse_operands(operands)
    text = f"{name} {', '.join(parts)}".strip()
    constant_address = base + int(constant[1], 16) if constant else None
    return MachineInstruction(address, text, meaning(name, parts, _operand_width(operands), constant_address), None)


def _parse_operands(text: str) -> list[str]:
    """Return the operands without the words for their widths, and with numbers in base 10."""
    text = re.sub(r"\b[A-Z]+ (?:PTR|BCST) ", "", text).replace("*1]", "]").replace("*1+", "+").replace("*1-", "-")
    text = re.sub(r"0x([0-9a-f]+)", lambda number: str(_to_signed(int(number[1], 16))), text)
    text = re.sub(r"(?<=\w)\+(?=\w)", " + ", re.sub(r"(?<=\w)-(?=\w)", " - ", text)).replace(" + 0]", "]")
    return [part.strip() for part in re.split(r",(?![^\[]*\])", text)] if text else []


def _to_signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def _operand_width(text: str) -> int | None:
    """Return how many bytes the operand in memory has, or None if the text does not say."""
    words = {"BYTE": 1, "WORD": 2, "DWORD": 4, "QWORD": 8, "XMMWORD": 16, "YMMWORD": 32, "ZMMWORD": 64}
    word = re.search(r"\b([A-Z]+) (?:PTR|BCST) ", text)
    return words.get(word[1]) if word else None


# ---- the disassembler -----------------------------------------------------------------------------------------------


def _disassemble(begin: int, file: str) -> dict[int, tuple[str, int]]:
    """Return the lines of objdump from an address on, by address, each with the next address."""
    import platform
    import shutil
    import subprocess

    program = shutil.which("objdump")
    if program is None:
        raise RuntimeError(
            "machine_code needs the disassembler objdump, and there is none on the PATH: install binutils "
            "(apt install binutils; on macOS, xcode-select --install)"
        )
    addresses = [f"--start-address={begin:#x}", f"--stop-address={begin + CHUNK:#x}"]
    command = [program, "-d", "--no-show-raw-insn", *addresses]
    if platform.machine() in ("x86_64", "AMD64"):
        command += ["-M", "intel"]
    result = subprocess.run([*command, file], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"machine_code: objdump failed: {result.stderr.strip() or result.returncode}")
    return _parse_listing(result.stdout, limit=begin + CHUNK - MAX_LENGTH)


def _parse_listing(listing: str, limit: int) -> dict[int, tuple[str, int]]:
    """Return the instructions of a listing up to an address. The last ones may be cut off, so they are left out."""
    matches = re.findall(r"^ *([0-9a-f]+):\s+(\S.*)$", listing, re.MULTILINE)
    lines = [(int(address, 16), text) for address, text in matches]
    return {at: (text, after) for (at, text), (after, _) in pairwise(lines) if at < limit}


if sys.platform == "win32":

    def _find_module(address: int) -> tuple[str, int]:
        """Return the file of the module at this address in memory, and where in memory the file's address 0 is.

        On Windows, a file begins not at 0, but at an address that its header gives.
        """
        system = ctypes.WinDLL("kernel32")
        base, path = ctypes.c_void_p(), ctypes.create_unicode_buffer(2**15)
        flags = 4 | 2  # GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS, and …_UNCHANGED_REFCOUNT
        if not system.GetModuleHandleExW(flags, ctypes.c_void_p(address), ctypes.byref(base)):
            raise _unknown_address(address)
        system.GetModuleFileNameW(base, path, len(path))
        with open(path.value, "rb") as file:
            file.seek(0x3C)
            file.seek(int.from_bytes(file.read(4), "little") + 0x30)  # the field ImageBase
            return path.value, (base.value or 0) - int.from_bytes(file.read(8), "little")

else:

    class _SymbolInfo(ctypes.Structure):
        """The answer of `dladdr` for an address: its file, and the file's position in memory."""

        _fields_ = (
            ("file", ctypes.c_char_p),
            ("base", ctypes.c_void_p),
            ("symbol", ctypes.c_char_p),
            ("address", ctypes.c_void_p),
        )

    def _find_module(address: int) -> tuple[str, int]:
        """Return the file of the module at this address in memory, and the address at which the module begins."""
        place = _SymbolInfo()
        if not ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(place)):
            raise _unknown_address(address)
        return place.file.decode(), place.base


def _unknown_address(address: int) -> RuntimeError:
    return RuntimeError(f"machine_code: the system does not say which file is at address {address:#x}")
