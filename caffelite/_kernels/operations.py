"""The elementwise operations: a table of their kernels, one of their Functions, and one of losses of single scores.

`generate.py` makes the bindings, the names of the loops' operations, and the stubs. `functions/math.py` makes the
Functions that have a column `y`. onnx/ and c/ take the last columns. So a new operation is its rows here, its loop in
`loops/elementwise.pyx`, and its test case.
"""

from collections.abc import Callable
from typing import Any, NamedTuple


class KernelRow(NamedTuple):
    signature: str  # its name and arguments: first arrays or numbers, which have no type, and then typed scalars
    work: int  # how long an element takes, in operations of a matrix product: 60 with an exp, log or tanh
    formula: str  # the docstring of the binding
    c: str  # an element of y in C, of the inputs' a, b, c and the scalars s, t
    slope: str = ""  # if the kernel returns y and the derivative dy/da: the derivative in C, of a and v = y

    @property
    def name(self) -> str:
        return self.signature.partition("(")[0]


class Operation(NamedTuple):
    function: str  # the class in `caffelite.functions`
    onnx: str | Callable[..., str] = ""  # ONNX's operator, or a function (Writer, x) that writes several nodes
    c: str = ""  # an element of y in C, of the inputs' {x}, or {a} and {b}; {slope} is the Function's attribute

    # From a row with `y`, functions/math.py makes a Function of one input x, without options.
    kernel: str = ""
    gradient: str = ""  # the kernel that computes dx from dy and from what is saved
    saves: str = ""  # "x" or "y": what `forward` keeps for `backward`
    y: str = ""  # the formula of y
    derivative: str = ""  # the formula of dy/dx
    note: str = ""  # on special values

    @property
    def class_text(self) -> str:
        return f"y = {self.y}, elementwise, with dy/dx = {self.derivative}{self.note and '; '}{self.note}."

    @property
    def function_text(self) -> str:
        return f"{self.y}, elementwise."


class LossRow(NamedTuple):
    """A loss of one score and its target, and its derivative: operations that only loops/loss.pyx runs."""

    name: str  # its kernels are `NAME_loss` and `NAME_loss_grad`
    op: str  # their operations are `OP` and `OP_grad`
    constant: str  # a scalar, an array (float64, one number or one for each index of the last axis), or ""
    work: tuple[int, int]
    y: str  # the formula, of a score s and a target t
    derivative: str  # the formula of dy/ds
    c: str  # y in C, of the score a, the target b and the constant, which is s, or c if it is of an array
    slope: str  # the derivative in C


def write_cbrt(g: Any, x: Any) -> str:
    """Write ∛x as sign x · |x|^⅓: ONNX has no cube root."""
    return g.node("Mul", g.node("Sign", x), g.node("Pow", g.node("Abs", x), g.number(1 / 3)))


