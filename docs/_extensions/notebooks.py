"""Each page with programs is also a notebook to download. It is written to docs/_notebooks/ before the pages are read.

A notebook has the page's programs and its text in plain Markdown: links to pages with programs lead to their
notebooks, links by name become names, those to the playground its command, included files become code, and exercises
their text. A button at the top of the page leads to it, and `all.zip` has all of them. In `students.zip`, the
signatures of the functions and classes, or an empty cell, are in place of each solution.
tests/tools/classroom.py makes both kinds, without Sphinx.
"""

from __future__ import annotations

import ast
import re
import shutil
import tempfile
import textwrap
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
from exercise_text import format_text

import caffelite

if TYPE_CHECKING:  # the tests and the classroom make notebooks without Sphinx
    from sphinx.application import Sphinx

DOCS = Path(__file__).parents[1]
FENCE = re.compile(r"^(```+)\{([\w-]+)\}[ ]?([^\n]*)\n(.*?)^\1$\n?", re.DOTALL | re.MULTILINE)

SOLUTION = "code_prompt_show: Show a solution"  # of a closed cell


def setup(app: Sphinx) -> dict:
    app.connect("builder-inited", write_all)
    app.connect("source-read", link_to_notebook)
    return {"parallel_read_safe": True}


def pages(folder):
    """Return the pages in a folder that have programs."""
    return sorted(page for page in folder.glob("*.md") if "```{code-cell}" in page.read_text())


def write_all(app):
    folder = Path(app.srcdir) / "_notebooks"
    shutil.rmtree(folder, ignore_errors=True)
    write(pages(Path(app.srcdir)), folder)
    with tempfile.TemporaryDirectory() as students:
        write(pages(Path(app.srcdir)), Path(students), solutions=False)
        for name, source in (("all.zip", folder), ("students.zip", Path(students))):
            with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
                for path in sorted(source.glob("*.ipynb")):
                    archive.write(path, f"caffelite/{path.name}")


def write(pages, folder, solutions=True):
    """Write the notebooks of pages to a folder."""
    folder.mkdir(exist_ok=True)
    for page in pages:
        nbformat.write(notebook(page, solutions), folder / f"{page.stem}.ipynb")


def link_to_notebook(app, name, source):
    if "```{code-cell}" in source[0] and "/" not in name and name != "index":
        button = f"{{download}}`Download as a notebook <_notebooks/{name}.ipynb>`"
        line = f"\n:::{{container}} notebook\n{button} · [How to run it](running.md#in-a-notebook)\n:::\n"
        source[0] = re.sub(r"^# .*\n", lambda match: match[0] + line, source[0], count=1, flags=re.MULTILINE)


def notebook(page, solutions=True):
    """Return the notebook of a page, with or without its solutions."""
    text = re.sub(r"\A---\n.*?\n---\n", "", page.read_text(), flags=re.DOTALL)
    result, markdown = nbformat.v4.new_notebook(), ""
    result.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    position = 0
    for match in FENCE.finditer(text):
        markdown += text[position : match.start()]
        position = match.end()
        if match[2] != "code-cell":
            markdown += to_markdown(match, page.parent)
            continue
        options = re.match(r"(?::.*\n)*", match[4])[0]
        if "remove-cell" not in options:
            add(result, markdown)
            markdown = ""
            code = match[4][len(options) :].strip("\n")
            is_left_out = SOLUTION in options and not solutions
            cell = nbformat.v4.new_code_cell(make_stub(code) if is_left_out else code)
            if "hide-" in options and not is_left_out:
                cell.metadata["jupyter"] = {"source_hidden": True}
            # "Run all" goes on after an exercise that is not done, and on a computer without the disassembler objdump.
            if "raises-exception" in options or is_left_out or "machine_code(" in code:
                cell.metadata["tags"] = ["raises-exception"]
            result.cells.append(cell)
    add(result, markdown + text[position:])
    for i, cell in enumerate(result.cells):
        cell["id"] = f"cell-{i}"
    nbformat.validate(result)
    return result


