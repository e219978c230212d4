"""The project's files as pages of the site, and links to them.

- Each file of caffelite/ and examples/ gets a page, source/PATH.html, and so does each test or benchmark that a page of
  docs/ names. Each folder of them gets a page that lists its files with the first sentence of each.
- In the reference, [source] leads to the line where an object begins. Compiled classes are found by their names.
- A file name in backticks, such as `functions/linear.py`, becomes a link, and so does `model/test_model.py::test_…`.
- A link to a file, such as ../caffelite/textbook.py, leads to its page. In an editor it leads to the file.
"""

import html
import inspect
import posixpath
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

ROOT = Path(__file__).parents[2]
LANGUAGES = {
    ".py": "python",
    ".pyi": "python",
    ".pyx": "cython",
    ".pxd": "cython",
    ".pxi": "cython",
    ".h": "c",
    ".js": "javascript",
    ".css": "css",
    ".html": "html",
}
#: Where a name on a page may begin. The first that has it counts.
PLACES = ["", "caffelite", "caffelite/_kernels", "caffelite/_kernels/loops", "caffelite/core", "tests", "benchmarks"]


@cache
def files() -> frozenset[str]:
    """Return the paths of the files that have pages, relative to the project."""
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "reference").glob("*.md")]
    named = set(re.findall(r"\b\w+\.py\b", "".join(page.read_text() for page in pages)))
    found = [path for folder in ("caffelite", "examples") for path in (ROOT / folder).rglob("*")]
    found += [ROOT / name for name in named if (ROOT / name).exists()]  # setup.py
    for folder in ("tests", "benchmarks"):
        found += [path for path in (ROOT / folder).rglob("*.py") if path.name in named]
    return frozenset(
        path.relative_to(ROOT).as_posix()
        for path in found
        if path.suffix in LANGUAGES and "__pycache__" not in path.parts and "generated" not in path.name
    )


@cache
def folders() -> dict[str, list[str]]:
    """Return the folders that have pages, and what is in them: files, and folders with a slash behind."""
    inside = defaultdict(set)
    for path in files():
        while folder := posixpath.dirname(path.rstrip("/")):
            inside[folder].add(path)
            path = f"{folder}/"
    return {folder: sorted(names, key=lambda name: (name.endswith("/"), name)) for folder, names in inside.items()}


@cache
def lines(path: str) -> list[str]:
    return (ROOT / path).read_text(encoding="utf-8").splitlines()


def find_file(name: str) -> str | None:
    """Return the path of a file or a folder that a page calls by this name."""
    for place in PLACES:
        path = posixpath.join(place, name).rstrip("/")
        if path in files() or (name.endswith("/") and path in folders()):
            return path
    same = [path for path in files() if path.endswith(f"/{name}")]
    return same[0] if len(same) == 1 else None


def page_name(path: str) -> str:
    return f"source/{path}/index" if path in folders() else f"source/{path}"


# ---- where an object is --------------------------------------------------------------------------------------------


def find_object(module: str, fullname: str) -> tuple[str, int] | None:
    """Return the file and the line, from 1, of something in the reference."""
    owner, name, value = None, "", __import__(module, fromlist=["_"])
    for name in fullname.split("."):
        owner, value = (
            value,
            inspect.getattr_static(value, name, None) if inspect.isclass(value) else getattr(value, name, None),
        )
        if value is None:
            return None
    for kind in (staticmethod, classmethod):
        value = value.__func__ if isinstance(value, kind) else value
    value = value.fget if isinstance(value, property) else value
    try:
        value = inspect.unwrap(value)
        path = Path(inspect.getsourcefile(value)).resolve()
        first = inspect.getsourcelines(value)[1]
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).as_posix() in files():
            return path.relative_to(ROOT).as_posix(), first or 1
    except (TypeError, OSError):
        pass
    return find_compiled(owner, name)


def find_compiled(owner, name: str) -> tuple[str, int] | None:
    """Return the same by its text: a class or a function of a .pyx file, a method within its class."""
    inside = owner.__name__ if inspect.isclass(owner) else None
    for path in sorted(path for path in files() if path.endswith((".pyx", ".pxi"))):
        begun = inside is None
        for i, line in enumerate(lines(path), 1):
            if re.match(r"(cdef |cpdef )?class \w", line):
                begun = inside is None or re.search(rf"class {inside}\b", line) is not None
            if begun and re.match(rf"\s*(cdef |cpdef )?(class|def) {name}\b", line):
                return path, i
    return None


