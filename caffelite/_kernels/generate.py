"""Write the files that follow from others. setup.py does so before it compiles. Git ignores these files.

The elementwise kernels and losses are rows of tables in `operations.py`. From them come the names of operations in the
loops (`generated/ops.pxi`), the bindings (`generated/operations.pxi`), and types of Functions (`functions/math.pyi`).
From each family of loops come the lines that publish its loops (`generated/publish_….pxi`).

For type checkers and editors there is a stub of each compiled module (`bindings.pyi` and others), from its sources. The
stub of Tensor's methods (`core/tensor_methods.pyi`) comes from the calls of `add_methods` in functions/.
"""

import ast
import re
import runpy
from pathlib import Path
from typing import Any

KERNELS = Path(__file__).parent
PACKAGE = KERNELS.parent
TABLE: dict[str, Any] = runpy.run_path(str(KERNELS / "operations.py"))

HEAD = "# _kernels/generate.py writes this file.\n"
STUB_HEAD = "import weakref\nfrom typing import Any\n\nimport numpy as np\n"
COMPILED = ("bindings", "guards", "kernel", "launch", "record", "replay")

#: Cython's types in Python.
TYPES = {
    "cnp.ndarray": "np.ndarray",
    "cnp.dtype": "np.dtype",
    "bint": "bool",
    "int": "int",
    "Py_ssize_t": "int",
    "double": "float",
    "void": "None",
    "Op": "int",
    "elementwise_with_derivative": "tuple[np.ndarray, Any]",
    **dict.fromkeys(("extreme", "soft_loss"), "tuple[np.ndarray, np.ndarray]"),
    "feature_gradients": "tuple[np.ndarray, np.ndarray, np.ndarray]",
    **dict.fromkeys(("copy", "soft_loss_grad"), "np.ndarray"),
    **{name: name for name in ("str", "list", "tuple", "dict", "bool")},
}


def write_all() -> None:
    """Write the files that have changed."""
    (KERNELS / "generated").mkdir(exist_ok=True)
    write(KERNELS / "generated" / "ops.pxi", ops())
    bindings = [*map(binding, TABLE["KERNELS"]), *map(loss_bindings, TABLE["LOSSES"])]
    write(KERNELS / "generated" / "operations.pxi", "\n".join(bindings))
    for path in (KERNELS / "loops").glob("*.pyx"):
        if (name := f"publish_{path.stem}.pxi") in (source := path.read_text(encoding="utf-8")):
            write(KERNELS / "generated" / name, publication(source))
    for name in COMPILED:
        write(KERNELS / f"{name}.pyi", stub(read(KERNELS / f"{name}.pyx")))
    write(PACKAGE / "functions" / "math.pyi", math_stub())
    write(PACKAGE / "core" / "tensor_methods.pyi", method_stub())


def write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != HEAD + text:
        path.write_text(HEAD + text, encoding="utf-8", newline="\n")


# ---- Cython of the table ----


def ops() -> str:
    return "cdef enum Op:\n" + "".join(f"    {name.upper()}\n" for name in TABLE["OPS"])


def binding(kernel: Any) -> str:
    """Return a `Kernel`, and the function that Python calls."""
    name, inputs = kernel.signature.rstrip(")").split("(")
    numbers = [x.split()[1] for x in inputs.split(", ") if " " in x]
    arrays = [x for x in inputs.split(", ") if " " not in x]
    constant, work = f"{name.upper()}_KERNEL", f"work={kernel.work}"
    if kernel.slope:
        work, inputs = f"writes=0b101, {work}", f"{inputs}, out=None, bint derivative=True"
        call = f"elementwise_with_derivative({', '.join([constant, 'out', *arrays, 'derivative', *numbers])})"
    else:
        arrays += ["None"] * (3 - len(arrays)) if numbers else []
        call = f"elementwise({', '.join([constant, 'out', *arrays, *numbers])})"
        inputs += ", out=None"
    return f'''
cdef Kernel {constant} = Kernel("{name}", op={name.upper()}, {work})


def {name}({inputs}):
    """{kernel.formula}"""
    return {call}
'''