KERNELS = [
    KernelRow("negative(a)", 10, "y = −a.", "-a"),
    KernelRow("relu(a)", 10, "y = max(a, 0); NaN stays NaN.", "a < 0 ? 0 : a"),
    KernelRow("relu_grad(dy, y)", 10, "dx = dy where y > 0, else 0, with y = relu(x).", "b <= 0 ? 0 : a"),
    KernelRow("leaky_relu(a, double slope)", 10, "y = a where a > 0, else slope · a.", "a <= 0 ? a * s : a"),
    KernelRow(
        "leaky_relu_grad(dy, y, double slope)",
        10,
        "dx = dy where y > 0, else slope · dy, with y = leaky_relu(x, slope), slope ≥ 0.",
        "b <= 0 ? a * s : a",
    ),
    KernelRow(
        "prelu(a, slope)",
        10,
        "y = a where a > 0, else slope · a. The slope is an array that is broadcast to a.",
        "a <= 0 ? a * b : a",
    ),
    KernelRow(
        "prelu_grad(dy, x, slope)",
        10,
        "dx = dy where x > 0, else slope · dy, with y = prelu(x, slope).",
        "b <= 0 ? a * c : a",
    ),
    KernelRow("elu(a, double alpha)", 60, "y = a where a > 0, else alpha (exp a − 1).", "a > 0 ? a : s * expm1f(a)"),
    KernelRow(
        "elu_grad(dy, y, double alpha)",
        10,
        "dx = dy where y > 0, else dy (y + alpha), with y = elu(x, alpha), alpha ≥ 0.",
        "b > 0 ? a : a * (b + s)",
    ),
    KernelRow("add(a, b)", 10, "y = a + b, broadcast; either may be a number.", "a + b"),
    KernelRow("subtract(a, b)", 10, "y = a − b, broadcast; either may be a number.", "a - b"),
    KernelRow("multiply(a, b)", 10, "y = a · b, broadcast; either may be a number.", "a * b"),
    KernelRow(
        "divide(a, b)", 10, "y = a / b, broadcast; either may be a number. Division by zero gives ±inf or NaN.", "a / b"
    ),
    KernelRow("divide_grad(da, y)", 10, "db = −da y, the gradient of y = a / b, with da = dy / b.", "-(a * b)"),
    KernelRow(
        "maximum(a, b)",
        10,
        "y = the larger of a and b, broadcast; NaN if either is NaN. Either may be a number.",
        "larger(a, b)",
    ),
    KernelRow(
        "maximum_grad(dy, a, b, bint second)",
        10,
        "da = dy where maximum(a, b) is a, else 0. If `second`, db = dy where it is b, else 0. If a = b, it is a.",
        "(b < c || c != c) == (s != 0) ? a : 0",
    ),
    KernelRow(
        "minimum(a, b)",
        10,
        "y = the smaller of a and b, broadcast; NaN if either is NaN. Either may be a number.",
        "smaller(a, b)",
    ),
    KernelRow(
        "minimum_grad(dy, a, b, bint second)",
        10,
        "da = dy where minimum(a, b) is a, else 0. If `second`, db = dy where it is b, else 0. If a = b, it is a.",
        "(b > c || c != c) == (s != 0) ? a : 0",
    ),
    KernelRow("equal(a, b)", 10, "y = 1 where a = b, else 0, broadcast; either may be a number.", "a == b ? 1 : 0"),
    KernelRow(
        "where(condition, a, b)",
        10,
        "y = a where the condition is not 0, else b, broadcast. All have one dtype; one at least must be an array.",
        "a != 0 ? b : c",
    ),
    KernelRow(
        "clip(a, double low, double high)",
        10,
        "y = min(max(a, low), high); NaN stays NaN.",
        "(a < s ? s : a) > t ? t : a < s ? s : a",
    ),
    KernelRow(
        "clip_grad(dy, x, double low, double high)",
        10,
        "dx = dy where clip(x, low, high) = x, else 0.",
        "b < s || b > t ? 0 : a",
    ),
    KernelRow(
        "power(a, b)",
        1000,
        "y = a ** b, broadcast; either may be a number. NaN if a < 0 and b is not an integer.",
        "powf(a, b)",
    ),
    KernelRow(
        "power_grad_base(dy, a, b)",
        1000,
        "da = dy b a ** (b − 1), the gradient of y = a ** b; 0 · dy where b = 0.",
        "c == 0 ? 0 * a : a * c * powf(b, c - 1)",
    ),
    KernelRow(
        "power_grad_exponent(dy, a, y)",
        1000,
        "db = dy y log a, the gradient of y = a ** b; 0 · dy where a = 0 and b ≥ 0.",
        "b == 0 && fabsf(c) <= 1 ? 0 * a : a * c * logf(b)",
    ),
    KernelRow("abs(a)", 10, "y = |a|.", "fabsf(a)"),
    KernelRow("abs_grad(dy, x)", 10, "dx = dy times the sign of x; 0 where x = 0.", "b > 0 ? a : b < 0 ? -a : a * b"),
    KernelRow("sqrt(a)", 10, "y = √a; NaN for a < 0.", "sqrtf(a)"),
    KernelRow("sqrt_grad(dy, y)", 10, "dx = dy / 2y, with y = sqrt(x).", "a / (b + b)"),
    KernelRow("cbrt(a)", 40, "y = ∛a, with the sign of a.", "cbrtf(a)"),
    KernelRow("cbrt_grad(dy, y)", 10, "dx = dy / 3y², with y = cbrt(x).", "a / (3 * b * b)"),
    KernelRow("exp(a)", 60, "y = eᵃ.", "expf(a)"),
    KernelRow("log(a)", 60, "y = ln a, the natural logarithm; −inf for 0, NaN for a < 0.", "logf(a)"),
    KernelRow("sin(a)", 60, "y = sin a; NaN for ±inf.", "sinf(a)"),
    KernelRow("sin_grad(dy, x)", 60, "dx = dy cos x.", "a * cosf(b)"),
    KernelRow("cos(a)", 60, "y = cos a; NaN for ±inf.", "cosf(a)"),
    KernelRow("cos_grad(dy, x)", 60, "dx = −dy sin x.", "-a * sinf(b)"),
    KernelRow("tanh(a)", 60, "y = tanh a.", "tanhf(a)"),
    KernelRow("tanh_grad(dy, y)", 10, "dx = dy (1 − y²), with y = tanh(x).", "a * (1 - b) * (1 + b)"),
    KernelRow("sigmoid(a)", 60, "y = 1 / (1 + exp(−a)).", "sigmoid(a)"),
    KernelRow("sigmoid_grad(dy, y)", 10, "dx = dy y (1 − y), with y = sigmoid(x).", "a * b * (1 - b)"),
    KernelRow("silu(a)", 60, "y = a / (1 + exp(−a)).", "silu(a)"),
    KernelRow(
        "silu_grad(dy, x)",
        70,
        "dx = dy s (1 + x (1 − s)), with s = sigmoid(x).",
        "a * (sigmoid(b) * (1 + b * (1 - sigmoid(b))))",
    ),
    KernelRow("mish(a)", 60, "y = a tanh(log(1 + exp a)).", "a * tanhf(softplus(a))"),
    KernelRow(
        "mish_grad(dy, x)",
        80,
        "dx = dy (t + x (1 − t²) sigmoid(x)), with t = tanh(log(1 + exp x)).",
        "a * (tanhf(softplus(b)) + b * (1 - tanhf(softplus(b)) * tanhf(softplus(b))) * sigmoid(b))",
    ),
    KernelRow(
        "gelu(a)",
        120,
        "y = a Φ(a), Φ the normal distribution, and dy/da = Φ(a) + a Φ′(a), Φ′(a) = exp(−a²/2) / √(2π).",
        "gelu(a)",
        slope="gelu_slope(a, v)",
    ),
    KernelRow(
        "gelu_tanh(a)",
        70,
        "y = a (1 + tanh u) / 2, u = √(2/π) (a + 0.044715 a³), and dy/da.",
        "gelu_tanh(a)",
        slope="gelu_tanh_slope(a, v)",
    ),
    KernelRow("softplus(a)", 130, "y = log(1 + exp a).", "softplus(a)"),
    KernelRow("softplus_grad(dy, x)", 60, "dx = dy sigmoid(x).", "a * sigmoid(b)"),
    KernelRow("penalty(a, double l1, double l2)", 10, "y = l1 |a| + l2 a² / 2.", "s * fabsf(a) + t * 0.5f * a * a"),
    KernelRow(
        "penalty_grad(dy, x, double l1, double l2)",
        10,
        "dx = dy (l1 sign(x) + l2 x), dy broadcast.",
        "a * ((b > 0 ? s : b < 0 ? -s : b) + t * b)",
    ),
    KernelRow(
        "focal(a, double gamma)",
        200,
        "y = pᵞ a, p = 1 − exp(−a), a ≥ 0, and the derivative dy/da = pᵞ (1 + γ exp(−a) a / p).",
        "powf(-expm1f(-a), s) * a",
        slope="focal_slope(a, s)",
    ),
]