def make_stub(solution):
    """Return the cell in place of a solution: for an exercise, the signatures of the answer, and the check."""
    check = re.search(r"^cl\.exercises\.check\(.*, (\w+)\)$", solution, re.MULTILINE)
    if check is None:
        return "# your answer"
    (answer,) = (node for node in ast.parse(solution).body if check[1] in defined_names(node))
    for node in ast.walk(answer):
        if isinstance(node, ast.FunctionDef):
            node.body = [ast.Expr(ast.Constant(...))]
        elif isinstance(node, ast.Dict):
            node.values = [ast.Constant(...) for _ in node.keys]
    code = ast.unparse(answer).replace(":\n\n", ":\n")  # no blank line before the first method
    return f"# your answer\n{code}\n\n\n{check[0]}"


def defined_names(node):
    """Return the names that a statement defines."""
    return [node.name] if hasattr(node, "name") else [target.id for target in getattr(node, "targets", ())]


def title(name):
    return re.search(r"^# (.*)$", (DOCS / f"{name}.md").read_text(), re.MULTILINE)[1]


def link(text, name):
    """Return a link to a page's notebook, or the text alone if the page has no programs."""
    page = DOCS / f"{name}.md"
    return f"[{text}]({name}.ipynb)" if page.exists() and "```{code-cell}" in page.read_text() else f"*{text}*"


def name_playground(match):
    """Return a link to the playground as words, with the command and the step of the lesson that they lead to."""
    words, step = match.groups()
    return f"*{words}* (`caffelite playground`{f', step {step}' if step else ''})"


def add(notebook, text):
    text = re.sub(r"\{download\}`[^`]*`", "", text)
    text = re.sub(r"\{doc\}`([\w-]+)`", lambda match: link(title(match[1]), match[1]), text)
    text = re.sub(r"(?<!!)\[([^\]]+)\]\(([\w-]+)\.md[^)]*\)", lambda match: link(*match.groups()), text)
    text = re.sub(r"\{playground\}`([^`<]*?)(?:\s*<(\d+)>)?`", name_playground, text)
    text = re.sub(r"\{\w+\}`~?([^`<]*?)(?:\s*<[^>`]*>)?`", r"*\1*", text)  # links by name
    text = re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:|[\w-]+\.ipynb\))[^)]*\)", r"*\1*", text)
    text = re.sub(r"^:+\{admonition\} (.*)\n(:[\w-]+:.*\n)*", r"**\1**\n", text, flags=re.MULTILINE)
    text = re.sub(r"^\([\w-]+\)=\n|^:+(\{.*\}.*)?\n", "", text, flags=re.MULTILINE).strip()
    if text:
        notebook.cells.append(nbformat.v4.new_markdown_cell(text))


def to_markdown(match, folder):
    """Return a directive as Markdown."""
    _, kind, argument, body = match.groups()
    options = dict(re.findall(r"^:([\w-]+): *(.*)$", body, re.MULTILINE))
    content = re.sub(r"\A(?::.*\n)*\n?", "", body)
    if kind == "literalinclude":
        code = read_include(folder / argument, options)
        return f"`{Path(argument).name}`:\n\n```{options.get('language', '')}\n{code}\n```\n"
    if kind == "exercise":
        exercise = caffelite.exercises.EXERCISES[argument.strip()]
        return f"*{exercise.effort}*\n\n{format_text(exercise.task)}\n"
    if kind in ("admonition", "note", "tip"):
        quoted = textwrap.indent(content.strip(), "> ", lambda line: True)
        return f"> **{argument or kind.title()}**\n>\n{quoted}\n"
    if kind in ("toctree", "drawing", "index"):
        return ""
    return f"```{argument}\n{content}```\n"


def read_include(path, options):
    """Return the lines of a file that `literalinclude` shows, as far as our pages use its options."""
    lines = path.read_text().splitlines()
    begin = next(i for i, line in enumerate(lines) if options.get("start-at", "").strip('"') in line)
    rest = lines[begin:]
    if "end-before" in options:
        rest = rest[: next(i for i, line in enumerate(rest) if options["end-before"].strip('"') in line)]
    if "end-at" in options:
        rest = rest[: 1 + next(i for i, line in enumerate(rest) if options["end-at"].strip('"') in line)]
    if "lines" in options:
        first, last = map(int, options["lines"].split("-"))
        rest = rest[first - 1 : last]
    return textwrap.dedent("\n".join(rest)).strip("\n")
