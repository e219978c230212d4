"""The meaning of the common instructions of x86-64, in words.

    a ← b            register a gets b
    16 floats at [r] the numbers in memory from the address in register r on
    a · b + c        of vectors: lane by lane

The names say most of it: `v` for three operands, `p` for all lanes ("packed") or `s` for one ("scalar"), and `s` for
floats or `d` for doubles. So `vmulps` multiplies the floats of two registers, lane by lane.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable

LANES = {"xmm": 16, "ymm": 32, "zmm": 64}  # bytes of a register
SIGNS = {"add": "+", "sub": "−", "mul": "·", "div": "/", "and": "and", "or": "or", "xor": "xor", "andn": "and not"}
CONDITIONS = {
    "e": "equal", "ne": "not equal", "l": "less", "le": "less or equal", "g": "greater", "ge": "greater or equal",
    "b": "below", "be": "below or equal", "a": "above", "ae": "above or equal", "s": "negative", "ns": "not negative",
    "p": "one of them is NaN", "np": "none of them is NaN", "o": "too large", "no": "not too large", "z": "zero",
    "nz": "not zero", "c": "below", "nc": "not below",
}  # fmt: skip
FIXED = {
    "vzeroupper": "the upper parts of the vector registers ← 0",
    "ret": "return to the caller",
    "leave": "give back the function's memory on the stack",
    "endbr64": "a place where a computed jump may arrive",
    "cdqe": "eax, with its sign, to the 64 bits of rax",
    "cqo": "the sign of rax fills rdx, for a division",
    "ud2": "never reached",
    "idiv": "rax ← rdx and rax together, divided by the operand; rdx ← the rest",
}


def meaning(name: str, operands: list[str], width: int | None = None, constant: int | None = None) -> str:
    """The meaning of an instruction; "" if the instruction is not a common one.

    `width` is how many bytes the operand in memory has. `constant` is the address of an operand inside the module,
    such as a constant.
    """
    if name in FIXED:
        return FIXED[name]
    if name.startswith("nop") or (name == "xchg" and len(set(operands)) == 1) or name in ("data16", "cs"):
        return "nothing: it fills up to the next address"
    for pattern, words in PATTERNS:
        found = re.fullmatch(pattern, name)
        if found:
            return words(found, _Operands(name, operands, width, constant))
    return ""


class _Operands:
    """The operands of an instruction, as they are called in words."""

    def __init__(self, name: str, operands: list[str], width: int | None, constant: int | None) -> None:
        kind = re.search(r"(?:2|[ps]|ss|ps)?(s|d)$", name)
        self.floats = "doubles" if kind and kind[1] == "d" else "floats"
        self.are_bytes = "movdq" in name
        self.mask = ""
        self.width, self.constant = width, constant
        self.given = []
        for operand in operands:
            masked = re.fullmatch(r"(.*?)\{(k\d)\}(\{z\})?", operand)
            if masked:
                self.mask = f", where {masked[2]} has a 1" + (", and 0 elsewhere" if masked[3] else "")
                operand = masked[1]
            self.given.append(operand)

    def __len__(self) -> int:
        return len(self.given)

    @property
    def to(self) -> str:
        return self.words(0)

    def words(self, i: int) -> str:
        """The words for operand i: a register's name, a number, or what is in memory."""
        operand = self.given[i]
        if not operand.startswith("[") and ":[" not in operand:
            return operand
        size = 8 if self.floats == "doubles" else 4
        if self.width in (16, 32, 64) and not self.are_bytes:
            return f"{self.width // size} {self.floats} at {operand}"
        if self.are_bytes:
            return f"{self.width} bytes at {operand}"
        if self.constant is not None and self.width in (4, 8):
            kind = ctypes.c_double if self.width == 8 else ctypes.c_float
            return f"the constant {kind.from_address(self.constant).value:.9g}"
        return f"the {self.floats[:-1]} at {operand}"

    def bare(self, i: int) -> str:
        """Operand i of an instruction on whole numbers."""
        operand = self.given[i]
        return f"what is at {operand}" if operand.startswith("[") else operand

    def sources(self) -> tuple[str, str]:
        """The two operands of an operation; with two operands in all, the result replaces the first."""
        return (self.words(0), self.words(1)) if len(self) == 2 else (self.words(1), self.words(2))


