"""The elementwise operations: a table with a row for each.

`generate.py` makes of it the bindings, the names of the loops' operations, and the stubs. `functions/math.py` makes
Functions of the rows with `y`, and onnx/ and c/ take theirs. So a new operation is its row here, its loop in
`loops/elementwise.pyx`, and its test case.
"""

from collections.abc import Callable
from typing import Any, NamedTuple


class KernelRow(NamedTuple):
    """What a binding of an elementwise kernel says."""

    signature: str  # its name and inputs, as Cython declares them; numbers are its scalars
    formula: str  # the docstring of its binding
    work: int = 10  # how long an element takes, in operations of a matrix product: 60 with an exp, log or tanh
    returns_slope: bool = False  # it returns y and the slope dy/da

    @property
    def name(self) -> str:
        return self.signature.partition("(")[0]


class Operation(NamedTuple):
    """A row: a Function, its kernels and its words elsewhere."""

    function: str  # the class in `caffelite.functions`
    kernel: KernelRow
    gradient: KernelRow | None = None
    gradient_2: KernelRow | None = None  # for the second input
    onnx: str | Callable[..., str] = ""  # the operator, or a function that writes nodes of (Writer, x)
    c: str = ""  # the C of an element for the inputs {}; {name} is an attribute of the Function

    # A Function of one input without options is made of its row. It needs:
    y: str = ""  # of x
    slope: str = ""  # dy/dx
    note: str = ""  # of special values
    backward: str = ""  # the kernel that makes dx of dy and x or y, if it is not `gradient`

    @property
    def backward_signature(self) -> str:
        return self.backward or (self.gradient.signature if self.gradient else "")

    @property
    def class_text(self) -> str:
        return f"y = {self.y}, elementwise, with dy/dx = {self.slope}{self.note and '; '}{self.note}."

    @property
    def function_text(self) -> str:
        return f"{self.y}, elementwise."