def loss_bindings(loss: Any) -> str:
    """Return the `Kernel`s of a loss of single scores and of its gradient, and the functions that Python calls."""
    name, op, (work, grad_work) = f"{loss.name}_loss", loss.op.upper(), loss.work
    kernel, grad_kernel = f"{name.upper()}_KERNEL", f"{name.upper()}_GRAD_KERNEL"
    declared = [loss.constant] if loss.constant else []
    constant = loss.constant.split()[1] if loss.constant else None
    scalar, array = (constant, None) if loss.constant.startswith("double") else (0, constant)
    inputs = "cnp.ndarray scores not None, cnp.ndarray targets not None"
    return f'''
cdef Kernel {kernel} = Kernel("{name}", loops="pointwise_loss", work={work})
cdef Kernel {grad_kernel} = Kernel("{name}_grad", loops="pointwise_loss_grad", work={grad_work})


def {name}({", ".join([inputs, *declared])}):
    """Return the mean over each row of {loss.y}."""
    return pointwise_loss({kernel}, {op}, scores, targets, {scalar}, {array})


def {name}_grad(
        {inputs}, cnp.ndarray dy not None,
        {", ".join([*declared, "cnp.ndarray row_weights=None"])}):
    """dscores = dy row_weights {loss.derivative} / k, for rows of k elements."""
    return pointwise_loss({grad_kernel}, {op}_GRAD, scores, targets, {scalar}, {array}, dy, row_weights)
'''


# ---- Cython of the loops ----


def publication(source: str) -> str:
    """Return the lines that publish the loops of a family, its functions of a call, each by its own name."""
    signature = r"^cdef int (\w+)\((\w+)\* \w+, const Call\* call, Py_ssize_t begin, Py_ssize_t end\)"
    source = read(KERNELS / "loops" / "family.pxd") + source
    fused = dict(re.findall(r"^ctypedef fused (\w+):((?:\n {4}\w+)+)", source, re.MULTILINE))
    lines = ["cdef at_load publish_all() noexcept nogil:"]
    for name, number in re.findall(signature, source, re.MULTILINE):
        addresses = [f"<Loop> {name}[{kind}]" for kind in fused.get(number, "").split()] or [f"<Loop> {name}"]
        lines.append(f'    publish("{name}", {", ".join(addresses)})')
    return "\n".join([*lines, ""])


# ---- stubs of Cython ----


def read(path: Path) -> str:
    """Return the source with the files that it includes."""
    return re.sub(
        r'^include "(.*)"$',
        lambda found: read(path.parent / found[1]),
        path.read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )


DEFINITION = re.compile(
    r"""(?P<decorator>^[ ]*@(?:property|\w+\.setter)\n)?
        ^(?P<indent>[ ]*)(?P<kind>cdef[ ]class|class|def|cpdef)[ ](?:(?P<type>[\w.]+)[ ])?(?P<name>\w+)
        (?:\((?P<inputs>(?:[^()]|\([^()]*\))*)\))?[^\n:]*:\n(?:[ ]+\"{3}(?P<text>.*?)(?:\"{3})?\n)?""",
    re.MULTILINE | re.VERBOSE,
)


def stub(source: str) -> str:
    """Return the types of what Python sees of a Cython module."""
    parts, in_class = [STUB_HEAD], False
    for found in DEFINITION.finditer(source):
        is_class = found["kind"].endswith("class")
        in_class = is_class or (in_class and found["indent"] == "    ")
        if is_class:
            base = f"({found['inputs']})" if found["inputs"] else ""
            parts.append(f"\nclass {found['name']}{base}:\n{ATTRIBUTES}")
        elif found["inputs"] is not None and (found["name"] in WITH_AND_LEN or not found["name"].startswith("__")):
            parts.append(definition(found, returned_type(found, source)))
    names = re.findall(r"^(?:cpdef enum:\n)?(?: {4})?([A-Z][A-Z_0-9]+) *= [^=]", source, re.MULTILINE)
    return "".join([*parts, "\n", *[f"{name}: Any\n" for name in dict.fromkeys(names)]])


WITH_AND_LEN = ("__enter__", "__exit__", "__len__")
ATTRIBUTES = """\
    def __init__(self, *arguments: Any, **options: Any) -> None: ...
    def __getattr__(self, name: str) -> Any: ...
    def __setattr__(self, name: str, value: Any) -> None: ...
"""


def definition(found: re.Match[str], returned: str) -> str:
    indent = found["indent"]
    inputs = ", ".join(map(parameter, re.split(r",\s*", found["inputs"])))
    line = f"{indent}def {found['name']}({inputs}) -> {returned}:"
    text = f'\n{indent}    """{found["text"].strip()}"""\n' if found["text"] else " ...\n"
    return (found["decorator"] or "") + line + text


def parameter(text: str) -> str:
    """Return a parameter in Python, such as `x: np.ndarray | None = None` for `cnp.ndarray x=None`."""
    declared, _, default = text.replace(" not None", "").partition("=")
    *types, name = declared.split() or [""]
    if name in ("", "self", "*"):
        return name
    kind = TYPES.get(types[0], "Any") if types else "Any"
    if kind != "Any" and (default == "None" or (kind == "np.ndarray" and "not None" not in text)):
        kind += " | None"
    return f"{name}: {kind}" + (f" = {default}" if default else "")