Found = re.Match[str]


def _fma(found: Found, of: _Operands) -> str:
    negative, sign, order = found[1], {"add": "+", "sub": "−"}[found[2]], found[3]
    a, b, c = (of.words(i) for i in range(3))
    factors, added = {"132": ((a, c), b), "213": ((b, a), c), "231": ((b, c), a)}[order]
    if negative and sign == "+":
        return f"{a} ← {added} − {factors[0]} · {factors[1]}{of.mask}"
    return f"{a} ← {'−' if negative else ''}{factors[0]} · {factors[1]} {sign} {added}{of.mask}"


def _arithmetic(found: Found, of: _Operands) -> str:
    a, b = of.sources()
    return f"{of.to} ← {a} {SIGNS[found[1]]} {b}{of.mask}"


def _extreme(found: Found, of: _Operands) -> str:
    a, b = of.sources()
    return f"{of.to} ← the {'larger' if found[1] == 'max' else 'smaller'} of {a} and {b}{of.mask}"


def _logic(found: Found, of: _Operands) -> str:
    a, b = of.sources()
    operation = found[1] or found[2]
    if operation == "xor" and a == b:
        return f"{of.to} ← 0"
    return f"{of.to} ← the bits of {a} {SIGNS[operation]} {b}{of.mask}"


def _mask(found: Found, of: _Operands) -> str:
    """A comparison of each lane, whose results are bits of a mask, or lanes of all ones and all zeros."""
    sign = {"lt": "<", "le": "≤", "gt": ">", "ge": "≥", "eq": "=", "neq": "≠"}
    name = found[1].removesuffix("_oq").removesuffix("_uq")
    a, b = of.sources()
    if name in sign:
        return f"{of.to} ← where {a} {sign[name]} {b}{of.mask}"
    return f"{of.to} ← where not {a} {sign[name[1:]]} {b}{of.mask}" if name[1:] in sign else ""


def _whole_numbers(found: Found, of: _Operands) -> str:
    a, b = of.sources()
    return f"{of.to} ← {a} {SIGNS[found[1]]} {b}, whole numbers{of.mask}"


def _moved(_found: Found, of: _Operands) -> str:
    places = [i for i in range(1, len(of)) if not of.given[i].lstrip("-").isdigit()]
    return f"{of.to} ← numbers of {' and '.join(of.words(i) for i in places) or 'itself'}, in another order{of.mask}"


def _converted(found: Found, of: _Operands) -> str:
    kinds = {"sd": "a double", "ss": "a float", "si": "a whole number", "pd": "doubles", "ps": "floats",
             "dq": "whole numbers", "usi": "a whole number", "udq": "whole numbers", "qq": "whole numbers"}  # fmt: skip
    return f"{of.to} ← {of.bare(len(of) - 1)}, from {kinds[found[2]]} to {kinds[found[3]]}{of.mask}"


def _integer(found: Found, of: _Operands) -> str:
    name = found[1]
    if name == "xor" and of.given[0] == of.given[1]:
        return f"{of.bare(0)} ← 0"
    if name == "imul" and len(of) == 3:
        return f"{of.bare(0)} ← {of.bare(1)} · {of.bare(2)}"
    if name == "imul" and len(of) == 1:
        return ""
    sign = {"imul": "·"}.get(name) or SIGNS[name]
    return f"{of.bare(0)} ← {of.bare(0)} {sign} {of.bare(1)}"


def _shift(found: Found, of: _Operands) -> str:
    left, three = found[1] in ("shl", "sal"), len(of) == 3
    times, what = of.given[-1] if len(of) > 1 else "1", of.bare(1 if three else 0)
    if times.isdigit() and int(times) < 63:
        return f"{of.bare(0)} ← {what} {'·' if left else '/'} {2 ** int(times):,}"
    return f"{of.bare(0)} ← the bits of {what}, {times} places to the {'left' if left else 'right'}"


