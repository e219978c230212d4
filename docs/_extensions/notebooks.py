"""Each page with programs is also a notebook to download. It is written to docs/_notebooks/ before the pages are read.

A notebook has the page's programs and its text in plain Markdown: links by name become names, included files become
code, and exercises their text. A line at the end of the page leads to it, and `all.zip` has all of them.
"""

from __future__ import annotations

import re
import textwrap
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat

import caffelite

if TYPE_CHECKING:  # the tests make notebooks without Sphinx
    from sphinx.application import Sphinx

DOCS = Path(__file__).parents[1]
FENCE = re.compile(r"^(```+)\{([\w-]+)\}[ ]?([^\n]*)\n(.*?)^\1$\n?", re.DOTALL | re.MULTILINE)


def setup(app: Sphinx) -> dict:
    app.connect("builder-inited", write_all)
    app.connect("source-read", link_to_notebook)
    return {"parallel_read_safe": True}


def pages(app):
    return sorted(page for page in Path(app.srcdir).glob("*.md") if "```{code-cell}" in page.read_text())


def write_all(app):
    folder = Path(app.srcdir) / "_notebooks"
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    with zipfile.ZipFile(folder / "all.zip", "w", zipfile.ZIP_DEFLATED) as together:
        for page in pages(app):
            path = folder / f"{page.stem}.ipynb"
            nbformat.write(notebook(page), path)
            together.write(path, f"caffelite/{path.name}")


def link_to_notebook(app, name, source):
    if "```{code-cell}" in source[0] and "/" not in name:
        source[0] += f"\n\n{{download}}`Download this page as a notebook <_notebooks/{name}.ipynb>`\n"


def notebook(page):
    """The notebook of a page."""
    text = re.sub(r"\A---\n.*?\n---\n", "", page.read_text(), flags=re.DOTALL)
    made, before = nbformat.v4.new_notebook(), ""
    made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    position = 0
    for match in FENCE.finditer(text):
        before += text[position : match.start()]
        position = match.end()
        if match[2] != "code-cell":
            before += plain(match, page.parent)
            continue
        options = re.match(r"(?::.*\n)*", match[4])[0]
        if "remove-cell" not in options:
            add(made, before)
            before = ""
            cell = nbformat.v4.new_code_cell(match[4][len(options) :].strip("\n"))
            if "hide-" in options:
                cell.metadata["jupyter"] = {"source_hidden": True}
            if "raises-exception" in options:
                cell.metadata["tags"] = ["raises-exception"]  # "Run all" goes on
            made.cells.append(cell)
    add(made, before + text[position:])
    for i, cell in enumerate(made.cells):
        cell["id"] = f"cell-{i}"
    nbformat.validate(made)
    return made


def title(name):
    return re.search(r"^# (.*)$", (DOCS / f"{name}.md").read_text(), re.MULTILINE)[1]


def add(made, text):
    text = re.sub(r"\{download\}`[^`]*`", "", text)
    text = re.sub(r"\{doc\}`([\w-]+)`", lambda match: f"*{title(match[1])}*", text)
    text = re.sub(r"\{\w+\}`~?([^`<]*?)(?:\s*<[^>`]*>)?`", r"*\1*", text)  # links by name
    text = re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:)[^)]*\)", r"*\1*", text)
    text = re.sub(r"^\([\w-]+\)=\n|^:+(\{.*\}.*)?\n", "", text, flags=re.MULTILINE).strip()
    if text:
        made.cells.append(nbformat.v4.new_markdown_cell(text))


def plain(match, folder):
    """A directive as Markdown."""
    _, kind, argument, body = match.groups()
    options = dict(re.findall(r"^:([\w-]+): *(.*)$", body, re.MULTILINE))
    content = re.sub(r"\A(?::.*\n)*\n?", "", body)
    if kind == "literalinclude":
        code = included(folder / argument, options)
        return f"`{Path(argument).name}`:\n\n```{options.get('language', '')}\n{code}\n```\n"
    if kind == "exercise":
        return caffelite.exercises.EXERCISES[argument.strip()].task + "\n"
    if kind in ("admonition", "note", "tip"):
        quoted = textwrap.indent(content.strip(), "> ", lambda line: True)
        return f"> **{argument or kind.title()}**\n>\n{quoted}\n"
    if kind in ("toctree", "drawing"):
        return ""
    return f"```{argument}\n{content}```\n"


def included(path, options):
    """The lines of a file that `literalinclude` shows, as far as our pages use its options."""
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
