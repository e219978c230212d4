"""The meaning of the common instructions of x86-64, in words.

    a ← b            register a gets b
    16 floats at [r] the numbers in memory, starting at the address in register r
    a · b + c        of vectors: lane by lane

The names say most of it: `v` for three operands, `p` for all lanes ("packed") or `s` for one ("scalar"), and `s` for
floats or `d` for doubles. So `vmulps` multiplies the floats of two registers, lane by lane.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable

LANES = {"xmm": 16, "ymm": 32, "zmm": 64}  # bytes of a register
SIGNS = {"add": "+", "sub": "−", "mul": "·", "imul": "·", "div": "/"}
SIGNS |= {"and": "and", "or": "or", "xor": "xor", "andn": "and not"}
CONDITIONS = {
    "e": "equal", "ne": "not equal", "l": "less", "le": "less or equal", "g": "greater", "ge": "greater or equal",
    "b": "below", "be": "below or equal", "a": "above", "ae": "above or equal", "s": "negative", "ns": "not negative",
    "p": "one of them is NaN", "np": "none of them is NaN", "o": "too large", "no": "not too large", "z": "zero",
    "nz": "not zero", "c": "below", "nc": "not below",
}  # fmt: skip
FIXED_MEANINGS = {
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
    """Return the meaning of an instruction; "" if the instruction is not a common one.

    `width` is the number of bytes of the operand in memory. `constant` is the address of an operand inside the module,
    such as a constant.
    """
    if name in FIXED_MEANINGS:
        return FIXED_MEANINGS[name]
    if name.startswith("nop") or (name == "xchg" and len(set(operands)) == 1) or name in ("data16", "cs"):
        return "nothing: it fills up to the next address"
    for pattern, words in PATTERNS:
        match = re.fullmatch(pattern, name)
        if match:
            return words(match, _Operands(name, operands, width, constant))
    return ""


class _Operands:
    """The operands of an instruction, in words."""

    def __init__(self, name: str, operands: list[str], width: int | None, constant: int | None) -> None:
        kind = re.search(r"(?:2|[ps]|ss|ps)?(s|d)$", name)
        self.floats = "doubles" if kind and kind[1] == "d" else "floats"
        self.are_bytes = "movdq" in name
        self.mask = ""
        self.width, self.constant = width, constant
        self.texts = []
        for operand in operands:
            masked = re.fullmatch(r"(.*?)\{(k\d)\}(\{z\})?", operand)
            if masked:
                self.mask = f", where {masked[2]} has a 1" + (", and 0 elsewhere" if masked[3] else "")
                operand = masked[1]
            self.texts.append(operand)

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def result(self) -> str:
        return self.words(0)

    def words(self, i: int) -> str:
        """Return the words for operand i: a register's name, a number, or the contents of memory."""
        operand = self.texts[i]
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

    def integer_words(self, i: int) -> str:
        """Return the words for operand i of an instruction on integers."""
        operand = self.texts[i]
        return f"what is at {operand}" if operand.startswith("[") else operand

    def sources(self) -> tuple[str, str]:
        """Return the two operands of an operation. If there are only two in all, the result replaces the first."""
        return (self.words(0), self.words(1)) if len(self) == 2 else (self.words(1), self.words(2))


Match = re.Match[str]


def _fma(match: Match, ops: _Operands) -> str:
    negative, sign, order = match[1], SIGNS[match[2]], match[3]
    a, b, c = (ops.words(i) for i in range(3))
    factors, added = {"132": ((a, c), b), "213": ((b, a), c), "231": ((b, c), a)}[order]
    if negative and sign == "+":
        return f"{a} ← {added} − {factors[0]} · {factors[1]}{ops.mask}"
    return f"{a} ← {'−' if negative else ''}{factors[0]} · {factors[1]} {sign} {added}{ops.mask}"


def _arithmetic(match: Match, ops: _Operands, kind: str = "") -> str:
    a, b = ops.sources()
    return f"{ops.result} ← {a} {SIGNS[match[1]]} {b}{kind}{ops.mask}"


def _extreme(match: Match, ops: _Operands) -> str:
    a, b = ops.sources()
    return f"{ops.result} ← the {'larger' if match[1] == 'max' else 'smaller'} of {a} and {b}{ops.mask}"


def _logic(match: Match, ops: _Operands) -> str:
    a, b = ops.sources()
    operation = match[1] or match[2]
    if operation == "xor" and a == b:
        return f"{ops.result} ← 0"
    return f"{ops.result} ← the bits of {a} {SIGNS[operation]} {b}{ops.mask}"


def _mask(match: Match, ops: _Operands) -> str:
    """Return a lane-by-lane comparison, which results in the bits of a mask, or in lanes of all ones or all zeros."""
    sign = {"lt": "<", "le": "≤", "gt": ">", "ge": "≥", "eq": "=", "neq": "≠"}
    name = match[1].removesuffix("_oq").removesuffix("_uq")
    a, b = ops.sources()
    if name in sign:
        return f"{ops.result} ← where {a} {sign[name]} {b}{ops.mask}"
    return f"{ops.result} ← where not {a} {sign[name[1:]]} {b}{ops.mask}" if name[1:] in sign else ""


def _shuffle(_found: Match, ops: _Operands) -> str:
    places = [i for i in range(1, len(ops)) if not ops.texts[i].lstrip("-").isdigit()]
    return f"{ops.result} ← numbers of {' and '.join(map(ops.words, places)) or 'itself'}, in another order{ops.mask}"