def _address(_found: Found, of: _Operands) -> str:
    formula = of.given[1].strip("[]").replace("*", " · ")
    return f"{of.given[0]} ← {formula}" if of.constant is None else f"{of.given[0]} ← the address of a constant"


def _compared(found: Found, of: _Operands) -> str:
    if found[1] == "test":
        return f"is {of.bare(0)} 0?" if of.given[0] == of.given[1] else f"the bits of {of.bare(0)} and {of.bare(1)}"
    return f"compare {of.bare(0)} with {of.bare(1)}"


# The forms of names, in the order in which they are tried, each with what makes the words.
PATTERNS: list[tuple[str, Callable[[Found, _Operands], str]]] = [
    (r"vf(n)?m(add|sub)(132|213|231)[ps][sd]", _fma),
    (r"v?(add|sub|mul|div)[ps][sd]", _arithmetic),
    (r"v?(max|min)[ps][sd]", _extreme),
    (r"v?sqrt[ps][sd]", lambda _, of: f"{of.to} ← the root of {of.words(-1)}{of.mask}"),
    (r"v?(andn|and|or|xor)p[sd]|v?p(andn|and|or|xor)[dq]?", _logic),
    (r"v?u?comis[sd]", lambda _, of: f"compare {of.words(0)} with {of.words(1)}"),
    (r"v?cmp(\w+?)[ps][sd]", _mask),
    (r"v?p(add|sub)[bwdq]", _whole_numbers),
    (r"v?(?:broadcasts[sd]|pbroadcast[dq])", lambda _, of: f"each of {of.to} ← {of.words(1)}{of.mask}"),
    (r"v?(cvtt?)(sd|ss|si|pd|ps|dq|usi|udq|qq)2(sd|ss|si|pd|ps|dq|usi|udq|qq)", _converted),
    (r"v?mov[ua]p[sd]|v?mov(?:dq[ua]\d*|s[sd]|[dq])", lambda _, of: f"{of.to} ← {of.words(-1)}{of.mask}"),
    (r"v?(?:shuf|unpck|perm|extract|insert|blend|movh|movl|pshuf|pack|palign|align|movs[hl]dup)\w*", _moved),
    (r"(add|sub|and|or|xor|imul)", _integer),
    (r"(shl|sal|shr|sar)x?", _shift),
    (r"(inc|dec)", lambda f, of: f"{of.bare(0)} ← {of.bare(0)} {'+' if f[1] == 'inc' else '−'} 1"),
    (r"neg", lambda _, of: f"{of.bare(0)} ← −{of.bare(0)}"),
    (r"not", lambda _, of: f"{of.bare(0)} ← its bits, turned round"),
    (r"mov(?:abs)?|kmov[bwdq]", lambda _, of: f"{of.bare(0)} ← {of.bare(1)}"),
    (r"mov[sz]xd?", lambda _, of: f"{of.bare(0)} ← {of.bare(1)}, made wider"),
    (r"lea", _address),
    (r"(cmp|test)", _compared),
    (r"push", lambda _, of: f"put {of.bare(0)} on the stack"),
    (r"pop", lambda _, of: f"{of.bare(0)} ← from the stack"),
    (r"call", lambda _, of: f"call {of.bare(0)}"),
    (r"jmp", lambda _, of: f"go on at {of.bare(0)}"),
    (r"j(\w+)", lambda f, of: f"if {CONDITIONS.get(f[1], f[1])}, go on at {of.bare(0)}"),
    (r"set(\w+)", lambda f, of: f"{of.bare(0)} ← 1 if {CONDITIONS.get(f[1], f[1])}, else 0"),
    (r"cmov(\w+)", lambda f, of: f"if {CONDITIONS.get(f[1], f[1])}, {of.bare(0)} ← {of.bare(1)}"),
    (r"prefetch\w*", lambda _, of: f"fetch {of.given[0]} into the cache: it will be needed"),
]
