"""caffelite's docstrings, which are plain text, as reStructuredText.

In them backticks are names, **words** are bold, an indented block is code or a formula, and all other characters stand
for themselves.
Sections such as Parameters and Raises are NumPy's; napoleon sees to them.
"""

import ast
import re
import textwrap
from pydoc import ErrorDuringImport, locate

from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, NumpyDocstring

import caffelite

SECTIONS = {"Parameters", "Returns", "Raises", "Attributes", "Yields"}
#: Names that share a description stay together, and attributes are listed as parameters are.
NUMPY = Config(napoleon_use_param=False, napoleon_custom_sections=[("Attributes", "params_style")])


def setup(app: Sphinx) -> dict:
    app.connect("autodoc-process-docstring", to_restructured_text)
    app.connect("autodoc-process-signature", shorten_signature)
    app.connect("missing-reference", resolve_short_name)
    return {"parallel_read_safe": True}


def to_restructured_text(app, what, name, obj, options, lines):
    """Mark the blocks and escape what would be markup, in place."""
    written: list[str] = []
    text: list[str] = []  # the lines since the last block or section
    in_section = False

    def flush():
        written.extend(escape("\n".join(text)).split("\n") if text else [])
        text.clear()

    rest = list(lines)
    while rest:
        if len(rest) > 1 and rest[0] in SECTIONS and set(rest[1]) == {"-"}:
            flush()
            in_section = True
            written += [rest.pop(0), rest.pop(0)]
        elif rest[0].startswith("    ") and not in_section:
            flush()
            block = []
            while rest and (not rest[0].strip() or rest[0].startswith("    ")):
                block.append(rest.pop(0))
            code = textwrap.dedent("\n".join(block)).strip("\n")
            written += ["", f".. code-block:: {'python' if is_python(code) else 'text'}", ""]
            written += [*textwrap.indent(code, "    ").split("\n"), ""]
        else:
            text.append(rest.pop(0))
            if in_section and not text[-1] and rest and not rest[0].startswith(" ") and " : " not in rest[0]:
                in_section = False
                text.append("")  # two empty lines end a section
    flush()
    if any(line in SECTIONS for line in lines):
        written = str(NumpyDocstring(written, NUMPY, app, what, name, obj, options)).split("\n")
    lines[:] = written


def shorten_signature(app, what, name, obj, options, signature, returned):
    """Return a signature without what says nothing: `Any`, and that a constructor returns None."""
    signature = re.sub(r": (?:~?typing\.)?Any\b", "", signature or "")
    signature = re.sub(r"<class 'numpy\.(\w+)'>", r"np.\1", signature)
    return signature or None, None if returned in {"None", "Any", "~typing.Any"} else returned


def is_python(text: str) -> bool:
    """Whether a block is a program, and no formula or listing."""
    if not re.search(r"[=(.]", text) or re.search(r"[←·√Σ²]", re.sub(r"#.*", "", text)):
        return False
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def escape(text: str) -> str:
    """Text with what is in backticks as it is, **words** bold, and everything else plain."""
    parts = re.split(r"(`[^`]+`|(?<!\w)\*\*\w[^*`]*\w\*\*(?!\w))", text)
    return "".join(format_code(part) if i % 2 else escape_plain(part) for i, part in enumerate(parts))


def escape_plain(text: str) -> str:
    text = re.sub(r"([*|\\])|_(?=\W|$)", lambda match: "\\" + match[0], text)
    return re.sub(r"^(?=\w+[.)] )", r"\\", text, flags=re.MULTILINE)  # C. Guo is no third point of a list


def format_code(quoted: str) -> str:
    """Return a name may be a link; what is more than a name is code, and `mean` an attribute sooner than `cl.mean`."""
    if quoted.startswith("*"):
        return quoted
    is_word = quoted.islower() and hasattr(caffelite, quoted.strip("`"))
    return quoted if re.fullmatch(r"`[\w.]+`", quoted) and not is_word else f"`{' '.join(quoted.split())}`"


def resolve_short_name(app, env, node, contnode):
    """`cl.Linear` is `caffelite.Linear`, and the `caffelite.tensor.Tensor` of an annotation `caffelite.Tensor`."""
    if node.get("refdomain") != "py":
        return None
    target = node.get("reftarget", "")
    domain = env.domains.python_domain
    candidates = [re.sub(r"^cl\.", "caffelite.", target)]
    if target.startswith("caffelite."):
        name = target.rpartition(".")[2]
        try:
            found = locate(target)
        except ErrorDuringImport:  # of a module whose library is not installed
            found = None
        if found in (None, getattr(caffelite, name, None)):  # and not another one of this name
            candidates.append(f"caffelite.{name}")
    for name in candidates:
        if name in domain.objects and name != target:
            return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", name, node, contnode)
    return None
