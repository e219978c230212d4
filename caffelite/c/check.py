"""The program in a file of C that compares the outputs of one row with the model's."""

from __future__ import annotations

import numpy as np

from caffelite.c.emit import WIDTH, brackets, define_array, indent, literal, wrap_items
from caffelite.c.net import CModel
from caffelite.model.export_graph import apply_to_rows, random_rows

ROWS = 16  # among which one is chosen
TOLERANCE = 1e-4  # of 1 + |y|
MAX_STD = 100  # of outputs that are compared so; of larger ones, rounding may change those near 0 by more

DTYPES = {"int64_t": np.int64, "uint8_t": np.uint8}  # in NumPy, by the type in C

#: The call is through a volatile pointer. So the compiler can't compute the outputs itself from the row that it sees.
PROGRAM = """
#ifdef CHECK
/* Return 1 if a number differs by more than {tolerance:g} (size + |e|) from the expected e. (NAN is equal to NAN.) */
static int differs(const float *y, const float *expected, int n, float size)
{{
    for (int i = 0; i < n; i++) {{
        const float e = expected[i], tolerance = isfinite(e) ? {tolerance:g}f * (size + fabsf(e)) : 0;
        if (!(fabsf(y[i] - e) <= tolerance || y[i] == e || (y[i] != y[i] && e != e)))
            return 1;
    }}
    return 0;
}}

/* Compute the outputs of a row, and return 1 if they differ from the model's. */
int main(void)
{{
{arrays}
{function}

{call}
    return {differences};
}}
#endif"""


def check_program(net: CModel) -> str:
    """Return `main` in C, with a row and the outputs that the model computes."""
    rows = random_rows(net.graph, ROWS, np.random.default_rng(0))
    outputs = [y.reshape(ROWS, -1) for y in apply_to_rows(net.reference, rows)]
    row = choose_row(outputs)
    arrays, differences = [], []
    for (value, _), x in zip(net.inputs, rows, strict=True):
        numbers = x[row].reshape(-1).astype(DTYPES.get(value.type, net.dtype))
        name = f"{value.pointer}{brackets(numbers.shape)}"
        arrays.append(define_array(f"static const {value.type} {name} =", numbers, WIDTH - 4))
    for (value, _), y in zip(net.outputs, outputs, strict=True):
        name = f"{value.pointer}{brackets(y[row].shape)}"
        arrays.append(define_array(f"static const float expected_{name} =", y[row], WIDTH - 4))
        arrays.append(f"static float {name};")
        std = np.where(np.isfinite(y), y, 0).std(dtype=np.float64)
        size = literal(net.dtype.type(f"{max(1, std / MAX_STD):.2g}"))
        differences.append(f"differs({value.pointer}, expected_{value.pointer}, {value.size}, {size})")
    types = [f"const {value.type} *" for value, _ in net.inputs] + ["float *"] * len(net.outputs)
    arguments = [value.pointer for value, _ in (*net.inputs, *net.outputs)]
    return net.definitions.convert_code(
        PROGRAM.format(
            tolerance=TOLERANCE,
            arrays=indent("\n".join(arrays)),
            function=wrap_items("    void (*volatile check_function)(", types, ") = PREDICT;", " " * 8),
            call=wrap_items("    check_function(", arguments, ");", " " * 8),
            differences=" ||\n        ".join(differences),
        )
    )


def choose_row(outputs: list[np.ndarray]) -> int:
    """Return the row with most outputs that are finite and differ from their median over all rows.

    So the check has no row whose outputs are 0, or NaN, if there is another.
    """
    counts = np.zeros(ROWS, np.int64)
    for y in outputs:
        finite = np.isfinite(y)
        numbers = np.where(finite, y, 0).astype(np.float64)
        distances = abs(numbers - np.median(numbers, axis=0))
        counts += (finite & (distances > TOLERANCE * (1 + abs(numbers)))).sum(axis=1)
    return int(counts.argmax())