def _conversion(match: Match, ops: _Operands) -> str:
    kinds = {"sd": "a double", "ss": "a float", "si": "a whole number", "pd": "doubles", "ps": "floats",
             "dq": "whole numbers", "usi": "a whole number", "udq": "whole numbers", "qq": "whole numbers"}  # fmt: skip
    return f"{ops.result} ← {ops.integer_words(len(ops) - 1)}, from {kinds[match[2]]} to {kinds[match[3]]}{ops.mask}"


def _integer(match: Match, ops: _Operands) -> str:
    name = match[1]
    if name == "xor" and ops.texts[0] == ops.texts[1]:
        return f"{ops.integer_words(0)} ← 0"
    if name == "imul" and len(ops) == 3:
        return f"{ops.integer_words(0)} ← {ops.integer_words(1)} · {ops.integer_words(2)}"
    if name == "imul" and len(ops) == 1:
        return ""
    return f"{ops.integer_words(0)} ← {ops.integer_words(0)} {SIGNS[name]} {ops.integer_words(1)}"


def _shift(match: Match, ops: _Operands) -> str:
    left, three = match[1] in ("shl", "sal"), len(ops) == 3
    times, what = ops.texts[-1] if len(ops) > 1 else "1", ops.integer_words(1 if three else 0)
    if times.isdigit() and int(times) < 63:
        return f"{ops.integer_words(0)} ← {what} {'·' if left else '/'} {2 ** int(times):,}"
    return f"{ops.integer_words(0)} ← the bits of {what}, {times} places to the {'left' if left else 'right'}"


def _address(_found: Match, ops: _Operands) -> str:
    formula = ops.texts[1].strip("[]").replace("*", " · ")
    return f"{ops.texts[0]} ← {formula}" if ops.constant is None else f"{ops.texts[0]} ← the address of a constant"


def _comparison(match: Match, ops: _Operands) -> str:
    a, b = ops.integer_words(0), ops.integer_words(1)
    if match[1] == "test":
        is_itself = ops.texts[0] == ops.texts[1]
        return f"is {a} 0?" if is_itself else f"the bits of {a} and {b}"
    return f"compare {a} with {b}"


# The patterns of names, in the order in which they are tried, each with the function that makes the words.
PATTERNS: list[tuple[str, Callable[[Match, _Operands], str]]] = [
    (r"vf(n)?m(add|sub)(132|213|231)[ps][sd]", _fma),
    (r"v?(add|sub|mul|div)[ps][sd]", _arithmetic),
    (r"v?(max|min)[ps][sd]", _extreme),
    (r"v?sqrt[ps][sd]", lambda _, ops: f"{ops.result} ← the root of {ops.words(-1)}{ops.mask}"),
    (r"v?(andn|and|or|xor)p[sd]|v?p(andn|and|or|xor)[dq]?", _logic),
    (r"v?u?comis[sd]", lambda _, ops: f"compare {ops.words(0)} with {ops.words(1)}"),
    (r"v?cmp(\w+?)[ps][sd]", _mask),
    (r"v?p(add|sub)[bwdq]", lambda match, ops: _arithmetic(match, ops, ", whole numbers")),
    (r"v?(?:broadcasts[sd]|pbroadcast[dq])", lambda _, ops: f"each of {ops.result} ← {ops.words(1)}{ops.mask}"),
    (r"v?(cvtt?)(sd|ss|si|pd|ps|dq|usi|udq|qq)2(sd|ss|si|pd|ps|dq|usi|udq|qq)", _conversion),
    (r"v?mov[ua]p[sd]|v?mov(?:dq[ua]\d*|s[sd]|[dq])", lambda _, ops: f"{ops.result} ← {ops.words(-1)}{ops.mask}"),
    (r"v?(?:shuf|unpck|perm|extract|insert|blend|movh|movl|pshuf|pack|palign|align|movs[hl]dup)\w*", _shuffle),
    (r"(add|sub|and|or|xor|imul)", _integer),
    (r"(shl|sal|shr|sar)x?", _shift),
    (r"(inc|dec)", lambda f, ops: f"{ops.integer_words(0)} ← {ops.integer_words(0)} {'+' if f[1] == 'inc' else '−'} 1"),
    (r"neg", lambda _, ops: f"{ops.integer_words(0)} ← −{ops.integer_words(0)}"),
    (r"not", lambda _, ops: f"{ops.integer_words(0)} ← its bits, turned round"),
    (r"mov(?:abs)?|kmov[bwdq]", lambda _, ops: f"{ops.integer_words(0)} ← {ops.integer_words(1)}"),
    (r"mov[sz]xd?|v?pmov[sz]x\w\w", lambda _, ops: f"{ops.integer_words(0)} ← {ops.integer_words(1)}, made wider"),
    (r"lea", _address),
    (r"(cmp|test)", _comparison),
    (r"push", lambda _, ops: f"put {ops.integer_words(0)} on the stack"),
    (r"pop", lambda _, ops: f"{ops.integer_words(0)} ← from the stack"),
    (r"call", lambda _, ops: f"call {ops.integer_words(0)}"),
    (r"jmp", lambda _, ops: f"go on at {ops.integer_words(0)}"),
    (r"j(\w+)", lambda f, ops: f"if {CONDITIONS.get(f[1], f[1])}, go on at {ops.integer_words(0)}"),
    (r"set(\w+)", lambda f, ops: f"{ops.integer_words(0)} ← 1 if {CONDITIONS.get(f[1], f[1])}, else 0"),
    (r"cmov(\w+)", lambda f, ops: f"if {CONDITIONS.get(f[1], f[1])}, {ops.integer_words(0)} ← {ops.integer_words(1)}"),
    (r"prefetch\w*", lambda _, ops: f"fetch {ops.texts[0]} into the cache: it will be needed"),
]