# function, ONNX, C; kernel, gradient, saves, y, dy/dx, note
OPERATIONS = [
    Operation("Add", "Add", "{a} + {b}"),
    Operation("Subtract", "Sub", "{a} - {b}"),
    Operation("Multiply", "Mul", "{a} * {b}"),
    Operation("Divide", "Div", "{a} / {b}"),
    Operation("Power", "Pow", "powf({a}, {b})"),
    Operation("Negative", "Neg", "-{x}"),
    Operation("Exp", "Exp", "expf({x})", "exp", "multiply", "y", "eˣ", "y"),
    Operation(
        "Log", "Log", "logf({x})", "log", "divide", "x", "ln x, the natural logarithm", "1 / x", "−inf for 0, NaN below"
    ),
    Operation("Sqrt", "Sqrt", "sqrtf({x})", "sqrt", "sqrt_grad", "y", "√x", "1 / 2y", "NaN below 0"),
    Operation("Cbrt", write_cbrt, "cbrtf({x})", "cbrt", "cbrt_grad", "y", "∛x", "1 / 3y²", "inf at 0"),
    Operation("Abs", "Abs", "fabsf({x})", "abs", "abs_grad", "x", "|x|", "the sign of x", "0 at 0"),
    Operation("Sin", "Sin", "sinf({x})", "sin", "sin_grad", "x", "sin x, x in radians", "cos x", "NaN for ±inf"),
    Operation("Cos", "Cos", "cosf({x})", "cos", "cos_grad", "x", "cos x, x in radians", "−sin x", "NaN for ±inf"),
    Operation("Maximum", "Max", "larger({a}, {b})"),
    Operation("Minimum", "Min", "smaller({a}, {b})"),
    Operation("ReLU", "Relu", "relu({x})"),
    Operation("LeakyReLU", c="leaky_relu({x}, {slope})"),
    Operation("ELU", c="elu({x}, {alpha})"),
    Operation("Tanh", "Tanh", "tanhf({x})"),
    Operation("Sigmoid", "Sigmoid", "sigmoid({x})"),
    Operation("SiLU", c="silu({x})"),
    Operation("Softplus", "Softplus", "softplus({x})"),
]

