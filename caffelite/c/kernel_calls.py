"""From the kernel calls of a recorded step to C.

Most kernels are a function of C in `kernels/`: the table `CALLS` says how it is called, with the facts of the recorded
call. Elementwise kernels are loops around an expression (`expressions`), which `loop_nest` writes.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from caffelite.c.emit import HELPERS as NUMBER_HELPERS
from caffelite.c.emit import INDICES, indent, literal, loops, to_double
from caffelite.c.expressions import DERIVATIVES, EXPRESSIONS, HELPERS
from caffelite.c.memory import Memory
from caffelite.program.ir import Instruction

LIBRARY = Path(__file__).parent / "kernels"
FILES = (  # a file uses functions of files before it
    *("matmul", "convolution", "pooling", "reduction", "softmax", "loss", "normalization", "random", "indexing"),
    *("attention", "recurrent", "tables", "update"),
)

#: How the kernels are called. {0} to {11} are operands, {n[i]} sizes, {t[i][d]} strides, {s[i]} scalars, {h} and {w}
#: windows. {n:3} are the first three sizes. A call that begins with a question mark returns whether the step may go on.
CONVOLUTION = "convolution({n:6}, {h}, {w}, {0}, {t[0]:4}, {1}, {t[1]:4}, {2}, {t[2]:4}, {3})"
AVERAGE = "{s[0]}, {0}, {t[0]:3}, {1}, {t[1]:3})"
RECURRENCE = "{rows}, {n[3]}, {n[1]}, {n[4]}, {n[5]}, {0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11})"
CALLS = {
    "matmul": "matmul({n:3}, {0}, {t[0]:2}, {1}, {t[1]:2}, {2}, {t[2]:2}, {3}, {adds})",
    "matmul_stack": "matmul_stack({parts}, {n:3}, {0}, {t[0]:3}, {1}, {t[1]:3}, {2}, {t[2]:3})",
    "convolution": CONVOLUTION,
    "transposed_convolution": CONVOLUTION,
    "convolution_weight_grad": (
        "convolution_weight_grad({n:4}, {h}, {w}, {0}, {t[0]:4}, {1}, {t[1]:4}, {2}, {t[2]:4}, {adds})"
    ),
    "max_pool": "max_pool({n[0]}, {outer_count}, {h}, {w}, {0}, {t[0]:3}, {1}, {2}, {t[2]:3})",
    "max_pool_grad": "max_pool_grad({n[0]}, {outer_length}, {h}, {w}, {0}, {t[0]:3}, {1}, {t[1]:3}, {2}, {t[2]:3})",
    "average_pool": "average_pool({n[0]}, {outer_count}, {h}, {w}, " + AVERAGE,
    "average_pool_grad": "average_pool_grad({n[0]}, {outer_length}, {h}, {w}, " + AVERAGE,
    "upsample": "average_pool_grad({n[0]}, {outer_length}, {h}, {w}, " + AVERAGE,
    "upsample_grad": "average_pool({n[0]}, {outer_count}, {h}, {w}, " + AVERAGE,
    "sum": "sum({n:3}, {0}, {1}, {s[0]}, {adds})",
    "largest": "extreme({n:3}, {0}, {1}, {2}, {s[0]})",
    "smallest": "extreme({n:3}, {0}, {1}, {2}, {s[0]})",
    "extreme_grad": "extreme_grad({n:3}, {0}, {1}, {2})",
    "cumsum": "cumsum({n:4}, {0}, {1})",
    "prod": "prod({n:3}, {0}, {1})",
    "prod_grad": "prod_grad({n:3}, {0}, {1}, {2})",
    "variance": "variance({n:3}, {0}, {1}, {s[0]})",
    "variance_grad": "variance_grad({n:3}, {0}, {1}, {2}, {s[0]})",
    "logsumexp": "logsumexp({n:3}, {0}, {1})",
    "logsumexp_grad": "logsumexp_grad({n:3}, {0}, {1}, {2})",
    "all_finite": "?all_finite({parts}, {0})",
    "softmax": "softmax({n:2}, {0}, {1})",
    "softmax_grad": "softmax_grad({n:2}, {0}, {1}, {2})",
    "log_softmax": "log_softmax({n:2}, {0}, {1})",
    "log_softmax_grad": "log_softmax_grad({n:2}, {0}, {1}, {2})",
    "check_labels": "?check_labels({n:4}, {1})",
    "check_probabilities": "?check_probabilities({n:2}, {0}, {s[0]}, {s[1]})",
    "softmax_loss": "softmax_loss({n:4}, {s[0]}, {0}, {1}, {2}, {3})",
    "softmax_loss_grad": "softmax_loss_grad({n:4}, {s[0]}, {0}, {1}, {2}, {3}, {4})",
    "soft_loss": "soft_loss({n:2}, {s[0]}, {0}, {1}, {2}, {3})",
    "soft_loss_grad": "soft_loss_grad({n:2}, {s[0]}, {0}, {1}, {2}, {3}, {4})",
    "hinge_loss": "hinge_loss({n:2}, {s[0]}, {0}, {1}, {2})",
    "hinge_loss_grad": "hinge_loss_grad({n:2}, {s[0]}, {0}, {1}, {2}, {3}, {4})",
    "gaussian_loss": "gaussian_loss({n:2}, {0}, {1}, {2})",
    "gaussian_loss_grad": "gaussian_loss_grad({n:2}, {0}, {1}, {2}, {3}, {4})",
    "weighted_mean": "?weighted_mean({n:4}, {0}, {1}, {2}, {weights}, {4}, {5})",
    "layer_norm": "layer_norm({n:3}, {s[0]}, {0}, {1}, {2}, {3}, {4})",
    "layer_norm_grad": "layer_norm_grad({n:3}, {0}, {1}, {2}, {3}, {4})",
    "layer_norm_sums": "layer_norm_sums({n:2}, {0}, {1}, {2}, {3}, {4})",
    "batch_norm": "batch_norm({n[1]}, {n[3]}, {n[4]}, {s[0]}, {0}, {1}, {2}, {3}, {4})",
    "batch_norm_fixed": "batch_norm_fixed({n[1]}, {n[3]}, {n[4]}, {0}, {1}, {2}, {3}, {4})",
    "batch_norm_grad": "batch_norm_grad({n[1]}, {n[3]}, {n[4]}, {n[5]}, {0}, {1}, {2}, {3}, {4}, {5}, {6})",
    "batch_norm_sums": "batch_norm_sums({n[1]}, {n[3]}, {n[4]}, {0}, {1}, {2}, {3})",
    "update_moments": "update_moments({n:2}, {s[0]}, {0}, {1}, {2})",
    "running_moments": "running_moments({n[0]}, {s[0]}, {0}, {1}, {2})",
    "next_draw": "next_draw({0}, {1})",
    "dropout": "dropout({parts}, {n[0]}, {limit}, {keep}, {0}, {1}, {2})",
    "dropout_grad": "dropout({parts}, {n[0]}, {limit}, {keep}, {0}, {1}, {2})",
    "attention": (
        "attention({n:6}, {s[0]}, {head}, {limit}, {keep}, {0}, {1}, {t[1]:2}, {2}, {t[2]:2}, {3}, {t[3]:2}, {4}, {5}, "
        "{t[5]:3}, {6}, {room})"
    ),
    "attention_grad": (
        "attention_grad({n:6}, {s[0]}, {head}, {limit}, {keep}, {0}, {1}, {2}, {3}, {t[3]:2}, {4}, {t[4]:2}, {5}, "
        "{t[5]:2}, {6}, {t[6]:2}, {7}, {9}, {t[9]:3}, {10}, {room})"
    ),
    "rotary": "rotary({n:2}, {heads}, {width}, {0}, {turns}, {2}, {t[2]:2})",
    "take": "?take{integers}({parts}, {n[0]}, {columns}, {0}, {1}, {2})",
    "take_grad": "?take_grad({n:3}, {0}, {1}, {t[1][0]}, {2}, {adds})",
    "use_rows": "?use_rows({n:3}, {0}, {2}, {adds})",
    "cut": "?cut({parts}, {n:2}, {0}, {1}, {2})",
    **dict.fromkeys(("rnn", "gru", "lstm"), "recurrence(" + RECURRENCE),
    **dict.fromkeys(("rnn_grad", "gru_grad", "lstm_grad"), "recurrence_grad(" + RECURRENCE),
    "standardize": "standardize({n:3}, {d[0]}, {0}, {1}, {2}, {3}, {4})",
    "standardize_grad": "standardize_grad({n:3}, {d[0]}, {0}, {1}, {2}, {3}, {4})",
    "piecewise": "piecewise({n:3}, {0}, {1}, {2}, {3})",
    "piecewise_grad": "piecewise_grad({n:3}, {0}, {1}, {2}, {3}, {4})",
    "places": "find_places({n:2}, {0}, {1}, {2}, {3})",
    **dict.fromkeys(("splines", "splines_of_codes"), "?splines({n:4}, {0}, {1}, {2}, {3}, {4}, {5})"),
    **dict.fromkeys(("splines_grad", "splines_of_codes_grad"), "?splines_grad({n:4}, {0}, {1}, {2}, {3}, {4})"),
    "splines_input_grad": "splines_input_grad({n:2}, {n[3]}, {0}, {1}, {2}, {3}, {4}, {5}, {6})",
    "spline_table": "spline_table({n[1]}, {n[2]}, {n[3]}, {0}, {1}, {2}, {3}, {4}, {5})",
    "spline_table_grad": "spline_table_grad({n[1]}, {n[2]}, {n[3]}, {0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8})",
    "count_steps": "{count_steps}",
    "norm": "?norm({n[0]}, {0}, {1}, {2})",
    "limit_norm": "limit_norm({parts}, {0}, {1}, {d[0]})",
    "ema": "ema({parts}, {0}, {1}, {rest})",
    "follow": "follow({n[0]}, {0}, {1}, {2})",
    "sgd": "sgd({n[0]}, {0}, {1}, {2}, {3})",
    "adagrad": "adagrad({n[0]}, {0}, {1}, {2}, {3})",
    "adadelta": "adadelta({n[0]}, {0}, {1}, {2}, {second}, {3})",
    "rmsprop": "rmsprop({n[0]}, {0}, {1}, {2}, {second}, {3})",
    "lion": "lion({n[0]}, {0}, {1}, {2}, {3})",
    "adam": "adam({n[2]}, 0, {0}, {1}, {2}, {second}, {3}, {4})",
    "adamw": "adam({n[2]}, 1, {0}, {1}, {2}, {second}, {3}, {4})",
    "nadam": "nadam({n[2]}, {0}, {1}, {2}, {second}, {3}, {4})",
}


class Numbers(tuple[int, ...]):
    """Sizes or strides. A template writes the first three as `{n:3}`."""

    def __format__(self, count: str) -> str:
        return ", ".join(map(str, self[: int(count)]))


@dataclass
class Body:
    """The statements of a call in C, and whether they return if the step may go on."""

    text: str
    may_stop: bool = False


class UnsupportedKernelError(TypeError):
    """There is no C for a kernel."""


def used_operands(instruction: Instruction) -> list[int]:
    """Return the numbers of the operands that a call needs in C. Raise UnsupportedKernelError without C for it."""
    facts = instruction.call.facts
    if facts.rounds or (facts.kernel in ("sgd", "adagrad", "adam") and facts.sizes[3]):
        raise UnsupportedKernelError(
            f"{instruction.call.name} of sparse rows" if not facts.rounds else instruction.call.name
        )
    if does_nothing(facts):
        return []
    present = [i for i, operand in enumerate(instruction.operands) if operand is not None]
    if facts.kernel in WRITERS or facts.op in EXPRESSIONS:
        return [i for i in present if not (facts.op in EXPRESSIONS and i > 5)]
    if facts.kernel not in CALLS:
        raise UnsupportedKernelError(facts.kernel)
    named = {int(i) for i in re.findall(r"\{(\d+)\}", CALLS[facts.kernel])}
    named |= {"weighted_mean": {3}, "count_steps": {0, 1}}.get(facts.kernel, set())
    return [i for i in present if i in named]


def defer_updates(instructions: list[Instruction]) -> list[Instruction]:
    """Return the calls with updates of running moments behind the last call that may stop the step.

    So a step that stops has not changed them. An update stays where it is if a call before that one reads its results.
    """
    stops = [i for i, call in enumerate(instructions) if CALLS.get(call.call.facts.kernel, "").startswith("?")]
    end = stops[-1] + 1 if stops else 0
    updates: list[Instruction] = []
    kept: list[Instruction] = []
    read: set[Any] = set()  # by the calls from here on
    for call in reversed(instructions[:end]):
        is_free = call.call.facts.kernel == "update_moments" and read.isdisjoint(call.writes)
        (updates if is_free else kept).append(call)
        read |= set() if is_free else set(call.reads)
    return [*reversed(kept), *reversed(updates), *instructions[end:]]


def does_nothing(facts: Any) -> bool:
    """Return whether a call needs no C: it makes no numbers, or lists rows of a gradient, which C does not need."""
    return facts.parts == 0 or facts.kernel == "use_all_rows"


def write_call(instruction: Instruction, memory: Memory) -> Body | None:
    """Return a recorded call in C; None if nothing is left to do."""
    facts = instruction.call.facts
    if does_nothing(facts):
        return None
    if facts.kernel in WRITERS:
        return WRITERS[facts.kernel](instruction, memory)
    if facts.op in EXPRESSIONS:
        writer = write_pointwise_loss if instruction.call.kernel.loops.startswith("pointwise") else write_elementwise
        return writer(instruction, memory)
    template = CALLS[facts.kernel]
    pointers = _pointers(instruction, memory)
    text = template.lstrip("?").format(*pointers, **_values(instruction, memory, pointers))
    may_stop = template.startswith("?")
    return Body(f"return {text};" if may_stop else f"{text};", may_stop)


def _pointers(instruction: Instruction, memory: Memory) -> list[str]:
    used = used_operands(instruction)
    operands = [*instruction.operands, *[None] * (12 - len(instruction.operands))]
    return [memory.pointer(operand) if i in used else "NULL" for i, operand in enumerate(operands)]


def _values(instruction: Instruction, memory: Memory, pointers: list[str]) -> dict[str, Any]:
    """Return what the templates of `CALLS` name."""
    facts = instruction.call.facts
    n, number = facts.sizes, functools.partial(_number, memory.number_type)
    values: dict[str, Any] = {"n": Numbers(n), "t": [*map(Numbers, facts.strides)], "parts": facts.parts}
    values["adds"], values["s"] = int(facts.accumulates), [number(x) for x in facts.scalars]
    values["d"] = [literal(np.float64(x)) for x in facts.scalars]
    values["h"], values["w"] = [f"(window){{{', '.join(map(str, window))}}}" for window in facts.windows]
    values["outer_count"] = facts.parts // max(facts.windows[0].count, 1)
    values["outer_length"] = facts.parts // max(facts.windows[0].length, 1)
    p = facts.scalars[1] if facts.kernel.startswith("attention") else facts.scalars[0]
    if facts.kernel.startswith(("dropout", "attention")):
        values["limit"], values["keep"] = f"{round(65536 * p)}u", number(1 / (1 - p))
        values["head"] = n[6] // max(1, n[2] * n[3])
        memory.room = max(memory.room, n[3])
        values["room"] = "ram.room"
    if facts.kernel == "rotary":
        values["heads"], values["width"], values["turns"] = _rotary_table(instruction, memory)
    if facts.kernel == "take":
        row: Any = instruction.operands[1]
        values["integers"] = "" if row.dtype.kind == "f" else "_integers"
        values["columns"] = n[1] // row.dtype.itemsize
    values["weights"] = pointers[3] if n[4] else "NULL"
    values["rows"] = n[0] // max(n[3], 1)
    values["rest"] = number(1 - facts.scalars[0])
    values["second"] = f"{pointers[2]} + {facts.strides[2][0]}" if n[1] > 1 else "NULL"
    steps = f"({n[0]}, {pointers[0]}"
    values["count_steps"] = f"count_steps{steps})" if n[1] == 2 else f"count_nadam_steps{steps}, {pointers[1]})"
    return values


def _number(real: str, value: Any) -> str:
    """Return a `float` or `double` in C."""
    with np.errstate(over="ignore"):
        return literal((np.float32 if real == "float" else np.float64)(value))


def _rotary_table(instruction: Instruction, memory: Memory) -> tuple[int, int, str]:
    """Return the heads, their columns, and the name of the table of angles of `rotary`."""
    facts = instruction.call.facts
    n, table = facts.sizes, facts.numbers[1]
    columns = n[3]
    d = next(d for d in range(2, columns + 1, 2) if columns % d == 0 and _repeats(table, d))
    turns = np.empty((n[1], d))
    for t in range(n[1]):
        for i in range(0, d, 2):
            angle = (n[4] + t) * math.exp(-math.log(10000) * i / d)
            turns[t, i], turns[t, i + 1] = math.cos(angle), -math.sin(angle) if n[5] else math.sin(angle)
    return n[2] * columns // d, d, memory.table("turns", turns.reshape(-1).astype(memory.dtype))


def _repeats(table: np.ndarray, d: int) -> bool:
    """Return whether the rows of a table repeat their first d columns."""
    return all(np.array_equal(table[:, :d], table[:, i : i + d]) for i in range(d, table.shape[1], d))


# ---- loops -----------------------------------------------------------------------------------------------------------


def loop_nest(sizes: tuple[int, ...], strides: list[tuple[int, ...]], body: Callable[[list[str]], list[str]]) -> str:
    """Return loops over all elements, a block for one element.

    `body` gets the subscript of each operand, and returns the statements inside.
    """
    axes = [d for d, n in enumerate(sizes) if n > 1]
    names = dict(zip(axes, INDICES, strict=False))
    subscripts = []
    for stride in strides:
        terms = [names[d] if stride[d] == 1 else f"{names[d]} * {stride[d]}" for d in axes if stride[d]]
        subscripts.append(" + ".join(terms) or "0")
    statements = body(subscripts)
    if not axes:
        return "{\n" + indent("\n".join(statements)) + "\n}"
    return "\n".join(loops({names[d]: sizes[d] for d in axes}, *statements))


def write_elementwise(instruction: Instruction, memory: Memory) -> Body:
    """Return a loop around the expression of an operation."""
    facts = instruction.call.facts
    pointers, op = _pointers(instruction, memory), facts.op
    real = memory.type(instruction.operands[0])  # type: ignore[arg-type]
    has_derivative = op in DERIVATIVES and pointers[2] != "NULL"
    inputs = [1] if op in DERIVATIVES else [i for i in (1, 2, 3) if pointers[i] != "NULL"]
    arrays = [0, *inputs, *([2] if has_derivative else [])]
    lines = [f"{real} *out = {pointers[0]};"]
    names = "?abc"
    lines += [f"const {real} *{names[i]}s = {pointers[i]};" for i in inputs]
    lines += [f"{real} *slope = {pointers[2]};"] if has_derivative else []
    numbers = {i: facts.numbers[i] for i in facts.numbers if i <= 3}

    def body(subscripts: list[str]) -> list[str]:
        places = dict(zip(arrays, subscripts, strict=True))
        values = [f"{names[i]} = {names[i]}s[{places[i]}]" for i in inputs]
        values += [f"{names[i]} = {_number(real, x)}" for i, x in numbers.items()]
        expression = _expression(EXPRESSIONS[op], facts.scalars, real)
        missing = [x for i, x in enumerate(names) if i > 1 and re.search(rf"\b{x}\b", expression)]
        values += [f"{x} = a" for x in missing if not any(v.startswith(f"{x} =") for v in values)]
        inside = [f"const {real} {', '.join(values)};"]
        if not has_derivative:
            return [*inside, f"out[{places[0]}] = {expression};"]
        derivative = _expression(DERIVATIVES[op], facts.scalars, real)
        inside += [f"const {real} v = {expression};", f"slope[{places[2]}] = {derivative};"]
        return [*inside, f"out[{places[0]}] = v;"]

    nest = loop_nest(facts.sizes[:4], [facts.strides[i] for i in arrays], body)
    return Body("\n".join([*lines, nest]))


def _expression(text: str, scalars: tuple[float, float], real: str) -> str:
    """Return an expression of `float` or `double`, with its scalars."""
    text = text if real == "float" else to_double(text)
    return re.sub(r"\b[st]\b", lambda found: _number(real, scalars[found[0] == "t"]), text)


def write_pointwise_loss(instruction: Instruction, memory: Memory) -> Body:
    """Return the loop of a loss of single scores, or of its gradient."""
    facts = instruction.call.facts
    pointers, real = _pointers(instruction, memory), memory.number_type
    n, k, count = facts.sizes[:3]
    lines = [f"{real} *out = {pointers[0]};", f"const {real} *scores = {pointers[1]}, *targets = {pointers[2]};"]
    values = [f"a = scores[i * {k} + j]", f"b = targets[i * {k} + j]"]
    if pointers[5] != "NULL":
        lines.append(f"const double *constants = {pointers[5]};")
        values.append(f"c = ({real})constants[{f'j % {count}' if count > 1 else 0}]")
    expression = _expression(EXPRESSIONS[facts.op], facts.scalars, real)
    inside = f"const {real} {', '.join(values)};"
    if facts.kernel.endswith("_grad"):
        lines.append(f"const {real} *dy = {pointers[3]};")
        lines += [] if pointers[4] == "NULL" else [f"const {real} *share = {pointers[4]};"]
        weight = f"*dy / {k} / {n}" if pointers[4] == "NULL" else f"*dy / {k} * share[i]"
        row = loops({"j": k}, inside, f"out[i * {k} + j] = {weight} * ({expression});")
    else:
        row = [f"{real} total = 0;", *loops({"j": k}, inside, f"total += {expression};"), f"out[i] = total / {k};"]
    return Body("\n".join([*lines, *loops({"i": n}, *row)]))


def write_ravel_index(instruction: Instruction, memory: Memory) -> Body:
    """Return the loop that makes positions of the indices of an axis."""
    facts = instruction.call.facts
    pointers, (length, lowest) = _pointers(instruction, memory), map(int, facts.scalars)
    if 1 in facts.numbers:
        pointers[1] = memory.table("indices", np.asarray(facts.numbers[1]).reshape(-1))
    lines = [f"int32_t *out = {pointers[0]};", f"const int32_t *index = {pointers[1]};"]

    def body(subscripts: list[str]) -> list[str]:
        y, x = subscripts
        at = f"(at < 0 ? at + {length} : at)"
        return [
            f"const int32_t at = index[{x}];",
            f"if (at < {lowest} || at >= {length})\n    return 0;",
            f"out[{y}] = out[{y}] * {length} + {at};" if facts.accumulates else f"out[{y}] = {at};",
        ]

    nest = loop_nest(facts.sizes[:4], [facts.strides[0], facts.strides[1]], body)
    return Body("\n".join([*lines, nest, "return 1;"]), may_stop=True)


def write_convert(instruction: Instruction, memory: Memory) -> Body:
    """Return the loop that converts numbers to another type."""
    facts, pointers = instruction.call.facts, _pointers(instruction, memory)
    y, x = [memory.type(operand) for operand in instruction.operands[:2]]  # type: ignore[arg-type]
    lines = [f"{y} *out = {pointers[0]};", f"const {x} *in = {pointers[1]};"]

    def body(subscripts: list[str]) -> list[str]:
        return [f"out[{subscripts[0]}] = ({y})in[{subscripts[1]}];"]

    return Body("\n".join([*lines, loop_nest(facts.sizes[:4], [facts.strides[0], facts.strides[1]], body)]))


def write_pack(instruction: Instruction, memory: Memory) -> Body:
    """Return the copy of a matrix for `recurrence`, which needs no strips."""
    facts, pointers, real = instruction.call.facts, _pointers(instruction, memory), memory.number_type
    rows, columns = facts.sizes[:2]
    (row, column), out = facts.strides[1][:2], f"out[i * {columns} + j]"
    lines = [f"{real} *out = {pointers[0]};", f"const {real} *in = {pointers[1]};"]
    return Body("\n".join([*lines, *loops({"i": rows, "j": columns}, f"{out} = in[i * {row} + j * {column}];")]))


WRITERS: dict[str, Callable[[Instruction, Memory], Body]] = {
    "ravel_index": write_ravel_index,
    "convert": write_convert,
    "pack": write_pack,
}


# ---- the functions of kernels/ ---------------------------------------------------------------------------------------


@functools.cache
def read_library() -> dict[str, str]:
    """Return the functions and types in kernels/ by name, each with the comment above it, in an order that compiles."""
    found = {}
    for name in FILES:
        text = re.sub(r'#include "\w+\.[ch]"\n', "", (LIBRARY / f"{name}.c").read_text(encoding="utf-8"))
        for piece in re.split(r"\n\n(?=/\*|KERNEL|typedef)", text.strip()):
            code = piece[piece.index("*/") + 2 :] if piece.startswith("/*") else piece
            names = re.findall(r"^\} (\w+);", code, re.M) if "typedef" in code else re.findall(r"(\w+)\(", code)
            if names:  # not a comment on several functions
                found[names[0]] = piece
    return found


def find_functions(texts: list[str], number_type: str) -> list[str]:
    """Return the functions and types of kernels/, and the functions of numbers, that these texts need.

    A function that is called once is marked, because a compiler that optimizes for size should inline it.
    """
    library = {**NUMBER_HELPERS, **HELPERS, **read_library()}
    uses: Counter[str] = Counter()
    needed: set[str] = set()
    pending = list(texts)
    while pending:
        code = re.sub(r"/\*.*?\*/", "", pending.pop(), flags=re.S)
        words = re.findall(r"\b(?:\w+(?=\()|window\b)", code)
        uses.update(words)
        for name in set(words) & (library.keys() - needed):
            needed.add(name)
            pending.append(library[name])
    pieces = []
    for name, text in library.items():
        if name in needed:
            is_once = uses[name] == 2  # in its definition, and in the call
            pieces.append(text.replace("KERNEL", "INLINE", 1) if is_once else text)
    if number_type == "double":
        pieces = [to_double(text).replace("FLT_MIN", "DBL_MIN") for text in pieces]
    return pieces
