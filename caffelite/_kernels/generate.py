"""Write what follows from the sources: setup.py does, before it compiles. Git ignores the files.

generated/ops.pxi          the names of the elementwise loops' operations
generated/operations.pxi   the bindings of the elementwise kernels, both from the table `operations.py`
bindings.pyi, kernel.pyi…  the types of the compiled modules, from their sources
functions/math.pyi         the Functions of the table
core/tensor_methods.pyi    Tensor's methods, from the lines `Tensor.name = function` in functions/
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
STUB_HEAD = "from typing import Any\n\nimport numpy as np\n"
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
    "elementwise_with_slope": "tuple[np.ndarray, np.ndarray | None]",
    **{name: name for name in ("str", "list", "tuple", "dict", "bool")},
}


def write_all() -> None:
    """Write the files that have changed."""
    (KERNELS / "generated").mkdir(exist_ok=True)
    write(KERNELS / "generated" / "ops.pxi", ops())
    write(KERNELS / "generated" / "operations.pxi", "".join(map(binding, TABLE["KERNELS"])))
    for name in COMPILED:
        write(KERNELS / f"{name}.pyi", stub(read(KERNELS / f"{name}.pyx")))
    write(PACKAGE / "functions" / "math.pyi", math_stub())
    write(PACKAGE / "core" / "tensor_methods.pyi", method_stub())


def write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != HEAD + text:
        path.write_text(HEAD + text, encoding="utf-8")


# ---- Cython of the table ----


def ops() -> str:
    losses = [name for loss in TABLE["LOSSES"] for name in (loss, f"{loss}_grad")]
    names = ["nothing", "copy", *[kernel.name for kernel in TABLE["KERNELS"]], *losses]
    return "cdef enum Op:\n" + "".join(f"    {name.upper()}\n" for name in names)


def binding(kernel: Any) -> str:
    """Return a `Kernel`, and the function that Python calls."""
    name, inputs = kernel.signature.rstrip(")").split("(")
    numbers = [x.split()[1] for x in inputs.split(", ") if " " in x]
    arrays = [x for x in inputs.split(", ") if " " not in x]
    constant, work = f"{name.upper()}_KERNEL", f"work={kernel.work}"
    if kernel.returns_slope:
        work, inputs = f"writes=0b101, {work}", f"{inputs}, out=None, bint slope=True"
        call = f"elementwise_with_slope({', '.join([constant, 'out', *arrays, 'slope', *numbers])})"
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
    line = f"{indent}def {found['name']}({', '.join(map(parameter, split(found['inputs'])))}) -> {returned}:"
    text = f'\n{indent}    """{found["text"].strip()}"""\n' if found["text"] else " ...\n"
    return (found["decorator"] or "") + line + text


def split(text: str) -> list[str]:
    """Split at commas, those in brackets apart."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def parameter(text: str) -> str:
    """Return a parameter in Python, such as `x: np.ndarray | None = None` for `cnp.ndarray x=None`."""
    declared, _, default = text.replace(" not None", "").partition("=")
    *types, name = declared.split()
    if name in ("self", "*"):
        return name
    kind = TYPES.get(types[0], "Any") if types else "Any"
    is_none_taken = default == "None" or (kind == "np.ndarray" and "not None" not in text)
    if is_none_taken and kind != "Any":
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
    lines = re.findall(r"^ +return\b(.*(?:\n {15,}.*)*)$", scope, re.MULTILINE)
    types = {expression_type(line.strip(), scope, source) for line in lines} or {"None"}
    return types.pop() if len(types) == 1 else "Any"


def expression_type(text: str, scope: str, source: str) -> str:
    """Return the type of a name that is declared in this scope, a call of a declared function, or a tuple of them."""
    parts = split(text.removeprefix("(").removesuffix(")")) if text.startswith("(") else split(text)
    if len(parts) > 1:
        return f"tuple[{', '.join(expression_type(part, scope, source) for part in parts)}]"
    if called := re.fullmatch(r"(\w+)\([^()]*(?:\([^()]*(?:\([^()]*\)[^()]*)*\)[^()]*)*\)", text):
        declared = re.search(rf"^cp?def (?:inline )?([\w.]+) {called[1]}\(", source, re.MULTILINE)
        return TYPES.get(declared[1] if declared else called[1], "Any")
    declared = re.search(rf"\b(cnp\.ndarray|tuple|bint|double|Py_ssize_t|int) (?:[^\n(]*, )?{re.escape(text)}\b", scope)
    return TYPES[declared[1]] if declared else "None" if text in ("", "None") else "Any"


# ---- stubs of the table and of Tensor's methods ----


def math_stub() -> str:
    rows = [row for row in TABLE["OPERATIONS"] if row.y]
    parts = [
        STUB_HEAD,
        "\nfrom caffelite.core.tensor import Tensor\n",
        "from caffelite.functions.elementwise import ElementwiseFunction\n\n",
        f"__all__ = {sorted(row.kernel.name for row in rows)!r}\n\nFUNCTIONS: dict[str, type[ElementwiseFunction]]\n",
    ]
    for row in rows:
        parts.append(f'\nclass {row.function}(ElementwiseFunction):\n    """{row.class_text}"""\n')
        parts.append(f'\ndef {row.kernel.name}(x: Any) -> Tensor:\n    """{row.function_text}"""\n')
    return "".join(parts)


def method_stub() -> str:
    parts = [STUB_HEAD, "\nfrom caffelite.core.autograd import Node\nfrom caffelite.core.tensor import Tensor\n"]
    parts.append("\nclass TensorMethods(Node):\n")
    for path in sorted((PACKAGE / "functions").glob("*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
        for called in [node.value for node in module.body if isinstance(node, ast.Expr)]:
            if not isinstance(called, ast.Call) or not isinstance(called.func, ast.Name):
                continue
            if called.func.id == "add_operator":
                name = ast.literal_eval(called.args[0])
                parts += [f"    def __{prefix}{name}__(self, other: Any) -> Tensor: ...\n" for prefix in ("", "r")]
            elif called.func.id == "add_methods":
                parts += [method(functions[argument.id]) for argument in called.args if isinstance(argument, ast.Name)]
                for name, value in [(keyword.arg, keyword.value) for keyword in called.keywords]:
                    inputs = [x.arg for x in value.args.args[1:]] if isinstance(value, ast.Lambda) else ["other"]
                    parts.append(
                        f"    def {name}({', '.join(['self', *[f'{x}: Any' for x in inputs]])}) -> Tensor: ...\n"
                    )
    for row in TABLE["OPERATIONS"]:
        if row.y:
            parts.append(f'    def {row.kernel.name}(self) -> Tensor:\n        """{row.function_text}"""\n')
    return "".join(parts)


def method(function: ast.FunctionDef) -> str:
    """Return the function as a method: its first argument is `self`."""
    function.args.args[0] = ast.arg("self")
    head = (
        f"    def {function.name}({ast.unparse(function.args)}) -> {ast.unparse(function.returns or ast.Name('Any'))}:"
    )
    return f'{head}\n        """{(ast.get_docstring(function) or "").partition(chr(10))[0]}"""\n'


if __name__ == "__main__":
    write_all()