LOSSES = [
    LossRow("mse", "squared_error", "", (15, 15), "(s − t)²", "2 (s − t)", "(a - b) * (a - b)", "2 * (a - b)"),
    LossRow(
        *("mae", "absolute_error", "", (15, 15), "|s − t|", "sign(s − t)"),
        *("fabsf(a - b)", "a > b ? 1 : a < b ? -1 : a - b"),
    ),
    LossRow(
        *("huber", "huber", "double delta", (15, 15)),
        *("d²/2 if |d| < delta, else of delta (|d| − delta/2), d = s − t", "clip(s − t, −delta, delta)"),
        "fabsf(a - b) > s ? s * (fabsf(a - b) - 0.5f * s) : 0.5f * (a - b) * (a - b)",
        "a - b < -s ? -s : a - b > s ? s : a - b",
    ),
    LossRow(
        *("sigmoid", "cross_entropy", "cnp.ndarray positive not None", (130, 60)),
        *("−positive t log p − (1 − t) log(1 − p), p = sigmoid(s)", "((1 + (positive − 1) t) p − positive t)"),
        "(1 - b) * a + (1 + (c - 1) * b) * softplus(-a)",
        "(1 + (c - 1) * b) * sigmoid(a) - c * b",
    ),
    LossRow(
        *("quantile", "quantile", "cnp.ndarray quantiles not None", (15, 15)),
        *("q d if d ≥ 0, else (q − 1) d, d = t − s, q of the quantiles", "(−q if t > s, 1 − q if t < s, else 0)"),
        *("(b - a >= 0 ? c : c - 1) * (b - a)", "b > a ? -c : b < a ? 1 - c : b - a"),
    ),
    LossRow("poisson", "poisson", "", (60, 60), "exp(s) − t s", "(exp(s) − t)", "expf(a) - b * a", "expf(a) - b"),
]


def by_function(column: str) -> dict[str, Any]:
    """Return a column's entries by the Function's name, without the empty ones."""
    return {row.function: entry for row in OPERATIONS if (entry := getattr(row, column))}


#: The names of all operations, in the order of `Op`.
OPS = (
    *("nothing", "copy"),
    *[kernel.name for kernel in KERNELS],
    *[name for loss in LOSSES for name in (loss.op, f"{loss.op}_grad")],
)