class Sources(SphinxPostTransform):
    """Puts the links into a page."""

    default_priority = 300

    def run(self, **_):
        if self.app.builder.format != "html":
            return
        for signature in list(self.document.findall(addnodes.desc_signature)):
            if signature.parent.get("domain") == "py" and signature.get("module"):
                place = find_object(signature["module"], signature["fullname"])
                if place is not None:
                    text = nodes.inline("", "[source]", classes=["source-link"])
                    signature.insert(0, self.link(*place, text, classes=["source"]))
        for download in list(self.document.findall(addnodes.download_reference)):
            folder = posixpath.join("docs", posixpath.dirname(self.env.docname))
            path = posixpath.normpath(posixpath.join(folder, download["reftarget"]))
            if path in files():
                download.replace_self(self.link(path, None, *download[0].children))
        for literal in list(self.document.findall(nodes.literal)):
            if not isinstance(literal.parent, nodes.reference):
                name, _, member = literal.astext().partition("::")
                path = find_file(name) if re.fullmatch(r"[\w/]+(\.\w+|/)", name) else None
                if path is not None:
                    line = (
                        next((i for i, text in enumerate(lines(path), 1) if f"def {member}(" in text), None)
                        if member
                        else None
                    )
                    literal.replace_self(self.link(path, line, literal.deepcopy()))

    def link(self, path, line, *content, **attributes):
        uri = self.app.builder.get_relative_uri(self.env.docname, page_name(path))
        place = f"{uri}#L{line}" if line else uri
        return nodes.reference("", "", *content, refuri=place, internal=True, **attributes)


# ---- the pages -----------------------------------------------------------------------------------------------------


def pages(app):
    """Yield what Sphinx writes next to the documents."""
    for path in sorted(files()):
        yield page_name(path), {"title": path, "body": heading(app, path) + number_lines(app, path)}, "source.jinja"
    for path, names in sorted(folders().items()):
        here = page_name(path)
        items = []
        for name in names:
            target = app.builder.get_relative_uri(here, page_name(name.rstrip("/")))
            shown = posixpath.basename(name.rstrip("/")) + "/" * name.endswith("/")
            items.append(f'<dt><a href="{target}"><code>{shown}</code></a></dt><dd>{first_sentence(name)}</dd>')
        yield here, {"title": path, "body": f"{heading(app, path)}<dl>{''.join(items)}</dl>"}, "source.jinja"


def heading(app, path):
    """Return the path as a title, each folder of it a link."""
    here, parts, shown = page_name(path), path.split("/"), []
    for i, part in enumerate(parts):
        uri = app.builder.get_relative_uri(here, page_name("/".join(parts[: i + 1])))
        shown.append(f'<a href="{uri}">{part}</a>' if i + 1 < len(parts) else part)
    return f'<h1 class="source-path">{"/&#8203;".join(shown)}</h1>'


def number_lines(app, path):
    """Return the text of a file, highlighted, with a place to link to at each line."""
    text = (ROOT / path).read_text(encoding="utf-8")
    block = app.builder.highlighter.highlight_block(text, LANGUAGES[Path(path).suffix], linenos=False)
    before, opened, rest = block.partition("<pre>")
    written, closed, after = rest.rpartition("</pre>")
    number_lines = [f'<span class="line" id="L{i}">{line}</span>' for i, line in enumerate(written.splitlines(), 1)]
    return "".join([before, opened, "\n".join(number_lines), "\n", closed, after])


def first_sentence(name):
    """Return what a file says of itself first."""
    if name.endswith("/"):
        name = next((f"{name}{file}" for file in ("__init__.py",) if f"{name}{file}" in files()), name)
        if name.endswith("/"):
            return ""
    match = re.match(r'\s*(?:#[^\n]*\n\s*)*[rR]?"""(.*?)(?:"""|\n\n)', "\n".join(lines(name)[:30]), re.DOTALL)
    comment = re.match(r"\s*(?:/\*+|#)\s*(.*?)(?:\*/|\n)", "\n".join(lines(name)[:30]), re.DOTALL)
    found = match or comment
    return html.escape(" ".join(found[1].split())) if found else ""


def setup(app: Sphinx) -> dict:
    app.add_post_transform(Sources)
    app.connect("html-collect-pages", pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