OPERATIONS = [
    # ---- arithmetic ----
    Operation("Add", KernelRow("add(a, b)", "y = a + b, broadcast; either may be a number."), onnx="Add", c="{} + {}"),
    Operation(
        "Subtract",
        KernelRow("subtract(a, b)", "y = a − b, broadcast; either may be a number."),
        onnx="Sub",
        c="{} - {}",
    ),
    Operation(
        "Multiply",
        KernelRow("multiply(a, b)", "y = a · b, broadcast; either may be a number."),
        onnx="Mul",
        c="{} * {}",
    ),
    Operation(
        "Divide",
        KernelRow("divide(a, b)", "y = a / b, broadcast; either may be a number. Division by zero gives ±inf or NaN."),
        KernelRow("divide_grad(da, y)", "db = −da y, the gradient of y = a / b, with da = dy / b."),
        onnx="Div",
        c="{} / {}",
    ),
    Operation(
        "Power",
        KernelRow(
            "power(a, b)",
            "y = a ** b, broadcast; either may be a number. NaN if a < 0 and b is not an integer.",
            work=1000,
        ),
        KernelRow(
            "power_grad_base(dy, a, b)",
            "da = dy b a ** (b − 1), the gradient of y = a ** b; 0 · dy where b = 0.",
            work=1000,
        ),
        KernelRow(
            "power_grad_exponent(dy, a, y)",
            "db = dy y log a, the gradient of y = a ** b; 0 · dy where a = 0 and b ≥ 0.",
            work=1000,
        ),
        onnx="Pow",
        c="powf({}, {})",
    ),
    Operation("Negative", KernelRow("negative(a)", "y = −a."), onnx="Neg", c="-{}"),
    # ---- elementary functions ----
    Operation(
        "Exp",
        KernelRow("exp(a)", "y = eᵃ.", work=60),
        onnx="Exp",
        c="expf({})",
        y="eˣ",
        slope="y",
        backward="multiply(dy, y)",
    ),
    Operation(
        "Log",
        KernelRow("log(a)", "y = ln a, the natural logarithm; −inf for 0, NaN for a < 0.", work=60),
        onnx="Log",
        c="logf({})",
        y="ln x, the natural logarithm",
        slope="1 / x",
        note="−inf for 0, NaN below",
        backward="divide(dy, x)",
    ),
    Operation(
        "Sqrt",
        KernelRow("sqrt(a)", "y = √a; NaN for a < 0."),
        KernelRow("sqrt_grad(dy, y)", "dx = dy / 2y, with y = sqrt(x)."),
        onnx="Sqrt",
        c="sqrtf({})",
        y="√x",
        slope="1 / 2y",
        note="NaN below 0",
    ),
    Operation(
        "Cbrt",
        KernelRow("cbrt(a)", "y = ∛a, with the sign of a.", work=40),
        KernelRow("cbrt_grad(dy, y)", "dx = dy / 3y², with y = cbrt(x)."),
        onnx=lambda g, x: g.node("Mul", g.node("Sign", x), g.node("Pow", g.node("Abs", x), g.number(1 / 3))),
        c="cbrtf({})",
        y="∛x",
        slope="1 / 3y²",
        note="inf at 0",
    ),
    Operation(
        "Abs",
        KernelRow("abs(a)", "y = |a|."),
        KernelRow("abs_grad(dy, x)", "dx = dy times the sign of x; 0 where x = 0."),
        onnx="Abs",
        c="fabsf({})",
        y="|x|",
        slope="the sign of x",
        note="0 at 0",
    ),
    Operation(
        "Sin",
        KernelRow("sin(a)", "y = sin a; NaN for ±inf.", work=60),
        KernelRow("sin_grad(dy, x)", "dx = dy cos x.", work=60),
        onnx="Sin",
        c="sinf({})",
        y="sin x, x in radians",
        slope="cos x",
        note="NaN for ±inf",
    ),
    Operation(
        "Cos",
        KernelRow("cos(a)", "y = cos a; NaN for ±inf.", work=60),
        KernelRow("cos_grad(dy, x)", "dx = −dy sin x.", work=60),
        onnx="Cos",
        c="cosf({})",
        y="cos x, x in radians",
        slope="−sin x",
        note="NaN for ±inf",
    ),
    # ---- choices ----
    Operation(
        "Maximum",
        KernelRow(
            "maximum(a, b)", "y = the larger of a and b, broadcast; NaN if either is NaN. Either may be a number."
        ),
        KernelRow(
            "maximum_grad(dy, a, b, bint second)",
            "da = dy where maximum(a, b) is a, else 0. If `second`, db = dy where it is b, else 0. If a = b, it is a.",
        ),
        onnx="Max",
        c="larger({}, {})",
    ),
    Operation(
        "Minimum",
        KernelRow(
            "minimum(a, b)", "y = the smaller of a and b, broadcast; NaN if either is NaN. Either may be a number."
        ),
        KernelRow(
            "minimum_grad(dy, a, b, bint second)",
            "da = dy where minimum(a, b) is a, else 0. If `second`, db = dy where it is b, else 0. If a = b, it is a.",
        ),
        onnx="Min",
        c="smaller({}, {})",
    ),
    Operation(
        "Where",
        KernelRow(
            "where(condition, a, b)",
            "y = a where the condition is not 0, else b, broadcast. All have one dtype; one at least must be an array.",
        ),
    ),
    Operation(
        "Clip",
        KernelRow("clip(a, double low, double high)", "y = min(max(a, low), high); NaN stays NaN."),
        KernelRow("clip_grad(dy, x, double low, double high)", "dx = dy where clip(x, low, high) = x, else 0."),
    ),
    # ---- activations ----
    Operation(
        "ReLU",
        KernelRow("relu(a)", "y = max(a, 0); NaN stays NaN."),
        KernelRow("relu_grad(dy, y)", "dx = dy where y > 0, else 0, with y = relu(x)."),
        onnx="Relu",
        c="relu({})",
    ),
    Operation(
        "LeakyReLU",
        KernelRow("leaky_relu(a, double slope)", "y = a where a > 0, else slope · a."),
        KernelRow(
            "leaky_relu_grad(dy, y, double slope)",
            "dx = dy where y > 0, else slope · dy, with y = leaky_relu(x, slope), slope ≥ 0.",
        ),
        c="leaky_relu({}, {slope})",
    ),
    Operation(
        "PReLU",
        KernelRow(
            "prelu(a, slope)", "y = a where a > 0, else slope · a. The slope is an array that is broadcast to a."
        ),
        KernelRow("prelu_grad(dy, x, slope)", "dx = dy where x > 0, else slope · dy, with y = prelu(x, slope)."),
    ),
    Operation(
        "ELU",
        KernelRow("elu(a, double alpha)", "y = a where a > 0, else alpha (exp a − 1).", work=60),
        KernelRow(
            "elu_grad(dy, y, double alpha)",
            "dx = dy where y > 0, else dy (y + alpha), with y = elu(x, alpha), alpha ≥ 0.",
        ),
        c="elu({}, {alpha})",
    ),
    Operation(
        "Tanh",
        KernelRow("tanh(a)", "y = tanh a.", work=60),
        KernelRow("tanh_grad(dy, y)", "dx = dy (1 − y²), with y = tanh(x)."),
        onnx="Tanh",
        c="tanhf({})",
    ),
    Operation(
        "Sigmoid",
        KernelRow("sigmoid(a)", "y = 1 / (1 + exp(−a)).", work=60),
        KernelRow("sigmoid_grad(dy, y)", "dx = dy y (1 − y), with y = sigmoid(x)."),
        onnx="Sigmoid",
        c="sigmoid({})",
    ),
    Operation(
        "SiLU",
        KernelRow("silu(a)", "y = a / (1 + exp(−a)).", work=60),
        KernelRow("silu_grad(dy, x)", "dx = dy s (1 + x (1 − s)), with s = sigmoid(x).", work=70),
        c="silu({})",
    ),
    Operation(
        "Mish",
        KernelRow("mish(a)", "y = a tanh(log(1 + exp a)).", work=60),
        KernelRow("mish_grad(dy, x)", "dx = dy (t + x (1 − t²) sigmoid(x)), with t = tanh(log(1 + exp x)).", work=80),
    ),
    Operation(
        "GELU",
        KernelRow(
            "gelu(a)",
            "y = a Φ(a), Φ the normal distribution, and the slope dy/da = Φ(a) + a Φ′(a), Φ′(a) = exp(−a²/2) / √(2π).",
            work=120,
            returns_slope=True,
        ),
    ),
    Operation(
        "GELU",
        KernelRow(
            "gelu_tanh(a)",
            "y = a (1 + tanh u) / 2, u = √(2/π) (a + 0.044715 a³), and the slope dy/da.",
            work=70,
            returns_slope=True,
        ),
    ),
    Operation(
        "Softplus",
        KernelRow("softplus(a)", "y = log(1 + exp a).", work=130),
        KernelRow("softplus_grad(dy, x)", "dx = dy sigmoid(x).", work=60),
        onnx="Softplus",
        c="softplus({})",
    ),
]

# Kernels of Functions that are more than an element's.
PARTS = [
    KernelRow("equal(a, b)", "y = 1 where a = b, else 0, broadcast; either may be a number."),
    KernelRow(
        "focal(a, double gamma)",
        "y = pᵞ a, p = 1 − exp(−a), a ≥ 0, and the slope dy/da = pᵞ (1 + γ exp(−a) a / p).",
        work=200,
        returns_slope=True,
    ),
    KernelRow("penalty(a, double l1, double l2)", "y = l1 |a| + l2 a² / 2."),
    KernelRow("penalty_grad(dy, x, double l1, double l2)", "dx = dy (l1 sign(x) + l2 x), dy broadcast."),
]

KERNELS = [kernel for row in OPERATIONS for kernel in row[1:4] if isinstance(kernel, KernelRow)] + PARTS

# Losses of one score and its target, and their slopes: operations that only loops/loss.pyx runs.
LOSSES = ["squared_error", "absolute_error", "huber", "cross_entropy", "quantile", "poisson"]


def by_function(column: str) -> dict[str, Any]:
    """Return a column's entries by the Function's name, without the empty ones."""
    return {row.function: entry for row in OPERATIONS if (entry := getattr(row, column))}
