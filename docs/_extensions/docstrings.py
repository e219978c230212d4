"""caffelite's docstrings, which are plain text, as reStructuredText.

In them backticks are names, an indented block is code or a formula, and all other characters stand for themselves.
Sections such as Parameters and Returns are NumPy's; napoleon, which comes after, sees to them.
"""

import ast
import re
import textwrap

from sphinx.application import Sphinx

SECTIONS = {"Parameters", "Returns", "Raises", "Attributes", "Yields", "Notes", "Examples"}


def setup(app: Sphinx) -> dict:
    app.connect("autodoc-process-docstring", to_restructured_text, priority=100)  # napoleon is at 500
    app.connect("missing-reference", find_by_its_short_name)
    return {"parallel_read_safe": True}


def to_restructured_text(app, what, name, obj, options, lines):
    """Mark the blocks and escape what would be markup, in place."""
    written: list[str] = []
    section = False
    position = 0
    while position < len(lines):
        line = lines[position]
        if position + 1 < len(lines) and line in SECTIONS and set(lines[position + 1]) == {"-"}:
            section = line not in {"Notes", "Examples"}
            written += lines[position : position + 2]
            position += 2
        elif line.startswith("    ") and not section:
            block = []
            while position < len(lines) and (not lines[position].strip() or lines[position].startswith("    ")):
                block.append(lines[position])
                position += 1
            text = textwrap.dedent("\n".join(block)).strip("\n")
            written += ["", f".. code-block:: {'python' if is_python(text) else 'text'}", ""]
            written += [*textwrap.indent(text, "    ").split("\n"), ""]
        else:
            if section and not line.strip():  # a section ends where text is at the margin again
                following = lines[position + 1] if position + 1 < len(lines) else ""
                section = following.startswith(" ") or " : " in following
            written.append(escaped(line))
            position += 1
    lines[:] = written


def is_python(text: str) -> bool:
    """Whether a block is a program, and no formula or listing."""
    if not re.search(r"[=(.]", text) or re.search(r"[←·√Σ²]", re.sub(r"#.*", "", text)):
        return False
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def escaped(line: str) -> str:
    """A line with its backticks as they are, and everything else plain text."""
    parts = re.split(r"(`[^`]+`)", line)
    return "".join(name_or_code(part) if i % 2 else plain(part) for i, part in enumerate(parts))


def plain(text: str) -> str:
    return re.sub(r"([*|\\])|_(?=\W|$)", lambda match: "\\" + match[0], text)


def name_or_code(quoted: str) -> str:
    """A name may be a link; what is more than a name is code."""
    return quoted if re.fullmatch(r"`[\w.]+`", quoted) else f"`{quoted}`"


def find_by_its_short_name(app, env, node, contnode):
    """`cl.Linear`, and the `caffelite.tensor.Tensor` of an annotation, are `caffelite.Linear` and `caffelite.Tensor`."""
    if node.get("refdomain") != "py":
        return None
    target = node.get("reftarget", "")
    domain = env.domains.python_domain
    candidates = [re.sub(r"^cl\.", "caffelite.", target)]
    if target.startswith("caffelite."):
        candidates.append(f"caffelite.{target.rpartition('.')[2]}")
    for name in candidates:
        if name in domain.objects and name != target:
            return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", name, node, contnode)
    return None