def returned_type(found: re.Match[str], source: str) -> str:
    """Return the type of what a function returns, if all its `return` lines show the same one."""
    if found["type"]:
        return TYPES.get(found["type"], "Any")
    body = re.match(rf"(?:{found['indent']}    .*\n|\n)*", source[found.end() :])
    if body is None or not body[0].strip() or "yield" in body[0]:
        return "Any"
    scope = f"{found['inputs']}\n{body[0]}"
    results = re.findall(r"^( +)return\b(.*(?:\n\1 .*)*)$", scope, re.MULTILINE)
    types = {expression_type(f"({text.strip() or None})", scope, source) for _, text in results} or {"None"}
    return types.pop() if len(types) == 1 else "Any"


def expression_type(text: str, scope: str, source: str) -> str:
    """Return the type of a name that is declared in this scope, a call of a declared function, or a tuple of them."""
    node = ast.parse(re.sub(r"<[\w. *]+>|&(?=\w)", "", text), mode="eval").body  # without casts and addresses
    if isinstance(node, ast.Tuple):
        return f"tuple[{', '.join(expression_type(ast.unparse(part), scope, source) for part in node.elts)}]"
    if isinstance(node, ast.Constant) and node.value is None:
        return "None"
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        declared = re.search(rf"^cp?def (?:inline )?([\w.]+) {name}\(", source, re.MULTILINE)
        return TYPES.get(name) or TYPES.get(declared[1] if declared else "", "Any")
    name = re.escape(ast.unparse(node))
    declared = re.search(rf"\b(cnp\.ndarray|tuple|bint|double|Py_ssize_t|int) (?:[^\n(]*, )?{name}\b", scope)
    return TYPES[declared[1]] if declared else "Any"


# ---- stubs of the table and of Tensor's methods ----


def math_stub() -> str:
    rows = [row for row in TABLE["OPERATIONS"] if row.y]
    parts = [
        STUB_HEAD,
        "\nfrom caffelite.core.function import Function\nfrom caffelite.core.tensor import Tensor\n\n",
        f"__all__ = {sorted(row.kernel for row in rows)!r}\n\nFUNCTIONS: dict[str, type[Function]]\n",
    ]
    for row in rows:
        parts.append(f'\nclass {row.function}(Function):\n    """{row.class_text}"""\n')
        parts.append("    def forward(self, *inputs: Any) -> Any: ...\n    def backward(self, dy: Any) -> Any: ...\n")
        parts.append(f'\ndef {row.kernel}(x: Any) -> Tensor:\n    """{row.function_text}"""\n')
    return "".join(parts)


def method_stub() -> str:
    parts = [STUB_HEAD, "\nfrom caffelite.core.autograd import Node\nfrom caffelite.core.tensor import Tensor\n"]
    parts.append("\nclass TensorMethods(Node):\n")
    for path in sorted((PACKAGE / "functions").glob("*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
        for call in [node.value for node in module.body if isinstance(node, ast.Expr)]:
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "add_operator":
                name = ast.literal_eval(call.args[0])
                parts += [f"    def __{prefix}{name}__(self, other: Any) -> Tensor: ...\n" for prefix in ("", "r")]
            elif isinstance(call, ast.Call) and ast.unparse(call.func) == "add_methods":
                parts += [method(functions[argument.id]) for argument in call.args if isinstance(argument, ast.Name)]
                for keyword in call.keywords:
                    value = keyword.value  # a lambda; or an operator of two operands
                    inputs = [x.arg for x in value.args.args[1:]] if isinstance(value, ast.Lambda) else ["other"]
                    parameters = ", ".join(["self", *[f"{name}: Any" for name in inputs]])
                    parts.append(f"    def {keyword.arg}({parameters}) -> Tensor: ...\n")
    for row in TABLE["OPERATIONS"]:
        if row.y:
            parts.append(f'    def {row.kernel}(self) -> Tensor:\n        """{row.function_text}"""\n')
    return "".join(parts)


def method(function: ast.FunctionDef) -> str:
    """Return the function as a method: its first argument is `self`."""
    function.args.args[0] = ast.arg("self")
    returned = ast.unparse(function.returns) if function.returns else "Any"
    text = (ast.get_docstring(function) or "").split("\n")[0]
    return f'    def {function.name}({ast.unparse(function.args)}) -> {returned}:\n        """{text}"""\n'


if __name__ == "__main__":
    write_all()
